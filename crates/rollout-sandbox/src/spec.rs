//! The specification of a sandbox, also stored with a preserved one.

use serde::{Deserialize, Serialize};

use crate::{image::Image, limits::SandboxLimits};

/// The file of a preserved sandbox that contains its specification.
pub(crate) const SPEC_FILE: &str = "sandbox.json";

/// The specification of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// A readable name, also the host name inside.
    pub name: String,
    /// The image of the root file system.
    pub image: Image,
    /// The network of the commands.
    pub network: Network,
    /// The resource limits.
    pub limits: SandboxLimits,
    /// Absolute paths of directories that [nested](crate::SandboxCommand::nested) commands cannot reach. For
    /// other commands and file operations they are empty at first. They are not part of snapshots and layers.
    #[serde(default)]
    pub private_dirs: Vec<String>,
    /// More names and addresses for `/etc/hosts`, which always has `localhost` and the host name.
    #[serde(default)]
    pub hosts: Vec<(String, String)>,
}

/// The network of a sandbox's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// A separate network with only loopback.
    None,
    /// The host's network.
    Host,
}
