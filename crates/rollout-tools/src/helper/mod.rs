//! Work on untrusted files, in a separate process.
//!
//! A document or a database can be made to use up all memory, to never end, or to crash its reader. So it is
//! read by a short-lived child process, which limits itself before it opens the file: the server keeps running
//! whatever the file does. The file is the child's standard input, the request is in its arguments, and the
//! answer is one JSON value on its standard output.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::resource::{ErrorCode, ToolError};
use crate::seed::blocking;

/// The first argument of a helper process.
pub const HELPER_ARG: &str = "__tools-helper";

/// The most bytes of a helper's stderr that are kept.
const MAX_STDERR: u64 = 4096;

/// The program that reads files in a separate process. Its `main` calls [`helper_main`](crate::helper_main)
/// when the first argument is [`HELPER_ARG`].
///
/// All clones share a limit on the number of concurrent processes.
#[derive(Debug, Clone)]
pub struct Helper {
    program: PathBuf,
    running: Arc<Semaphore>,
}

impl Helper {
    /// Uses this program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { program: program.into(), running: Arc::new(Semaphore::new(cores.max(2))) }
    }

    /// Runs some work on a file. Dropping the future ends the process.
    pub(crate) async fn run<W: Work, T: DeserializeOwned + Send + 'static>(
        &self,
        work: W,
        input: File,
        limits: Bounds,
    ) -> Result<T, HelperError> {
        // The semaphore is never closed, so waiting cannot fail.
        let _running = self.running.acquire().await;
        let request = Request { work, limits };
        let request =
            serde_json::to_string(&request).map_err(|error| HelperError::Start(Arc::new(error.into())))?;
        let mut child = Command::new(&self.program)
            .arg(HELPER_ARG)
            .arg(W::NAME)
            .arg(request)
            // A file that takes over its reader finds no keys in the environment.
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| HelperError::Start(Arc::new(error)))?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(HelperError::Start(Arc::new(io::Error::other("it has no output"))));
        };
        let (mut answer, mut complaint) = (Vec::new(), Vec::new());
        let finish = async {
            let (mut stdout, mut stderr) =
                (stdout.take(limits.output.saturating_add(1)), stderr.take(MAX_STDERR));
            tokio::try_join!(stdout.read_to_end(&mut answer), stderr.read_to_end(&mut complaint))?;
            if answer.len() as u64 > limits.output {
                return Ok(None);
            }
            child.wait().await.map(Some)
        };
        // On a busy machine, CPU time passes more slowly than the clock.
        let seconds = limits.seconds.saturating_mul(2).saturating_add(1);
        match tokio::time::timeout(Duration::from_secs(seconds), finish).await {
            Err(_) => Err(HelperError::Delayed(seconds)),
            Ok(Err(error)) => Err(HelperError::Start(Arc::new(error))),
            Ok(Ok(None)) => Err(HelperError::Output(limits.output)),
            Ok(Ok(Some(status))) if status.success() => {
                // The answer may be the text of a whole book.
                let read = blocking(move || serde_json::from_slice::<Result<T, Failure>>(&answer)).await;
                read.map_err(|error| HelperError::Crashed(format!("it gave no answer: {error}")))?
                    .map_err(HelperError::from)
            }
            Ok(Ok(Some(status))) => Err(limits.what_ended(status, &String::from_utf8_lossy(&complaint))),
        }
    }
}

/// The limits of a helper.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Bounds {
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// CPU seconds.
    pub(crate) seconds: u64,
    /// Bytes of its answer.
    pub(crate) output: u64,
}

impl Bounds {
    fn what_ended(&self, status: ExitStatus, complaint: &str) -> HelperError {
        const XCPU: i32 = rustix::process::Signal::XCPU.as_raw();
        const KILL: i32 = rustix::process::Signal::KILL.as_raw();
        match status.signal() {
            Some(XCPU | KILL) => HelperError::Time(self.seconds),
            _ if complaint.contains("memory allocation of") => HelperError::Memory(self.memory),
            _ if complaint.contains("overflowed its stack") => {
                HelperError::Crashed("it is nested too deeply".to_owned())
            }
            _ => HelperError::Crashed(format!("{status}: {}", complaint.trim())),
        }
    }
}

/// A request to a helper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request<W> {
    pub(crate) work: W,
    pub(crate) limits: Bounds,
}

/// Work that a helper can do.
pub(crate) trait Work: Serialize {
    /// The second argument of the process.
    const NAME: &'static str;
}

/// Why the work itself failed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// The work is not allowed.
    Refused(String),
    /// The work failed.
    Failed(String),
    /// The work takes too long.
    Late(String),
}

/// Why a helper returned no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum HelperError {
    /// The helper could not be started or its output not read.
    #[error("cannot run the process that reads files")]
    Start(#[source] Arc<io::Error>),
    /// The helper took too long.
    #[error("reading it took more than {0} seconds")]
    Time(u64),
    /// The helper took too long, maybe because the machine was busy.
    #[error("it was not read within {0} seconds; try again")]
    Delayed(u64),
    /// The helper used too much memory.
    #[error("reading it took more than {} MiB of memory", .0 >> 20)]
    Memory(u64),
    /// The helper returned too much.
    #[error("it contains more than {} MiB", .0 >> 20)]
    Output(u64),
    /// The helper crashed.
    #[error("reading it failed: {0}")]
    Crashed(String),
    /// The work itself failed.
    #[error("{1}")]
    Work(ErrorCode, String),
}

impl HelperError {
    /// Whether the same file would always fail in the same way.
    pub(crate) fn is_lasting(&self) -> bool {
        !matches!(self, Self::Start(_) | Self::Delayed(_))
    }
}

impl From<Failure> for HelperError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(message) => Self::Work(ErrorCode::Refused, message),
            Failure::Failed(message) => Self::Work(ErrorCode::ExecutionError, message),
            Failure::Late(message) => Self::Work(ErrorCode::Timeout, message),
        }
    }
}

impl From<HelperError> for ToolError {
    fn from(error: HelperError) -> Self {
        let code = match &error {
            HelperError::Start(cause) => {
                return Self::new(ErrorCode::ResourceFailed, format!("{error}: {cause}"));
            }
            HelperError::Time(_) | HelperError::Delayed(_) => ErrorCode::Timeout,
            HelperError::Memory(_) | HelperError::Output(_) => ErrorCode::Refused,
            HelperError::Crashed(_) => ErrorCode::ExecutionError,
            HelperError::Work(code, _) => *code,
        };
        Self::new(code, error.to_string())
    }
}
