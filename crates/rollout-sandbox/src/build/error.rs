//! The errors of image builds.

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
    /// There is no Dockerfile, and no image is configured instead.
    #[error("there is no Dockerfile at {}; write one, or name an image with docker_image", path.display())]
    MissingDockerfile {
        /// The expected path of the Dockerfile.
        path: PathBuf,
    },
    /// The Dockerfile has a syntax error.
    #[error("{at}: {message}")]
    Syntax {
        /// The instruction.
        at: Location,
        /// What is wrong with it.
        message: String,
    },
    /// The instruction is valid, but not supported here.
    #[error("{at}: {what} is not supported; {instead}")]
    Unsupported {
        /// The instruction.
        at: Location,
        /// The unsupported part.
        what: String,
        /// What to write instead.
        instead: String,
    },
    /// The image of a `FROM` or a `COPY --from` cannot be found.
    #[error("{at}: cannot find the image {reference}")]
    BaseImage {
        /// The instruction.
        at: Location,
        /// The image's reference.
        reference: String,
        /// The reason.
        #[source]
        source: BaseImageError,
    },
    /// A command of `RUN` failed.
    #[error("{at}: the command {}{}", Ending(exit), LastOutput(output))]
    RunFailed {
        /// The instruction.
        at: Location,
        /// How the command ended.
        exit: CommandExit,
        /// The last lines of its output.
        output: String,
    },
    /// A command of `RUN` could not be started.
    #[error("{at}: the command could not be started")]
    NotStarted {
        /// The instruction.
        at: Location,
        /// The reason.
        #[source]
        source: ExecError,
    },
    /// The files or directories of an instruction could not be copied or created.
    #[error("{at}: cannot copy or create the files")]
    FilesFailed {
        /// The instruction.
        at: Location,
        /// What went wrong.
        #[source]
        source: CopyFailure,
    },
    /// The sandbox for the build could not be created.
    #[error("cannot create the environment for the build")]
    Create(#[from] CreateError),
    /// The built image could not be stored.
    #[error("cannot store the built image")]
    Keep(#[from] KeepError),
    /// A file of the build itself could not be read or written.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system error.
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
            ExitStatus::Signal(signal) => write!(f, "was killed by signal {signal}")?,
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
