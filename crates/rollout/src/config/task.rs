//! What a task.toml says, after validation.

use rollout_core::quantity::{Bytes, Cpus};

/// A validated task.toml.
#[derive(Debug, Clone)]
pub struct TaskConfig {
    /// The version of the format; `1.0` when absent.
    pub version: String,
    /// Where the task came from, as its author says.
    pub source: Option<String>,
    /// Whatever the author wrote under `[metadata]`.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Seconds that test.sh may take.
    pub verifier_timeout_sec: f64,
    /// Variables for test.sh, as written: `${VAR}` is expanded when a job is planned, so that a task
    /// can be loaded and validated where the variables are not set.
    pub verifier_env: Vec<(String, String)>,
    /// Seconds that installing the agent may take.
    pub agent_install_timeout_sec: f64,
    /// Seconds that the agent may take.
    pub agent_timeout_sec: f64,
    /// Seconds that building the image may take.
    pub build_timeout_sec: f64,
    /// A prebuilt image, used instead of environment/Dockerfile.
    pub docker_image: Option<String>,
    /// CPUs of the environment.
    pub cpus: Cpus,
    /// Memory of the environment.
    pub memory: Bytes,
    /// Storage of the environment.
    pub storage: Bytes,
    /// Keys that Rollout does not know, by their dotted path.
    pub unknown: serde_json::Map<String, serde_json::Value>,
}
