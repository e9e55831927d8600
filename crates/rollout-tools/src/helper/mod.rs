//! Work on files that nobody vouches for, in a process of its own.
//!
//! A document or a database can be made to use up all memory, to never end, or to crash whoever reads it. So it
//! is read by a short-lived child process, which limits itself before it looks at the file: the server stays up
//! whatever the file does. The file is the child's standard input, the request its arguments, and one JSON value
//! on its standard output the answer.

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

/// The first argument of a process that is a helper.
pub const HELPER_ARG: &str = "__tools-helper";

/// How much of what a helper complains about is kept.
const COMPLAINT: u64 = 4096;

/// The program that reads files in a process of its own. Its `main` calls [`helper_main`](crate::helper_main) when
/// the first argument is [`HELPER_ARG`].
///
/// All clones share a bound on how many processes run at once.
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

    /// Does some work on a file. Dropping the call ends the process.
    pub(crate) async fn run<W: Work, T: DeserializeOwned + Send + 'static>(
        &self,
        work: W,
        input: File,
        limits: Bounds,
    ) -> Result<T, HelperError> {
        // The semaphore is never closed, so that waiting for it cannot fail.
        let _running = self.running.acquire().await;
        let request = Request { work, limits };
        let request =
            serde_json::to_string(&request).map_err(|error| HelperError::Start(Arc::new(error.into())))?;
        let mut child = Command::new(&self.program)
            .arg(HELPER_ARG)
            .arg(W::NAME)
            .arg(request)
            // A file that takes over its reader finds no keys there.
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
                (stdout.take(limits.output.saturating_add(1)), stderr.take(COMPLAINT));
            tokio::try_join!(stdout.read_to_end(&mut answer), stderr.read_to_end(&mut complaint))?;
            if answer.len() as u64 > limits.output {
                return Ok(None);
            }
            child.wait().await.map(Some)
        };
        // On a machine with much to do, the processor's time comes slower than that of the clock.
        let seconds = limits.seconds.saturating_mul(2).saturating_add(1);
        match tokio::time::timeout(Duration::from_secs(seconds), finish).await {
            Err(_) => Err(HelperError::Delayed(seconds)),
            Ok(Err(error)) => Err(HelperError::Start(Arc::new(error))),
            Ok(Ok(None)) => Err(HelperError::Output(limits.output)),
            Ok(Ok(Some(status))) if status.success() => {
                // It may be the text of a whole book.
                let read = blocking(move || serde_json::from_slice::<Result<T, Failure>>(&answer)).await;
                read.map_err(|error| HelperError::Crashed(format!("it gave no answer: {error}")))?
                    .map_err(HelperError::from)
            }
            Ok(Ok(Some(status))) => Err(limits.what_ended(status, &String::from_utf8_lossy(&complaint))),
        }
    }
}

/// What a helper may use.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Bounds {
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Seconds of the processor.
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
    /// It is not allowed.
    Refused(String),
    /// It cannot be done.
    Failed(String),
    /// It takes too long.
    Late(String),
}

/// Why a helper gave nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum HelperError {
    /// It could not be started or heard.
    #[error("the process that reads files could not be run")]
    Start(#[source] Arc<io::Error>),
    /// It took too long.
    #[error("reading it took more than {0} seconds")]
    Time(u64),
    /// It took too long, maybe because there was much else to do.
    #[error("it was not read within {0} seconds; try again")]
    Delayed(u64),
    /// It used too much memory.
    #[error("reading it took more than {} MiB of memory", .0 >> 20)]
    Memory(u64),
    /// It gave too much.
    #[error("it holds more than {} MiB", .0 >> 20)]
    Output(u64),
    /// It came to a bad end.
    #[error("reading it failed: {0}")]
    Crashed(String),
    /// The work itself failed.
    #[error("{1}")]
    Work(ErrorCode, String),
}

impl HelperError {
    /// Whether the same file would fail in the same way again.
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
