//! A tool server of one's own: started for a run, and ended with it.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use secrecy::SecretString;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

use super::tools::{ToolServer, ToolServerError};
use rollout_core::{address::is_loopback, text::hex};

/// How long the server may take until it answers.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long it may take to close what is open. Longer than it takes itself to give up on that.
const FAREWELL: Duration = Duration::from_secs(30);
/// How much of its last words is kept.
const LAST_WORDS: usize = 4096;

/// Why the tool server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum AutoStartError {
    /// The configuration names one of another machine.
    #[error("`sandbox_auto_start` starts a tool server on this machine, and `sandbox_server_url` names {0}")]
    Elsewhere(String),
    /// No token can be made for it.
    #[error("no random token can be made for the tool server")]
    Token(#[source] io::Error),
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
    /// Another process answers at its address.
    #[error("what answers at {0} is not the tool server that was started for this run")]
    Stranger(String),
    /// It does not answer as a tool server does.
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
    /// Starts a server at a free port of this machine, for this process alone, and waits until it answers.
    ///
    /// Its tools may read what `roots` names, beside what its configuration allows. The server itself says where it
    /// listens, it lets only clients with the token in, and it has to be the process that was started: no other server
    /// is taken for it.
    pub(crate) async fn start(
        program: &Path,
        config: Option<&Path>,
        roots: &[PathBuf],
        timeout: Duration,
    ) -> Result<(Self, ToolServer), AutoStartError> {
        let token = new_token().map_err(AutoStartError::Token)?;
        let mut command = Command::new(program);
        command.args(["tools", "serve", "--until-stdin-closes", "--settings-from-stdin", "--port", "0"]);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the run, which still needs the server to close its sessions.
            .process_group(0)
            .kill_on_drop(true);
        let failed = |source| AutoStartError::Program { program: program.to_owned(), source };
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let words = LastWords::of(child.stderr.take());
        let mut server = Self { child, stdin, words };
        let settings = format!("{}\n", json!({ "token": token, "roots": roots }));
        let url = tokio::time::timeout(DEADLINE, server.exchange(settings.as_bytes(), stdout)).await;
        let url = match url {
            Ok(Some(url)) => url,
            Ok(None) => {
                // It closes its output when it ends, or a moment before.
                let status = tokio::time::timeout(FAREWELL, server.child.wait()).await;
                let words = server.words.all().await;
                return Err(match status {
                    Ok(Ok(status)) => AutoStartError::Ended { status, words },
                    Ok(Err(source)) => failed(source),
                    Err(_) => AutoStartError::Silent { words },
                });
            }
            Err(_) => return Err(AutoStartError::Silent { words: server.words.so_far() }),
        };
        let client = ToolServer::new(&url, Some(SecretString::from(token)), timeout)?;
        match client.pid().await? {
            Some(pid) if Some(pid) == server.child.id() => Ok((server, client)),
            _ => Err(AutoStartError::Stranger(url)),
        }
    }

    /// Gives the server its settings, and reads the address that it announces. None if it says something else or ends.
    async fn exchange(&mut self, settings: &[u8], stdout: Option<ChildStdout>) -> Option<String> {
        // A server that ended cannot read them; how it ended says more.
        let _ = self.stdin.as_mut()?.write_all(settings).await;
        let mut lines = BufReader::new(stdout?).lines();
        let line = lines.next_line().await.ok()??;
        // Whatever else it says goes nowhere, but must not fill the pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        line.rsplit_once(" at ").map(|(_, url)| url.trim().to_owned()).filter(|url| is_loopback(url))
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

/// A token that no other process can guess.
fn new_token() -> io::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
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
