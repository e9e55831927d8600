//! Errors of starting an engine and of creating a sandbox.

use std::{io, path::PathBuf};

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum SandboxEngineError {
    /// The state directory cannot be used.
    #[error("cannot use the state directory {path}")]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The helper process did not start.
    #[error("cannot start the sandbox helper {helper}")]
    Helper {
        /// The helper's executable.
        helper: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The machine does not permit sandboxes.
    #[error("this machine does not allow sandboxes: {step} failed; {advice}")]
    NotAllowed {
        /// The step that failed.
        step: String,
        /// What to change.
        advice: String,
        /// The system error.
        #[source]
        source: io::Error,
    },
}

/// Why a sandbox could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The machine has fewer resources than requested.
    #[error("the environment needs {asked} {what}, but this machine has {available}")]
    Resources {
        /// The resource.
        what: &'static str,
        /// The requested amount.
        asked: String,
        /// The available amount.
        available: String,
    },
    /// A step of the setup failed.
    #[error("cannot set up the sandbox: {step}")]
    Setup {
        /// The step.
        step: String,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The zygote could not be restarted.
    #[error(transparent)]
    Engine(#[from] SandboxEngineError),
    /// The directory contains no preserved sandbox, or the sandbox is already open.
    #[error("cannot open the preserved environment in {dir}")]
    Reopen {
        /// The directory.
        dir: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}
