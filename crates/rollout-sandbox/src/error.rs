//! Why an engine cannot start, and why it cannot make a sandbox.

use std::{io, path::PathBuf};

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum SandboxEngineError {
    /// The state directory cannot be used.
    #[error("cannot use the state directory {path}")]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The helper process did not start.
    #[error("cannot start the sandbox helper {helper}")]
    Helper {
        /// The helper's executable.
        helper: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The machine does not allow what sandboxes need.
    #[error("this machine does not allow sandboxes: {step} failed; {advice}")]
    NotAllowed {
        /// What was tried.
        step: String,
        /// What to change.
        advice: String,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
}

/// Why a sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The machine has less than was asked for.
    #[error(
        "the environment asks for {asked} {what}, but this machine has {available}; lower the limit or override it"
    )]
    Resources {
        /// What there is too little of.
        what: &'static str,
        /// How much was asked for.
        asked: String,
        /// How much there is.
        available: String,
    },
    /// A step of the setup failed.
    #[error("cannot set up the sandbox: {step}")]
    Setup {
        /// What was being done.
        step: String,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The zygote could not be started again.
    #[error(transparent)]
    Engine(#[from] SandboxEngineError),
    /// The directory holds no preserved sandbox, or one that is open already.
    #[error("cannot open the preserved environment in {dir}")]
    Reopen {
        /// The directory.
        dir: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}
