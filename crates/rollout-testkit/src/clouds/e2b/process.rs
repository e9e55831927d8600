//! A process that the agent of a sandbox started. It outlives the stream of its output.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    sync::{Notify, mpsc},
};

use super::{Sandbox, build::locked};
use crate::piped::{Piped, exit_code};

/// The bytes of output that are read at a time.
const PIECE: usize = 32 << 10;

/// The messages that wait for a slow reader.
const QUEUE: usize = 16;

/// A message of a process.
pub(super) enum Event {
    /// Standard output, or standard error.
    Output { is_stdout: bool, bytes: Vec<u8> },
    /// Its end, with the exit code.
    End(i32),
    /// Its sandbox has ended.
    Lost,
}

/// A process.
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) tag: Option<String>,
    pub(super) config: Value,
    stdin: tokio::sync::Mutex<Option<pipe::Sender>>,
    kill: Notify,
    is_killed: AtomicBool,
}

impl Process {
    /// Follows a process until it ends, and returns its messages.
    pub(super) fn follow(
        sandbox: &Arc<Sandbox>,
        tag: Option<String>,
        config: Value,
        mut piped: Piped,
    ) -> (u32, mpsc::Receiver<Event>) {
        let pid = sandbox.pids.fetch_add(1, Ordering::Relaxed);
        let process = Arc::new(Self {
            pid,
            tag,
            config,
            stdin: tokio::sync::Mutex::new(piped.stdin.take()),
            kill: Notify::new(),
            is_killed: AtomicBool::new(false),
        });
        locked(&sandbox.processes).insert(pid, Arc::clone(&process));
        let (sender, events) = mpsc::channel(QUEUE);
        let outputs = [
            tokio::spawn(pump(true, piped.stdout, sender.clone())),
            tokio::spawn(pump(false, piped.stderr, sender.clone())),
        ];
        let sandbox = Arc::clone(sandbox);
        tokio::spawn(async move {
            let mut running = piped.process;
            let ended = loop {
                tokio::select! {
                    ended = running.wait() => break ended,
                    () = process.kill.notified() => {
                        // An error means that the sandbox is gone.
                        let _ = running.kill_tree().await;
                    }
                }
            };
            for output in outputs {
                // Processes that it left behind may keep its output open.
                if process.is_killed.load(Ordering::Relaxed) || ended.is_err() {
                    output.abort();
                }
                let _ = output.await;
            }
            locked(&sandbox.processes).remove(&pid);
            let event = ended.map_or(Event::Lost, |exit| Event::End(exit_code(exit.status)));
            // The reader may have disconnected.
            let _ = sender.send(event).await;
        });
        (pid, events)
    }

    /// Writes to its input; returns whether it has one.
    pub(super) async fn write(&self, bytes: &[u8]) -> bool {
        match &mut *self.stdin.lock().await {
            Some(stdin) => stdin.write_all(bytes).await.is_ok(),
            None => false,
        }
    }

    pub(super) async fn close_stdin(&self) {
        *self.stdin.lock().await = None;
    }

    pub(super) fn kill(&self) {
        self.is_killed.store(true, Ordering::Relaxed);
        self.kill.notify_one();
    }

    /// The process in a list.
    pub(super) fn json(&self) -> Value {
        let mut listed = json!({"pid": self.pid, "config": self.config});
        if let Some(tag) = &self.tag {
            listed["tag"] = tag.as_str().into();
        }
        listed
    }
}

/// Passes output on. Without a reader it is dropped, so that the process does not wait.
async fn pump(is_stdout: bool, mut output: pipe::Receiver, events: mpsc::Sender<Event>) {
    let mut buffer = vec![0; PIECE];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        let _ = events.send(Event::Output { is_stdout, bytes: buffer[..length].to_vec() }).await;
    }
}

impl Event {
    /// The message in the form of the protocol.
    pub(super) fn json(&self) -> Value {
        let event = match self {
            Self::Output { is_stdout, bytes } => {
                let name = if *is_stdout { "stdout" } else { "stderr" };
                json!({"data": {name: BASE64_STANDARD.encode(bytes)}})
            }
            Self::End(code) => {
                json!({"end": {"exitCode": code, "exited": true, "status": format!("exit status {code}")}})
            }
            Self::Lost => json!({"end": {"exitCode": -1, "exited": false, "status": "signal: killed"}}),
        };
        json!({"event": event})
    }
}
