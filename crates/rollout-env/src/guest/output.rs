//! Writes the output of commands to their files, as long as processes inside may write.
//!
//! A service that an agent started keeps the agent's output open, so it is read until the environment is gone.

use std::sync::{Mutex, PoisonError};

use rollout_guest::{Ending, GuestReply, Stream};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::connection::Taken;
use crate::{
    environment::{Exit, Outcome},
    log::LogWriter,
};

/// How a command came to its end.
pub(super) enum End {
    /// The command ran.
    Exited(Exit),
    /// The command could not be started.
    Failed(String),
    /// The guest sent an invalid reply.
    Invalid,
}

/// The readers of one environment's output.
#[derive(Default)]
pub(super) struct Pumps(Mutex<Vec<JoinHandle<()>>>);

impl Pumps {
    /// Writes a command's output to its logs. The end of the command is returned when all its own output is
    /// written.
    pub(super) fn start(
        &self,
        replies: mpsc::Receiver<GuestReply>,
        taken: Taken,
        stdout: LogWriter,
        stderr: LogWriter,
    ) -> oneshot::Receiver<End> {
        let (tell, end) = oneshot::channel();
        let logs = [Log::new(stdout), Log::new(stderr)];
        let task = tokio::spawn(pump(replies, taken, logs, tell));
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
        end
    }

    /// Waits until everything is written. The stream must have ended before.
    pub(super) async fn finish(self) {
        for task in self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let _ = task.await;
        }
    }
}

struct Log {
    writer: LogWriter,
    open: bool,
    broken: bool,
}

impl Log {
    fn new(writer: LogWriter) -> Self {
        Self { writer, open: true, broken: false }
    }

    /// A full disk must not block the command, and is reported once.
    async fn write(&mut self, bytes: &[u8]) {
        if let Err(error) = self.writer.write(bytes).await
            && !std::mem::replace(&mut self.broken, true)
        {
            tracing::warn!(%error, "cannot write captured output");
        }
    }

    async fn flush(&mut self) {
        let _ = self.writer.flush().await;
    }

    async fn finish(&mut self) {
        if std::mem::replace(&mut self.open, false) {
            let _ = self.writer.finish().await;
        }
    }
}

async fn pump(
    mut replies: mpsc::Receiver<GuestReply>,
    mut taken: Taken,
    mut logs: [Log; 2],
    tell: oneshot::Sender<End>,
) {
    let mut tell = Some(tell);
    while tell.is_some() || logs.iter().any(|log| log.open) {
        let Some(reply) = replies.recv().await else { break };
        let end = match reply {
            GuestReply::Output { stream, bytes } => {
                let log = &mut logs[usize::from(stream == Stream::Stderr)];
                if bytes.is_empty() {
                    log.finish().await;
                } else if log.open {
                    log.write(&bytes).await;
                    if tell.is_none() {
                        log.flush().await;
                    }
                }
                taken.one();
                continue;
            }
            GuestReply::Exited { ending, oom_killed } => {
                for log in logs.iter_mut().filter(|log| log.open) {
                    log.flush().await;
                }
                End::Exited(Exit { outcome: outcome(ending), oom_killed })
            }
            GuestReply::Failed(reason) => {
                for log in &mut logs {
                    log.finish().await;
                }
                End::Failed(reason)
            }
            _ => End::Invalid,
        };
        if let Some(tell) = tell.take() {
            let _ = tell.send(end);
        }
    }
    for log in &mut logs {
        log.finish().await;
    }
}

fn outcome(ending: Ending) -> Outcome {
    match ending {
        Ending::Code(code) => Outcome::Code(code),
        Ending::Signal(signal) => Outcome::Signal(signal),
        Ending::TimedOut => Outcome::TimedOut,
    }
}
