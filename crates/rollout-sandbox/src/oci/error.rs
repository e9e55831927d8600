//! Why an image could not be pulled.

use std::{io, path::PathBuf, time::Duration};

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
        source: Box<ImageRegistryError>,
    },
    /// The registry's answer is not a valid image.
    #[error("{reference} is not a valid image: {problem}")]
    Invalid {
        /// The reference.
        reference: String,
        /// What is wrong.
        problem: String,
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
            Self::Registry { source, .. } => !source.is_temporary(),
            Self::Store { .. } => false,
        }
    }
}

/// Why a registry, or its token service, did not send what was requested.
#[derive(Debug, thiserror::Error)]
pub enum ImageRegistryError {
    /// No connection, or a connection that broke.
    #[error("the connection to {host} failed")]
    Connection {
        /// The server.
        host: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// Nothing, or almost nothing, arrived for this long.
    #[error("{host} sent too little data in {} s", time.as_secs_f64())]
    Stalled {
        /// The server.
        host: String,
        /// The time.
        time: Duration,
    },
    /// The connection ended before everything had arrived.
    #[error("{host} closed the connection before the download was complete")]
    Truncated {
        /// The server.
        host: String,
    },
    /// The server refused.
    #[error("{host} answered with status {status}{detail}")]
    Status {
        /// The server.
        host: String,
        /// The status code of HTTP.
        status: u16,
        /// What the server wrote about it, after a colon.
        detail: String,
        /// Whether the server limits the rate of requests.
        is_rate_limit: bool,
        /// When the server accepts another request.
        retry_after: Option<Duration>,
    },
    /// The answer has no meaning for a client.
    #[error("the answer of {host} is invalid: {problem}")]
    Invalid {
        /// The server.
        host: String,
        /// What is wrong.
        problem: String,
    },
    /// The content does not have the hash by which it was requested.
    #[error("{host} sent {what}, but the content does not have that hash")]
    Corrupt {
        /// The server.
        host: String,
        /// What was requested, with its hash.
        what: String,
    },
}

impl ImageRegistryError {
    /// Whether a later request may succeed.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Connection { source, .. } => !source.is_builder() && !source.is_redirect(),
            Self::Stalled { .. } | Self::Truncated { .. } => true,
            // 501: the server can never do this.
            Self::Status { status, is_rate_limit, .. } => {
                *is_rate_limit || matches!(status, 408 | 425 | 429 | 500 | 502..=599)
            }
            Self::Invalid { .. } | Self::Corrupt { .. } => false,
        }
    }

    /// Whether the server refused to continue a download, and may send the whole file.
    pub(super) fn refuses_range(&self) -> bool {
        matches!(self, Self::Status { status: 400 | 416 | 501, is_rate_limit: false, .. })
    }

    /// When the server accepts another request, if it has set a time.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
