//! What a sandbox is made from, and how a preserved one says so.

use serde::{Deserialize, Serialize};

use crate::{image::Image, limits::SandboxLimits};

/// The file of a preserved sandbox that says how it was made.
pub(crate) const SPEC_FILE: &str = "sandbox.json";

/// A sandbox to make.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// A name for people, and the host name inside.
    pub name: String,
    /// What the root is made of.
    pub image: Image,
    /// Which network the commands see.
    pub network: Network,
    /// How much of the machine they may use.
    pub limits: SandboxLimits,
    /// Absolute paths of directories that [nested](crate::SandboxCommand::nested) commands cannot reach: what is there
    /// for all others, and for file operations, is empty at first and is no part of snapshots and layers.
    #[serde(default)]
    pub private_dirs: Vec<String>,
}

/// Which network a sandbox's commands see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// A network of their own with nothing but loopback.
    None,
    /// The host's network.
    Host,
}
