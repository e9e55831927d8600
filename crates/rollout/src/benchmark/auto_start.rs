//! Starts a tool server for a run, and stops it with the run.

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

/// The timeout for the start of the server.
const DEADLINE: Duration = Duration::from_secs(60);
/// The timeout for closing sessions at the end. Longer than the server's own timeout.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// How many bytes of its last output are kept.
const MAX_OUTPUT_TAIL: usize = 4096;

/// Why the tool server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum AutoStartError {
    /// The configuration names a server on another machine.
    #[error("`sandbox_auto_start` starts a tool server on this machine, but `sandbox_server_url` is {0}")]
    Elsewhere(String),
    /// A token cannot be created.
    #[error("cannot create a random token for the tool server")]
    Token(#[source] io::Error),
    /// The program cannot be started.
    #[error("cannot start the tool server with `{}`", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It exited during the start.
    #[error("the tool server exited before it was ready ({status}){}", said(.words))]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        words: String,
    },
    /// It exited during the run.
    #[error("the tool server exited during the run ({status}){}", said(.words))]
    Died {
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        words: String,
    },
    /// It did not answer in time.
    #[error("the tool server did not answer within {} seconds after its start{}", DEADLINE.as_secs(), said(.words))]
    Silent {
        /// The end of its output.
        words: String,
    },
    /// Another process answers at its address.
    #[error("the server at {0} is not the tool server that was started for this run")]
    OtherProcess(String),
    /// It does not follow the protocol of tool servers.
    #[error(transparent)]
    Server(#[from] ToolServerError),
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("; its output:\n{words}") }
}

/// A tool server that this process started. It exits when this is dropped or this process ends, because its standard
/// input closes then.
#[derive(Debug)]
pub(crate) struct OwnServer {
    child: Child,
    /// The server runs as long as this is open.
    stdin: Option<ChildStdin>,
    words: OutputTail,
}

/// The end of a server's output.
#[derive(Debug, Default)]
struct OutputTail {
    text: Arc<Mutex<Vec<u8>>>,
    listening: Option<JoinHandle<()>>,
}

impl OutputTail {
    fn of(stderr: Option<ChildStderr>) -> Self {
        let text = Arc::default();
        let listening = stderr.map(|stderr| tokio::spawn(listen(stderr, Arc::clone(&text))));
        Self { text, listening }
    }

    fn so_far(&self) -> String {
        let words = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&words).trim().to_owned()
    }

    /// The whole tail, after the server has exited.
    async fn all(&mut self) -> String {
        if let Some(listening) = self.listening.take() {
            // Its child processes may keep the output open.
            let _ = tokio::time::timeout(Duration::from_secs(1), listening).await;
        }
        self.so_far()
    }
}

impl OwnServer {
    /// Starts a server at a free port of this machine, for this process only, and waits until it answers.
    ///
    /// Its tools may read the paths in `roots`, in addition to what its configuration allows. The server itself reports
    /// its address, accepts only clients with the token, and must be the process that was started, so no other server
    /// can take its place.
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
            // Ctrl-C goes to the run, which still needs the server to close its sessions.
            .process_group(0)
            .kill_on_drop(true);
        let failed = |source| AutoStartError::Program { program: program.to_owned(), source };
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let words = OutputTail::of(child.stderr.take());
        let mut server = Self { child, stdin, words };
        let settings = format!("{}\n", json!({ "token": token, "roots": roots }));
        let url = tokio::time::timeout(DEADLINE, server.exchange(settings.as_bytes(), stdout)).await;
        let url = match url {
            Ok(Some(url)) => url,
            Ok(None) => {
                // It closes its output when it exits, or shortly before.
                let status = tokio::time::timeout(STOP_TIMEOUT, server.child.wait()).await;
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
            _ => Err(AutoStartError::OtherProcess(url)),
        }
    }

    /// Sends the settings to the server, and reads the address that it reports. None if it prints something else or
    /// exits.
    async fn exchange(&mut self, settings: &[u8], stdout: Option<ChildStdout>) -> Option<String> {
        // A server that exited cannot read them; its exit status is reported instead.
        let _ = self.stdin.as_mut()?.write_all(settings).await;
        let mut lines = BufReader::new(stdout?).lines();
        let line = lines.next_line().await.ok()??;
        // Other output is discarded, so that the pipe never fills.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        line.rsplit_once(" at ").map(|(_, url)| url.trim().to_owned()).filter(|url| is_loopback(url))
    }

    /// Waits until the server exits, which it should not do before it is stopped.
    pub(crate) async fn died(&mut self) -> AutoStartError {
        match self.child.wait().await {
            Ok(status) => AutoStartError::Died { status, words: self.words.all().await },
            // Its state is unknown.
            Err(_) => std::future::pending().await,
        }
    }

    /// Asks the server to close its sessions and to exit.
    pub(crate) async fn stop(mut self) {
        drop(self.stdin.take());
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            tracing::warn!("the tool server did not exit by itself");
        }
    }
}

/// A token that no other process can guess.
fn new_token() -> io::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

/// Keeps the end of the server's output.
async fn listen(mut stderr: ChildStderr, words: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = [0; 1024];
    while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend_from_slice(&chunk[..length]);
        let surplus = words.len().saturating_sub(MAX_OUTPUT_TAIL);
        words.drain(..surplus);
    }
}
