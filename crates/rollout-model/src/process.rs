//! Processes on this machine: tool commands and scoring programs. Their descendants end with them.

use std::{
    ffi::OsStr,
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

use rollout_env::log::{LogTail, LogWriter};

/// How many lines of standard error a message shows.
const SAID_LINES: usize = 5;

/// How long to wait for the rest of a process's standard error.
const STDERR_GRACE: Duration = Duration::from_millis(500);

/// How long a killed process may take to disappear.
#[cfg(feature = "mcp")]
const GRACE: Duration = Duration::from_secs(5);

/// Why a program returned no output.
pub(super) enum RunError {
    /// It cannot be started.
    Start(io::Error),
    /// Communication with it failed, or waiting for it.
    Talk(io::Error),
    /// It wrote more than the limit.
    TooMuch,
    /// It timed out.
    Timeout(Said),
    /// It failed.
    Failed(ExitStatus, Said),
}

/// Runs a program to its end: passes the input, and reads output up to a limit in bytes.
pub(super) async fn run<S: AsRef<OsStr>>(
    argv: &[S],
    directory: Option<&Path>,
    input: &[u8],
    max_output: usize,
    timeout: Duration,
) -> Result<(Vec<u8>, Said), RunError> {
    let (process, stdout, mut stdin) = Process::spawn(argv, &[], directory).map_err(RunError::Start)?;
    let said = process.stderr();
    let feed = async move {
        // A program need not read its input.
        let _ = stdin.write_all(input).await;
        Ok(())
    };
    let collect = async {
        let mut output = Vec::new();
        let read = stdout.take(max_output as u64 + 1).read_to_end(&mut output).await;
        read.map_err(RunError::Talk)?;
        if output.len() > max_output { Err(RunError::TooMuch) } else { Ok(output) }
    };
    // Processes that it left behind may keep its output open. They are killed when it ends.
    let end = async { process.wait().await.map_err(RunError::Talk) };
    match tokio::time::timeout(timeout, async { tokio::try_join!(feed, collect, end) }).await {
        Err(_) => Err(RunError::Timeout(said)),
        Ok(talked) => match talked? {
            ((), output, status) if status.success() => Ok((output, said)),
            (_, _, status) => Err(RunError::Failed(status, said)),
        },
    }
}

/// A process that leads a process group.
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
    stderr: LogTail,
    reader: JoinHandle<()>,
}

impl Process {
    pub(super) fn spawn<S: AsRef<OsStr>>(
        argv: &[S],
        env: &[(String, String)],
        directory: Option<&Path>,
    ) -> io::Result<(Self, ChildStdout, ChildStdin)> {
        let (program, arguments) = argv
            .split_first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"))?;
        let mut command = Command::new(program);
        command.args(arguments).envs(env.iter().map(|(name, value)| (name, value))).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        if let Some(directory) = directory {
            command.current_dir(directory);
        }
        let mut child = command.spawn()?;
        let taken = || io::Error::other("a standard stream is missing");
        let stdin = child.stdin.take().ok_or_else(taken)?;
        let stdout = child.stdout.take().ok_or_else(taken)?;
        let stderr = child.stderr.take().ok_or_else(taken)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let log = LogWriter::discard();
        let tail = log.tail();
        let reader = tokio::spawn(keep(stderr, log));
        Ok((Self { child, group, stderr: tail, reader }, stdout, stdin))
    }

    /// The last lines of its standard error.
    pub(super) fn stderr(&self) -> Said {
        Said(self.stderr.clone())
    }

    /// Waits for its exit, kills the processes that it left behind, and returns its exit status.
    pub(super) async fn wait(mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.kill_group();
        let _ = tokio::time::timeout(STDERR_GRACE, &mut self.reader).await;
        Ok(status)
    }

    /// Kills it and its descendants, and waits for its exit.
    #[cfg(feature = "mcp")]
    pub(super) async fn end(mut self) {
        // A process with closed streams may end by itself. Its standard error is complete when the stream ends.
        let _ = tokio::time::timeout(STDERR_GRACE, &mut self.reader).await;
        self.kill_group();
        let _ = tokio::time::timeout(GRACE, self.child.wait()).await;
    }

    /// Once only, and at the latest right after waiting for the leader: later, another group may have the same number.
    fn kill_group(&mut self) {
        if let Some(group) = self.group.take() {
            // The group may no longer exist.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// The standard error of a process.
#[derive(Debug, Clone)]
pub(super) struct Said(LogTail);

impl Said {
    /// Its last lines, in a form to append to a message; empty if there are none.
    pub(super) fn as_suffix(&self) -> String {
        match self.0.last_lines(SAID_LINES) {
            lines if lines.is_empty() => String::new(),
            lines if lines.contains('\n') => format!("; stderr:\n{lines}"),
            line => format!("; stderr: {line}"),
        }
    }
}

/// Reads until the end, so that the process never blocks on writing.
async fn keep(mut stderr: ChildStderr, mut log: LogWriter) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        if log.write(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
