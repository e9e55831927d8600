//! The Docker engine that jobs use on this machine, if there is one.

use rollout::environment::{
    CloudAccess, DockerAccess, KubernetesAccess,
    docker::{Engine, EngineError},
};

/// The result of looking for an engine.
pub(crate) enum Found {
    /// An engine is available.
    Engine(Engine),
    /// No engine was found, and no setting names one. Jobs without an environment type run natively.
    None(EngineError),
    /// A setting names an engine, but it was not found. Jobs without an environment type run natively.
    Missing(EngineError),
    /// An engine was found, but it cannot be used. Jobs without an environment type are rejected.
    Unusable(EngineError),
}

/// Returns the address of the engine from environment variables.
pub(crate) fn place() -> DockerAccess {
    DockerAccess::from_variables(|name| std::env::var_os(name))
}

/// Returns how to reach a Kubernetes cluster, from environment variables.
pub(crate) fn clusters() -> KubernetesAccess {
    KubernetesAccess::from_variables(|name| std::env::var_os(name))
}

/// Returns the accounts for cloud sandboxes, from environment variables.
pub(crate) fn clouds() -> CloudAccess {
    CloudAccess::from_variables(|name| std::env::var_os(name))
}

/// Looks for an engine.
pub(crate) async fn find() -> Found {
    match Engine::connect(&place()).await {
        Ok(engine) => Found::Engine(engine),
        Err(error) => judge(error),
    }
}

fn judge(error: EngineError) -> Found {
    match (error.is_absence(), error.is_unexpected()) {
        (true, false) => Found::None(error),
        (true, true) => Found::Missing(error),
        (false, _) => Found::Unusable(error),
    }
}
