//! The host's side of a guest: the first process of a container, which does all that an
//! [`Environment`](super::Environment) asks for, over one stream.
//!
//! Whoever starts containers puts [`PROGRAM`] at [`PROGRAM_PATH`] into the image, starts it there as the
//! super-user with the image's variables and directory, and hands its standard streams to
//! [`Guest::connect`]. Nothing that comes over them is trusted.

use std::path::Path;

use tokio::io::{AsyncRead, AsyncWrite};

use super::{CopyMode, CopyReport, EnvironmentError, Exec, Exit, FileRead};

/// The guest's executable: static, so that it runs in any image of this architecture.
pub static PROGRAM: &[u8] = &[];

/// Where the executable belongs in a container.
pub const PROGRAM_PATH: &str = "/.rollout/guest";

/// A guest that answers.
///
/// A stream that breaks or that carries nonsense makes every call [`EnvironmentError::Lost`].
pub struct Guest {}

impl Guest {
    /// Waits for the guest at the other end of the streams. Commands run as `user`, given as `name|uid[:group|gid]`;
    /// none is the super-user.
    pub async fn connect(
        _reader: impl AsyncRead + Send + Unpin + 'static,
        _writer: impl AsyncWrite + Send + Unpin + 'static,
        _user: Option<String>,
    ) -> Result<Self, EnvironmentError> {
        Err(missing())
    }

    /// Copies a host file, or the content of a host directory, to a path inside.
    pub async fn copy_to(
        &self,
        _source: &Path,
        _target: &str,
        _mode: CopyMode,
    ) -> Result<(), EnvironmentError> {
        Err(missing())
    }

    /// Writes an executable file inside, making its directory.
    pub async fn write_file(&self, _path: &str, _content: &[u8]) -> Result<(), EnvironmentError> {
        Err(missing())
    }

    /// Copies the content of a directory inside into a host directory, in which nothing is overwritten.
    pub async fn copy_from(&self, _source: &str, _target: &Path) -> Result<CopyReport, EnvironmentError> {
        Err(missing())
    }

    /// Reads a regular file inside, without following a link at its end.
    pub async fn read_file(&self, _path: &str, _max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        Err(missing())
    }

    /// Makes sure that these directories exist. With `empty`, whatever was there before is gone.
    pub async fn make_dirs(&self, _paths: &[&str], _empty: bool) -> Result<(), EnvironmentError> {
        Err(missing())
    }

    /// Makes a link inside, unless a file or directory is there already.
    pub async fn link(&self, _target: &str, _link: &str) -> Result<(), EnvironmentError> {
        Err(missing())
    }

    /// Runs a command to its end or its deadline, at which every process it started is killed. So they are
    /// when the future is dropped.
    pub async fn exec(&self, _command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        Err(missing())
    }

    /// The commands of the processes running inside.
    pub async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        Err(missing())
    }

    /// Ends every process inside.
    pub async fn kill_all(&self) -> Result<(), EnvironmentError> {
        Err(missing())
    }

    /// Makes the guest outlive its stream, and everything inside with it.
    pub async fn stay(&self) -> Result<(), EnvironmentError> {
        Err(missing())
    }

    /// Waits until all output is in its files; to be called when the container is gone or left to itself.
    pub async fn finish(self) {}
}

fn missing() -> EnvironmentError {
    EnvironmentError::Lost("the guest is not reached yet".to_owned())
}
