//! Resolves the images that `FROM` names, and maps references to the host.

use std::future::Future;

use super::pattern;
use crate::engine::SandboxEngine;
use crate::image::{Image, ImageError};

/// Finds the image of a reference. This is the interface between builds and sources of images.
pub trait BaseImages: Sync {
    /// Finds an image by its reference, such as `python:3.13-slim`.
    fn resolve(&self, reference: &str) -> impl Future<Output = Result<Image, BaseImageError>> + Send;
}

/// Why an image could not be found for a reference.
#[derive(Debug, thiserror::Error)]
pub enum BaseImageError {
    /// No image is configured for the reference.
    #[error(
        "no image is configured for `{reference}`; to use this machine's own system as that image, write under \
         environment.provider_config: images: {{\"{reference}\": host}}; `type: docker` runs any image on a Docker engine"
    )]
    Unmapped {
        /// The reference.
        reference: String,
    },
    /// The host could not be prepared as an image.
    #[error("this machine's own system cannot be used as an image")]
    Host(#[source] ImageError),
    /// Another source of images failed.
    #[error("the image cannot be fetched")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
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

    /// Whether a reference is mapped to the host.
    pub fn is_mapped(&self, reference: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern == reference || pattern::text_matches(pattern, reference))
    }
}

impl BaseImages for HostImages {
    async fn resolve(&self, reference: &str) -> Result<Image, BaseImageError> {
        if !self.is_mapped(reference) {
            return Err(BaseImageError::Unmapped { reference: reference.to_owned() });
        }
        self.engine.host_image().await.map_err(BaseImageError::Host)
    }
}
