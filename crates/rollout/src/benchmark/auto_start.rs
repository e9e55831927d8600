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
    process::{Child, ChildStderr, ChildStdin, Command},
    task::JoinHandle,
    time::Instant,
};

use super::tools::{ToolServer, ToolServerError};
use rollout_core::address::is_loopback;

/// How long the server may take until it answers.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often it is asked.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long it may take to close what is open. Longer than it takes itself to give up on that.
const FAREWELL: Duration = Duration::from_secs(30);
/// How much of its last words is kept.
const LAST_WORDS: usize = 4096;

/// Why the tool server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum AutoStartError {
    /// It is not on this machine.
    #[error("the tool server at {0} does not answer, and only one on this machine can be started")]
    Elsewhere(String),
    /// It is to be reached in a way that it does not offer.
    #[error("the tool server at {0} does not answer, and one that is started here speaks no `https`")]
    Encrypted(String),
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
    /// It ended while it was needed.
    #[error("the tool server of this run ended in the middle of it ({status}){}", said(.words))]
    Died {
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
    /// The server lives as long as this is open.
    stdin: Option<ChildStdin>,
    words: LastWords,
}

/// The end of what a server says.
#[derive(Debug, Default)]
struct LastWords {
    text: Arc<Mutex<Vec<u8>>>,
    listening: Option<JoinHandle<()>>,
}

impl LastWords {
    fn of(stderr: Option<ChildStderr>) -> Self {
        let text = Arc::default();
        let listening = stderr.map(|stderr| tokio::spawn(listen(stderr, Arc::clone(&text))));
        Self { text, listening }
    }

    fn so_far(&self) -> String {
        let words = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&words).trim().to_owned()
    }

    /// All of them, of a server that has ended.
    async fn all(&mut self) -> String {
        if let Some(listening) = self.listening.take() {
            // What it started may hold its output open.
            let _ = tokio::time::timeout(Duration::from_secs(1), listening).await;
        }
        self.so_far()
    }
}

impl OwnServer {
    /// Starts a server at the address of this one, and waits until it answers.
    pub(crate) async fn start(
        program: &Path,
        config: Option<&Path>,
        server: &ToolServer,
    ) -> Result<Self, AutoStartError> {
        let (host, port) = server.loopback().ok_or_else(|| {
            let url = server.url().to_owned();
            if is_loopback(&url) { AutoStartError::Encrypted(url) } else { AutoStartError::Elsewhere(url) }
        })?;
        let mut command = Command::new(program);
        command.args(["tools", "serve", "--until-stdin-closes"]);
        command.args(["--host", &host.to_string(), "--port", &port.to_string()]);
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
        let stdin = child.stdin.take();
        let mut words = LastWords::of(child.stderr.take());
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Err(AutoStartError::Ended { status, words: words.all().await });
            }
            match server.health().await {
                Ok(()) => return Ok(Self { child, stdin, words }),
                Err(ToolServerError::Unreachable { .. }) if Instant::now() < deadline => {}
                Err(ToolServerError::Unreachable { .. }) => {
                    return Err(AutoStartError::Silent { words: words.so_far() });
                }
                Err(other) => return Err(other.into()),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Waits until the server ends, which it should not before it is told to.
    pub(crate) async fn died(&mut self) -> AutoStartError {
        match self.child.wait().await {
            Ok(status) => AutoStartError::Died { status, words: self.words.all().await },
            // Nobody can say how it is.
            Err(_) => std::future::pending().await,
        }
    }

    /// Has the server close what is open and end.
    pub(crate) async fn stop(mut self) {
        drop(self.stdin.take());
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
