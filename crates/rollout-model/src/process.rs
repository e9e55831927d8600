//! Processes of this machine: commands behind tools, and programs that score. They end with all that they started.

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

/// How much of its standard error a message shows.
const SAID_LINES: usize = 5;

/// How long the rest of what a process said may take to come.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long a killed process may take to be gone.
#[cfg(feature = "mcp")]
const GRACE: Duration = Duration::from_secs(5);

/// Why a program gave no output.
pub(super) enum RunError {
    /// It cannot be started.
    Start(io::Error),
    /// It cannot be listened to, or waited for.
    Talk(io::Error),
    /// It wrote more than it may.
    TooMuch,
    /// It still ran when its time was up.
    Timeout(Said),
    /// It failed.
    Failed(ExitStatus, Said),
}

/// Runs a program to its end: gives it the input, and takes at most so many bytes of output.
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
        // A program need not read what it does not want to know.
        let _ = stdin.write_all(input).await;
        Ok(())
    };
    let collect = async {
        let mut output = Vec::new();
        let read = stdout.take(max_output as u64 + 1).read_to_end(&mut output).await;
        read.map_err(RunError::Talk)?;
        if output.len() > max_output { Err(RunError::TooMuch) } else { Ok(output) }
    };
    // What it left behind may hold its output open, and is killed when it ends.
    let end = async { process.wait().await.map_err(RunError::Talk) };
    match tokio::time::timeout(timeout, async { tokio::try_join!(feed, collect, end) }).await {
        Err(_) => Err(RunError::Timeout(said)),
        Ok(talked) => match talked? {
            ((), output, status) if status.success() => Ok((output, said)),
            (_, _, status) => Err(RunError::Failed(status, said)),
        },
    }
}

/// A process that leads a group of its own.
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
        let (program, arguments) =
            argv.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no program"))?;
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

    /// A view of the end of what it writes to its standard error.
    pub(super) fn stderr(&self) -> Said {
        Said(self.stderr.clone())
    }

    /// Waits until it ends by itself, then kills what it left behind, and returns how it ended.
    pub(super) async fn wait(mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.kill_group();
        let _ = tokio::time::timeout(LAST_WORDS, &mut self.reader).await;
        Ok(status)
    }

    /// Kills it and all that it started, and waits until it is gone.
    #[cfg(feature = "mcp")]
    pub(super) async fn end(mut self) {
        // One that nobody speaks to any more may end by itself, and has said all when its stream ends.
        let _ = tokio::time::timeout(LAST_WORDS, &mut self.reader).await;
        self.kill_group();
        let _ = tokio::time::timeout(GRACE, self.child.wait()).await;
    }

    /// Once only, and at the latest right after the leader was waited for: later on the number of the group may be
    /// somebody else's.
    fn kill_group(&mut self) {
        if let Some(group) = self.group.take() {
            // All of the group may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// What a process writes to its standard error.
#[derive(Debug, Clone)]
pub(super) struct Said(LogTail);

impl Said {
    /// The end of it, as it follows a message; nothing if there is nothing.
    pub(super) fn as_suffix(&self) -> String {
        match self.0.last_lines(SAID_LINES) {
            lines if lines.is_empty() => String::new(),
            lines if lines.contains('\n') => format!("; it said:\n{lines}"),
            line => format!("; it said: {line}"),
        }
    }
}

/// Reads until the end, so that the process never waits for a reader.
async fn keep(mut stderr: ChildStderr, mut log: LogWriter) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        if log.write(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
