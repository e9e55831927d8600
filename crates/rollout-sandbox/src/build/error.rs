//! What can go wrong while an image is built.

use std::io;
use std::path::PathBuf;

use super::context::CopyFailure;
use super::parse::Location;

/// Why an image could not be built from a Dockerfile.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
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
    /// The files of a `COPY` or `ADD` could not be copied.
    #[error("{at}: the files could not be copied")]
    CopyFailed {
        /// The instruction.
        at: Location,
        /// What went wrong.
        #[source]
        source: CopyFailure,
    },
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
}
