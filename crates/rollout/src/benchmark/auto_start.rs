//! A tool server of one's own: started for a run, and ended with it.

use std::{
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStderr, Command},
    time::Instant,
};

use super::tools::{ToolServer, ToolServerError};

/// How long the server may take until it answers.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often it is asked.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long it may take to close what is open.
const FAREWELL: Duration = Duration::from_secs(10);
/// How much of its last words is kept.
const LAST_WORDS: usize = 4096;

/// Why the tool server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum AutoStartError {
    /// It is not on this machine.
    #[error("the tool server at {0} does not answer, and only one on this machine can be started")]
    Elsewhere(String),
    /// There is no such program.
    #[error("cannot start the tool server with `{}`", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It ended at once.
    #[error("the tool server ended before it answered ({status}){}", said(.words))]
    Ended {
        /// How.
        status: ExitStatus,
        /// What it said last.
        words: String,
    },
    /// It does not answer.
    #[error("the tool server was started and did not answer within {} seconds{}", DEADLINE.as_secs(), said(.words))]
    Silent {
        /// What it said last.
        words: String,
    },
    /// Something else answers at its address.
    #[error(transparent)]
    Server(#[from] ToolServerError),
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("; it said:\n{words}") }
}

/// A tool server that was started here. It ends when this is dropped or this process ends, however it does: its
/// standard input closes then.
#[derive(Debug)]
pub(crate) struct OwnServer {
    child: Child,
}

impl OwnServer {
    /// Starts a server at the address of this one, and waits until it answers.
    pub(crate) async fn start(
        program: &Path,
        config: Option<&Path>,
        server: &ToolServer,
    ) -> Result<Self, AutoStartError> {
        let port =
            server.loopback_port().ok_or_else(|| AutoStartError::Elsewhere(server.url().to_owned()))?;
        let mut command = Command::new(program);
        command.args(["tools", "serve", "--until-stdin-closes", "--port"]).arg(port.to_string());
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C is for the run, which still needs the server to close its sessions.
            .process_group(0)
            .kill_on_drop(true);
        let failed = |source| AutoStartError::Program { program: program.to_owned(), source };
        let mut child = command.spawn().map_err(failed)?;
        let words = Arc::new(Mutex::new(Vec::new()));
        let listening = child.stderr.take().map(|stderr| tokio::spawn(listen(stderr, Arc::clone(&words))));
        let last_words = || {
            let words = words.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&words).trim().to_owned()
        };
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                if let Some(listening) = listening {
                    // What it started may hold its output open.
                    let _ = tokio::time::timeout(Duration::from_secs(1), listening).await;
                }
                return Err(AutoStartError::Ended { status, words: last_words() });
            }
            match server.health().await {
                Ok(()) => return Ok(Self { child }),
                Err(ToolServerError::Unreachable { .. }) if Instant::now() < deadline => {}
                Err(ToolServerError::Unreachable { .. }) => {
                    return Err(AutoStartError::Silent { words: last_words() });
                }
                Err(other) => return Err(other.into()),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Has the server close what is open and end.
    pub(crate) async fn stop(mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(FAREWELL, self.child.wait()).await.is_err() {
            tracing::warn!("the tool server did not end by itself");
        }
    }
}

/// Keeps the end of what the server says.
async fn listen(mut stderr: ChildStderr, words: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = [0; 1024];
    while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend_from_slice(&chunk[..length]);
        let surplus = words.len().saturating_sub(LAST_WORDS);
        words.drain(..surplus);
    }
}
