//! Resolves the images that `FROM` names, and maps references to the host.

use std::future::Future;

use crate::engine::SandboxEngine;
use crate::image::{Image, ImageError};
use crate::oci::PullError;
use crate::pattern;

/// Finds the image of a reference. This is the interface between builds and sources of images.
pub trait BaseImages: Sync {
    /// Finds an image by its reference, such as `python:3.13-slim`.
    fn resolve(&self, reference: &str) -> impl Future<Output = Result<Image, BaseImageError>> + Send;
}

/// Why an image could not be found for a reference.
#[derive(Debug, thiserror::Error)]
pub enum BaseImageError {
    /// No image is configured for the reference, and no registry is asked.
    #[error("no image is configured for `{reference}`")]
    Unmapped {
        /// The reference.
        reference: String,
    },
    /// The host could not be prepared as an image.
    #[error("this machine's own system cannot be used as an image")]
    Host(#[source] ImageError),
    /// A registry did not give the image.
    #[error("the image cannot be pulled")]
    Pull(#[from] PullError),
}

/// Whether a pattern stands for a reference; `*` stands for any text.
pub fn reference_matches(pattern: &str, reference: &str) -> bool {
    pattern == reference || pattern::text_matches(pattern, reference)
}

/// Uses the host as the image for all references that are mapped to it.
#[derive(Clone)]
pub struct HostImages {
    engine: SandboxEngine,
    patterns: Vec<String>,
}

impl HostImages {
    /// Maps every reference that one of the patterns matches to the host; `*` stands for any text.
    pub fn new(engine: SandboxEngine, patterns: Vec<String>) -> HostImages {
        HostImages { engine, patterns }
    }

    /// The host, if a reference is mapped to it.
    pub async fn find(&self, reference: &str) -> Result<Option<Image>, BaseImageError> {
        match self.is_mapped(reference) {
            true => self.engine.host_image().await.map(Some).map_err(BaseImageError::Host),
            false => Ok(None),
        }
    }

    /// Whether a reference is mapped to the host.
    pub fn is_mapped(&self, reference: &str) -> bool {
        self.patterns.iter().any(|pattern| reference_matches(pattern, reference))
    }
}

impl BaseImages for HostImages {
    async fn resolve(&self, reference: &str) -> Result<Image, BaseImageError> {
        let found = self.find(reference).await?;
        found.ok_or_else(|| BaseImageError::Unmapped { reference: reference.to_owned() })
    }
}
