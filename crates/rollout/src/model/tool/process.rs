//! Processes of this machine behind tools. They end with all that they started.

use std::{
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

use crate::record::log::{LogTail, LogWriter};

/// How much of its standard error a message shows.
const SAID_LINES: usize = 5;

/// How long the rest of what a process said may take to come.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long a killed process may take to be gone.
#[cfg(feature = "mcp")]
const GRACE: Duration = Duration::from_secs(5);

/// A process that leads a group of its own.
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
    stderr: LogTail,
    reader: JoinHandle<()>,
}

impl Process {
    pub(super) fn spawn(
        argv: &[String],
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
pub(super) struct Said(LogTail);

impl Said {
    /// The end of it, as it follows a message; nothing if there is nothing.
    pub(super) fn as_suffix(&self) -> String {
        match self.0.last_lines(SAID_LINES) {
            lines if lines.is_empty() => String::new(),
            lines => format!("; it said:\n{lines}"),
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
