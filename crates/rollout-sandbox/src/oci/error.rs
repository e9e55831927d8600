//! Why an image could not be pulled.

use std::{io, path::PathBuf};

use oci_client::errors::OciDistributionError;

/// Why an image could not be pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The reference is not one.
    #[error("{reference:?} is not the name of an image")]
    Reference {
        /// The reference.
        reference: String,
        /// What is wrong with it.
        #[source]
        source: oci_client::ParseError,
    },
    /// The registry was not reached, or refused.
    #[error("cannot pull {reference} from its registry")]
    Registry {
        /// The reference.
        reference: String,
        /// Its answer.
        #[source]
        source: Box<OciDistributionError>,
    },
    /// The registry's answer is not a valid image.
    #[error("{reference} is not a valid image: {problem}")]
    Invalid {
        /// The reference.
        reference: String,
        /// What is wrong.
        problem: String,
    },
    /// The registry cannot continue an interrupted download.
    #[error("the download of {reference} was interrupted, and its registry cannot continue it")]
    NoResume {
        /// The reference.
        reference: String,
    },
    /// An image outside of registries cannot be imported.
    #[error("cannot import the image {}", path.display())]
    Import {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// The files cannot be stored.
    #[error("cannot store the image at {path}")]
    Store {
        /// The file or directory.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
}

impl PullError {
    /// Whether no later pull of the same reference can succeed.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Reference { .. } | Self::Invalid { .. } | Self::Import { .. } => true,
            Self::Registry { source, .. } => matches!(
                **source,
                OciDistributionError::ImageManifestNotFoundError(_)
                    | OciDistributionError::UnauthorizedError { .. }
                    | OciDistributionError::AuthenticationFailure(_)
                    | OciDistributionError::RegistryError { .. }
            ),
            Self::NoResume { .. } | Self::Store { .. } => false,
        }
    }
}
