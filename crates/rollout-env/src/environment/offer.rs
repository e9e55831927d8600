//! What a task demands of a provider, and what the provider gives for it.

use std::fmt;

use rollout_core::quantity::{Bytes, Cpus};

/// The limits of an environment. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ResourceLimits {
    /// CPUs.
    pub cpus: Option<Cpus>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// Storage.
    pub storage: Option<Bytes>,
}

/// What a provider gives for limits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EnvironmentOffer {
    /// The size that is paid for, if the provider rounds limits up to its own sizes.
    pub size: Option<String>,
    /// The price of an hour, in US dollars.
    pub hourly_cost: f64,
}

/// A demand of a task beyond an image and limits, which some providers cannot meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// GPUs inside.
    Gpus,
    /// No network for the whole life of an environment.
    NoNetwork,
    /// A network that is taken away, and given back, while an environment runs.
    NetworkChanges,
    /// No network but a proxy of the host, which is offered inside.
    Allowlist,
    /// Several containers, described by a compose file.
    Compose,
    /// A container with all privileges on the engine's machine, or nearly all.
    Privileged,
    /// The `ENTRYPOINT` and `HEALTHCHECK` of an image.
    ImageStartup,
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpus => "GPUs",
            Self::NoNetwork => "environments without a network",
            Self::NetworkChanges => "a different network in a single phase",
            Self::Allowlist => "a network of listed hosts",
            Self::Compose => "docker-compose files",
            Self::Privileged => "privileged containers",
            Self::ImageStartup => "ENTRYPOINT and HEALTHCHECK of images",
        })
    }
}
