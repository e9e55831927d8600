//! The Docker engine that jobs find from here, if there is one.

use rollout::environment::{
    DockerAccess,
    docker::{Engine, EngineError},
};

/// Whether there is an engine.
pub(crate) enum Found {
    /// One answers.
    Engine(Engine),
    /// There is none, and nobody said that there is: jobs that name no environment run natively.
    None(EngineError),
    /// Somebody said where it is, and it is not there: such jobs run natively too.
    Missing(EngineError),
    /// There is one, and it cannot be used: such jobs are refused.
    Unusable(EngineError),
}

/// What leads to an engine, from this process's variables.
pub(crate) fn place() -> DockerAccess {
    DockerAccess::from_variables(|name| std::env::var_os(name))
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
