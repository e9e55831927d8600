//! What a job says about its environments: the `environment` section.

use rollout_core::quantity::{Bytes, Cpus};

/// Where trials run: the `environment` section.
#[derive(Clone, Default)]
pub struct EnvironmentConfig {
    /// The provider; chosen when the job starts if absent.
    pub kind: Option<EnvironmentKind>,
    /// Builds anew, also where an image exists, and also where the task names an image.
    pub force_build: bool,
    /// Keeps what an install script made, and starts later trials from it.
    pub cache_agent_install: bool,
    /// Which environments outlive their trial.
    pub preserve: PreservePolicy,
    /// Settings of the provider, with `${VAR}` expanded.
    pub provider_config: serde_json::Map<String, serde_json::Value>,
    /// Replaces the task's CPUs.
    pub override_cpus: Option<Cpus>,
    /// Replaces the task's memory.
    pub override_memory: Option<Bytes>,
    /// Replaces the task's storage.
    pub override_storage: Option<Bytes>,
}

impl std::fmt::Debug for EnvironmentConfig {
    /// Shows the settings of the provider by name only: their values may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvironmentConfig")
            .field("kind", &self.kind)
            .field("force_build", &self.force_build)
            .field("cache_agent_install", &self.cache_agent_install)
            .field("preserve", &self.preserve)
            .field("provider_config", &self.provider_config.keys())
            .field("override_cpus", &self.override_cpus)
            .field("override_memory", &self.override_memory)
            .field("override_storage", &self.override_storage)
            .finish()
    }
}

/// The providers that a job file can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EnvironmentKind {
    /// The embedded container engine.
    Native,
    /// A Docker engine.
    Docker,
    /// A Kubernetes cluster.
    Kubernetes,
    /// Modal sandboxes.
    Modal,
    /// Fly machines.
    Fly,
}

impl EnvironmentKind {
    /// The word for it in job files and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
            Self::Kubernetes => "kubernetes",
            Self::Modal => "modal",
            Self::Fly => "fly",
        }
    }
}

/// Which environments are kept when their trial ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreservePolicy {
    /// None.
    #[default]
    Never,
    /// All.
    Always,
    /// Those whose trial had an error, or a reward below 1.
    OnFailure,
}
