//! One container of a pod: its process, its input, and the readers of its output.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rollout_sandbox::SandboxProcess;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::piped::{Piped, ProcessSettings, exit_code};

/// The largest piece of output that is sent at once.
const PIECE: usize = 32 * 1024;

/// The number of pieces that a slow reader may be behind before the container waits for it.
const QUEUE: usize = 16;

/// The size of a log; the rest is dropped.
const MAX_LOG: usize = 1 << 20;

/// A piece of output, with its channel: 1 for stdout, 2 for stderr.
pub(super) type Output = (u8, Bytes);

/// A container that was started.
pub(super) struct Container {
    stdin: tokio::sync::Mutex<Option<pipe::Sender>>,
    pub(super) stdin_once: bool,
    readers: Mutex<Vec<mpsc::Sender<Output>>>,
    log: Mutex<Vec<u8>>,
    /// The exit code, once it has ended.
    ended: watch::Sender<Option<i32>>,
}

/// The settings of a container of a pod.
pub(super) fn settings(pod: &Value, container: &Value) -> ProcessSettings {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env = vec![
        ("PATH".to_owned(), path.to_owned()),
        ("HOSTNAME".to_owned(), pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()),
    ];
    for variable in container["env"].as_array().into_iter().flatten() {
        let Some(name) = variable["name"].as_str() else { continue };
        let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
        let field = field.map(|path| path.split('.').fold(pod, |value, part| &value[part]));
        let value = field.unwrap_or(&variable["value"]).as_str().unwrap_or_default();
        env.push((name.to_owned(), value.to_owned()));
    }
    let user = |settings: &Value| settings["securityContext"]["runAsUser"].as_u64();
    ProcessSettings {
        env,
        cwd: container["workingDir"].as_str().unwrap_or("/").to_owned(),
        user: user(container).or_else(|| user(&pod["spec"])).map(|user| user.to_string()),
    }
}

impl Container {
    /// Follows a process until it ends.
    pub(super) fn follow(mut piped: Piped, stdin_once: bool) -> Arc<Self> {
        let container = Arc::new(Self {
            stdin: tokio::sync::Mutex::new(piped.stdin.take()),
            stdin_once,
            readers: Mutex::default(),
            log: Mutex::default(),
            ended: watch::Sender::new(None),
        });
        let outputs = [
            tokio::spawn(Arc::clone(&container).pump(1, piped.stdout)),
            tokio::spawn(Arc::clone(&container).pump(2, piped.stderr)),
        ];
        tokio::spawn(Arc::clone(&container).wait(piped.process, outputs));
        container
    }

    async fn wait(self: Arc<Self>, mut process: SandboxProcess, outputs: [JoinHandle<()>; 2]) {
        let code = match process.wait().await {
            Ok(exit) => exit_code(exit.status),
            // Killed with its sandbox.
            Err(_) => 137,
        };
        // A container ends with its first process. If this fails, the sandbox is gone with all processes.
        let _ = process.kill_tree().await;
        for output in outputs {
            // A reader that panicked has printed why.
            let _ = output.await;
        }
        self.ended.send_replace(Some(code));
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.stdin.lock().await = None;
    }

    /// Passes output to the log and to all readers.
    async fn pump(self: Arc<Self>, channel: u8, mut output: pipe::Receiver) {
        let mut buffer = vec![0; PIECE];
        // An error means that the sandbox is gone.
        while let Ok(length @ 1..) = output.read(&mut buffer).await {
            let piece = Bytes::copy_from_slice(&buffer[..length]);
            let readers = {
                let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_LOG.saturating_sub(log.len()).min(length);
                log.extend_from_slice(&piece[..room]);
                let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
                readers.retain(|reader| !reader.is_closed());
                readers.clone()
            };
            for reader in readers {
                // A reader may disconnect meanwhile.
                let _ = reader.send((channel, piece.clone())).await;
            }
        }
    }

    /// The output from now on, until the container ends.
    pub(super) fn attach(&self) -> mpsc::Receiver<Output> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ended.borrow().is_none() {
            readers.push(sender);
        }
        receiver
    }

    /// Writes to the standard input. Returns whether it is still open.
    pub(super) async fn write(&self, data: &[u8]) -> bool {
        match &mut *self.stdin.lock().await {
            Some(stdin) => stdin.write_all(data).await.is_ok(),
            None => false,
        }
    }

    pub(super) async fn close_stdin(&self) {
        *self.stdin.lock().await = None;
    }

    /// The output so far.
    pub(super) fn log(&self) -> Vec<u8> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The exit code, if it has ended.
    pub(super) fn exit_code(&self) -> Option<i32> {
        *self.ended.borrow()
    }

    /// Waits for the exit code.
    pub(super) async fn end(&self) -> i32 {
        let mut ended = self.ended.subscribe();
        let code = ended.wait_for(Option::is_some).await.map(|code| *code);
        code.ok().flatten().unwrap_or(137)
    }
}
