//! Images from Dockerfiles, without a daemon.
//!
//! A Dockerfile is parsed, then each stage that the last one needs is planned: variables expanded, paths made
//! absolute. The plan and the files it copies give a key; the layer of a key is built once and kept.

mod context;
mod error;
mod expand;
mod parse;
mod pattern;
mod plan;
mod stages;

pub use context::CopyFailure;
pub use error::BuildError;
pub use parse::Location;

/// The configuration that an image hands to what runs in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageConfig {
    pub(crate) env: Vec<(String, String)>,
    pub(crate) workdir: String,
    pub(crate) user: Option<String>,
    pub(crate) shell: Vec<String>,
    pub(crate) labels: std::collections::BTreeMap<String, String>,
}
