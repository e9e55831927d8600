//! What can go wrong while an image is built.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::context::CopyFailure;
use super::images::BaseImageError;
use super::parse::Location;
use crate::error::CreateError;
use crate::process::{CommandExit, ExecError, ExitStatus};
use crate::sandbox::KeepError;

/// Why an image could not be built from a Dockerfile.
#[derive(Debug, thiserror::Error)]
pub enum ImageBuildError {
    /// There is no Dockerfile where one is needed.
    #[error("there is no Dockerfile at {}; write one, or name an image with docker_image", path.display())]
    MissingDockerfile {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The Dockerfile cannot be understood.
    #[error("{at}: {message}")]
    Syntax {
        /// The instruction.
        at: Location,
        /// What is wrong with it.
        message: String,
    },
    /// The instruction is understood, but cannot be carried out here.
    #[error("{at}: {what} is not supported; {instead}")]
    Unsupported {
        /// The instruction.
        at: Location,
        /// What of it is not supported.
        what: String,
        /// What to write instead.
        instead: String,
    },
    /// There is no image for a `FROM` or a `COPY --from`.
    #[error("{at}: there is no image {reference}")]
    BaseImage {
        /// The instruction.
        at: Location,
        /// The image's reference.
        reference: String,
        /// Why there is none.
        #[source]
        source: BaseImageError,
    },
    /// A command of `RUN` ended with an error.
    #[error("{at}: the command {}{}", Ending(exit), LastOutput(output))]
    RunFailed {
        /// The instruction.
        at: Location,
        /// How the command ended.
        exit: CommandExit,
        /// The last lines that it printed.
        output: String,
    },
    /// A command of `RUN` could not be started.
    #[error("{at}: the command could not be started")]
    NotStarted {
        /// The instruction.
        at: Location,
        /// Why not.
        #[source]
        source: ExecError,
    },
    /// The files or directories of an instruction could not be put in place.
    #[error("{at}: the files could not be put in place")]
    FilesFailed {
        /// The instruction.
        at: Location,
        /// What went wrong.
        #[source]
        source: CopyFailure,
    },
    /// The environment that the build runs in could not be made.
    #[error("the environment of the build could not be made")]
    Create(#[from] CreateError),
    /// What was built could not be kept.
    #[error("the built image could not be kept")]
    Keep(#[from] KeepError),
    /// A file of the build itself could not be read or written.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The log could not be written.
    #[error("cannot write the log of the build")]
    Log(#[source] io::Error),
}

struct Ending<'a>(&'a CommandExit);

impl fmt::Display for Ending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.status {
            ExitStatus::Code(code) => write!(f, "exited with code {code}")?,
            ExitStatus::Signal(signal) => write!(f, "was ended by signal {signal}")?,
        }
        if self.0.oom_killed { f.write_str(" after the memory limit was reached") } else { Ok(()) }
    }
}

struct LastOutput<'a>(&'a str);

impl fmt::Display for LastOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            f.write_str(" and printed nothing")
        } else {
            write!(f, "; it printed last:\n{}", self.0)
        }
    }
}
