//! Python functions, called in a long-running process.
//!
//! Each call is a line of JSON to the process, and each answer a line from it, in any order: the process runs several
//! calls at once, in threads. It starts with the first call. If the process ends, it is replaced. Calls without an
//! answer are repeated, one at a time in a process of their own, to find the function that ended the process. A call
//! that times out keeps its thread, so later calls go to a new process.
//!
//! A job has one process for each interpreter ([`PythonWorkers`]), shared by all its interactions.

mod callable;
mod process;

use std::{
    collections::HashMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use rollout_core::{message::ToolDef, text::excerpt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use self::process::{Answer, Gone, PythonProcess};

pub(crate) use callable::Callable;

/// How many calls run at once, over all interactions. Python runs one at a time; more are useful only for calls that
/// wait, for example for a server.
const THREADS: usize = 128;

/// The maximum size of a call. A rollout with images has some megabytes.
const MAX_CALL_BYTES: usize = 64 << 20;

/// A function in a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PythonFunction {
    /// The file; relative to the directory of the worker.
    pub file: PathBuf,
    /// The name of the function in the file.
    pub function: String,
}

impl fmt::Display for PythonFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.function)
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// The Python process cannot be started.
    #[error("cannot start `{interpreter}` to call `{function}`; is Python 3.10 or newer installed?")]
    Start {
        /// The interpreter.
        interpreter: String,
        /// The function.
        function: PythonFunction,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The function or its file is unusable.
    #[error("cannot call `{function}`: {message}")]
    Unusable {
        /// The function.
        function: PythonFunction,
        /// The reason.
        message: String,
    },
    /// The function raised an exception.
    #[error("`{function}` raised {kind}: {message}{}", behind(traceback))]
    Raised {
        /// The function.
        function: PythonFunction,
        /// The name of the exception.
        kind: String,
        /// Its message.
        message: String,
        /// The last lines of its traceback.
        traceback: String,
    },
    /// The function timed out.
    #[error("`{function}` timed out after {}s", after.as_secs_f64())]
    Timeout {
        /// The function.
        function: PythonFunction,
        /// The timeout.
        after: Duration,
    },
    /// The process ended during the call.
    #[error("`{function}` ended the Python process{stderr}")]
    Ended {
        /// The function.
        function: PythonFunction,
        /// The last lines of its standard error, as a suffix of the message.
        stderr: String,
    },
    /// The arguments are too large.
    #[error("the arguments of `{function}` have {bytes} bytes; the limit is {MAX_CALL_BYTES}")]
    TooLarge {
        /// The function.
        function: PythonFunction,
        /// Their size.
        bytes: usize,
    },
    /// It returned a value of the wrong type.
    #[error("`{function}` returned {given}, not {wanted}")]
    Odd {
        /// The function.
        function: PythonFunction,
        /// The start of the returned value.
        given: String,
        /// The expected type.
        wanted: &'static str,
    },
}

impl PythonError {
    /// Whether the function could not be called. A call that times out or ends the process is not among these: the
    /// response that it scores may be the reason, and would else avoid its score.
    pub(crate) fn is_infrastructure(&self) -> bool {
        matches!(self, Self::Start { .. })
    }
}

fn behind(traceback: &str) -> String {
    if traceback.is_empty() { String::new() } else { format!("\n{traceback}") }
}

/// The parameters of a function.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Takes {
    /// The names of its parameters.
    pub(crate) names: Vec<String>,
    /// Whether it takes any argument.
    pub(crate) everything: bool,
}

impl Takes {
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.everything || self.names.iter().any(|known| known == name)
    }
}

/// Calls Python functions. Clones share one process, which ends with the last clone.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rollout::model::{PythonFunction, PythonWorker, tool};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let worker = PythonWorker::new("python3", ".");
/// let lookup = PythonFunction { file: "tools.py".into(), function: "lookup".into() };
/// let tool = tool::python(&worker, lookup, Duration::from_secs(5)).await?;
/// println!("{}: {}", tool.def().name, tool.def().description);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PythonWorker {
    shared: Arc<Inner>,
    /// The directory of files; absolute.
    files: Arc<Path>,
}

struct Inner {
    interpreter: String,
    directory: PathBuf,
    current: Mutex<Option<Arc<PythonProcess>>>,
    /// Held by a call that is repeated in a process of its own.
    alone: tokio::sync::Mutex<()>,
    /// The timeout of a call starts when it has a thread.
    threads: Semaphore,
    calls: AtomicU64,
}

impl fmt::Debug for PythonWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PythonWorker({} in {})", self.shared.interpreter, self.files.display())
    }
}

#[derive(Serialize)]
struct Call<'a, T> {
    id: u64,
    #[serde(rename = "do")]
    action: &'a str,
    file: &'a Path,
    function: &'a str,
    arguments: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollouts: Option<usize>,
}

impl PythonWorker {
    /// The default timeout of a call.
    pub const TIMEOUT: Duration = Duration::from_secs(60);

