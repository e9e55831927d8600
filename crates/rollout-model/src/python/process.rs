//! One Python process that exchanges lines of JSON.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::{mpsc, oneshot},
};

use super::{PythonError, PythonFunction};
use crate::process::{Process, Said};

/// The maximum size of an answer; images are large.
const MAX_ANSWER_BYTES: u64 = 8 << 20;

/// The maximum size of an answer without its value.
const FRAME_BYTES: u64 = 1 << 10;

/// How long to wait for the last lines of standard error.
const STDERR_GRACE: Duration = Duration::from_millis(200);

const WORKER: &str = include_str!("worker.py");

/// The process ended before it answered.
#[derive(Debug)]
pub(super) struct Gone;

/// The result of a call.
pub(super) enum Answer {
    Value(Value),
    Error(Failure),
}

/// The failure of a function.
#[derive(Deserialize)]
pub(super) struct Failure {
    #[serde(rename = "type")]
    kind: String,
    message: String,
    traceback: String,
}

impl Failure {
    pub(super) fn of(self, function: &PythonFunction) -> PythonError {
        let Self { kind, message, traceback } = self;
        match kind.as_str() {
            "" => PythonError::Unusable { function: function.clone(), message },
            _ => PythonError::Raised { function: function.clone(), kind, message, traceback },
        }
    }
}

#[derive(Deserialize)]
struct Line {
    id: u64,
    #[serde(default)]
    value: Value,
    error: Option<Failure>,
}

/// The callers by the id of their call. None after the process has ended.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

pub(super) struct PythonProcess {
    calls: mpsc::UnboundedSender<Bytes>,
    waiting: Waiting,
    said: Said,
    /// Kills the process when it is dropped.
    _process: Process,
}

impl PythonProcess {
    pub(super) fn start(interpreter: &str, directory: &Path, threads: usize) -> io::Result<Self> {
        let (most, threads) = (MAX_ANSWER_BYTES.to_string(), threads.to_string());
        // `-B`: no compiled files are written to the directories of the functions.
        let argv = [interpreter, "-B", "-X", "utf8", "-c", WORKER, &most, &threads];
        let (process, stdout, stdin) = Process::spawn(&argv, &[], Some(directory))?;
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (calls, lines) = mpsc::unbounded_channel();
        tokio::spawn(write(stdin, lines));
        tokio::spawn(read(stdout, Arc::clone(&waiting)));
        Ok(Self { calls, waiting, said: process.stderr(), _process: process })
    }

    /// Makes a call and waits for its answer.
    pub(super) async fn ask(&self, id: u64, line: Bytes) -> Result<Answer, Gone> {
        let (sender, receiver) = oneshot::channel();
        match &mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(Gone),
        };
        self.calls.send(line).map_err(|_| Gone)?;
        receiver.await.map_err(|_| Gone)
    }

    /// The last lines of standard error of a process that has ended, as a suffix of a message.
    pub(super) async fn said(&self) -> String {
        tokio::time::sleep(STDERR_GRACE).await;
        self.said.as_suffix()
    }
}

/// Writes whole lines, even if the caller does not wait for the answer.
async fn write(mut stdin: ChildStdin, mut lines: mpsc::UnboundedReceiver<Bytes>) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Delivers answers until the process ends, or writes an invalid line.
async fn read(stdout: ChildStdout, waiting: Waiting) {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut stdout).take(MAX_ANSWER_BYTES + FRAME_BYTES);
        if !matches!(limited.read_until(b'\n', &mut line).await, Ok(1..)) || line.last() != Some(&b'\n') {
            break;
        }
        let Ok(Line { id, value, error }) = serde_json::from_slice(&line) else { break };
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // The caller may have been cancelled.
        if let Some(caller) = waiting.as_mut().and_then(|waiting| waiting.remove(&id)) {
            let _ = caller.send(error.map_or(Answer::Value(value), Answer::Error));
        }
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
}