    /// A worker with this interpreter. Functions are found in this directory and run there. Nothing is started yet.
    pub fn new(interpreter: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        let directory = absolute(directory.into());
        let files = directory.as_path().into();
        let shared = Inner {
            interpreter: interpreter.into(),
            directory,
            current: Mutex::default(),
            alone: tokio::sync::Mutex::default(),
            threads: Semaphore::new(THREADS),
            calls: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), files }
    }

    /// The same process, for functions whose files are in another directory.
    #[must_use]
    pub fn with_files_in(&self, directory: impl Into<PathBuf>) -> Self {
        Self { shared: Arc::clone(&self.shared), files: absolute(directory.into()).into() }
    }

    /// Checks that a function exists and can be called. Starts Python.
    pub async fn check(&self, function: &PythonFunction) -> Result<(), PythonError> {
        self.takes(function).await.map(drop)
    }

    /// The description of a function for models: its signature and its documentation.
    pub(crate) async fn describe(&self, function: &PythonFunction) -> Result<ToolDef, PythonError> {
        self.read(function, "describe", "a description").await
    }

    pub(crate) async fn takes(&self, function: &PythonFunction) -> Result<Takes, PythonError> {
        self.read(function, "takes", "a signature").await
    }

    async fn read<T: serde::de::DeserializeOwned>(
        &self,
        function: &PythonFunction,
        action: &str,
        wanted: &'static str,
    ) -> Result<T, PythonError> {
        let given = self.call(function, action, (), None, Self::TIMEOUT).await?;
        serde_json::from_value(given.clone()).map_err(|_| odd(function, &given, wanted))
    }

    /// Calls a function.
    pub(crate) async fn call(
        &self,
        function: &PythonFunction,
        action: &str,
        arguments: impl Serialize,
        rollouts: Option<usize>,
        timeout: Duration,
    ) -> Result<Value, PythonError> {
        let Inner { threads, calls, .. } = &*self.shared;
        let id = calls.fetch_add(1, Ordering::Relaxed);
        let file = self.files.join(&function.file);
        let call = Call { id, action, file: &file, function: &function.function, arguments, rollouts };
        let mut line = serde_json::to_vec(&call).map_err(|error| PythonError::Unusable {
            function: function.clone(),
            message: format!("cannot convert its arguments to JSON: {error}"),
        })?;
        line.push(b'\n');
        if line.len() > MAX_CALL_BYTES {
            return Err(PythonError::TooLarge { function: function.clone(), bytes: line.len() });
        }
        let line = Bytes::from(line);
        let _thread = threads.acquire().await.expect("nothing closes the semaphore");
        let process = self.current().map_err(|source| self.no_start(function, source))?;
        // Which call ended the process is found by giving each call a process of its own.
        let answer = match tokio::time::timeout(timeout, process.ask(id, line.clone())).await {
            Ok(Err(Gone)) => {
                self.retire(&process);
                let _alone = self.shared.alone.lock().await;
                let process = self.start().map_err(|source| self.no_start(function, source))?;
                match tokio::time::timeout(timeout, process.ask(id, line)).await {
                    Ok(Err(Gone)) => {
                        let stderr = process.said().await;
                        return Err(PythonError::Ended { function: function.clone(), stderr });
                    }
                    answer => answer,
                }
            }
            answer => answer,
        };
        match answer {
            Ok(Ok(Answer::Value(value))) => Ok(value),
            Ok(Ok(Answer::Error(error))) => Err(error.of(function)),
            Ok(Err(Gone)) => Err(PythonError::Ended { function: function.clone(), stderr: String::new() }),
            Err(_) => {
                self.retire(&process);
                Err(PythonError::Timeout { function: function.clone(), after: timeout })
            }
        }
    }

    fn no_start(&self, function: &PythonFunction, source: io::Error) -> PythonError {
        let interpreter = self.shared.interpreter.clone();
        PythonError::Start { interpreter, function: function.clone(), source }
    }

    fn start(&self) -> io::Result<Arc<PythonProcess>> {
        PythonProcess::start(&self.shared.interpreter, &self.shared.directory, THREADS).map(Arc::new)
    }

    /// The process for new calls.
    fn current(&self) -> io::Result<Arc<PythonProcess>> {
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some(process) => Ok(Arc::clone(process)),
            None => Ok(Arc::clone(current.insert(self.start()?))),
        }
    }

    /// Sends no more calls to a process. It ends after its current calls.
    fn retire(&self, process: &Arc<PythonProcess>) {
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|current| Arc::ptr_eq(current, process));
    }
}

/// Python finds files relative to the directory that it was started in.
fn absolute(directory: PathBuf) -> PathBuf {
    std::path::absolute(&directory).unwrap_or(directory)
}

/// The workers of a job: one process for each interpreter, shared by all interactions. Clones share them.
#[derive(Debug, Clone)]
pub struct PythonWorkers {
    directory: Arc<Path>,
    workers: Arc<Mutex<HashMap<String, PythonWorker>>>,
}

impl PythonWorkers {
    /// Workers whose processes run in this directory. Nothing is started yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into().into(), workers: Arc::default() }
    }

    /// The worker of an interpreter, for functions in files of this directory. A relative path of an interpreter starts
    /// there too.
    pub fn get(&self, interpreter: &str, files: &Path) -> PythonWorker {
        let interpreter = match interpreter.contains('/') {
            true => absolute(files.join(interpreter)).to_string_lossy().into_owned(),
            false => interpreter.to_owned(),
        };
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = workers
            .entry(interpreter)
            .or_insert_with_key(|interpreter| PythonWorker::new(interpreter.as_str(), &*self.directory));
        worker.with_files_in(files)
    }
}

pub(crate) fn odd(function: &PythonFunction, given: &Value, wanted: &'static str) -> PythonError {
    PythonError::Odd { function: function.clone(), given: excerpt(&given.to_string()), wanted }
}
