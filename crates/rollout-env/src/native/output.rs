//! Writes the output of commands to their files, as long as processes inside may write.
//!
//! A service that an agent started keeps the agent's output pipes open. If they were closed or not read, the
//! service would block or die at its next line, so they are read until the environment is gone.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
};

use rustix::io::Errno;
use tokio::{
    net::unix::pipe::{self, Receiver},
    sync::oneshot,
    task::JoinHandle,
};

use crate::log::LogWriter;

/// The most bytes that a pipe can hold when its command ends: the limit for an ordinary user.
const MAX_PIPE_BYTES: usize = 1 << 20;

const CHUNK_BYTES: usize = 64 << 10;

/// A pipe whose read end is used here and whose write end goes to a command.
pub(super) fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((receiver, sender.into_blocking_fd()?))
}

/// The readers of one environment's output.
#[derive(Default)]
pub(super) struct Pumps(Mutex<Vec<JoinHandle<()>>>);

impl Pumps {
    /// Starts to copy a command's stream to its log.
    pub(super) fn start(&self, pipe: Receiver, log: LogWriter) -> Pump {
        let (exited, on_exit) = oneshot::channel();
        let (tell, caught_up) = oneshot::channel();
        let task = tokio::spawn(pump(pipe, log, on_exit, tell));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        Pump { exited, caught_up }
    }

    /// Waits for the ends of all streams, which close when all processes inside have ended.
    pub(super) async fn finish(self) {
        for task in self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let _ = task.await;
        }
    }
}

/// One stream being read.
pub(super) struct Pump {
    exited: oneshot::Sender<()>,
    caught_up: oneshot::Receiver<()>,
}

impl Pump {
    /// Waits until all output of the command itself is written.
    pub(super) async fn catch_up(self) {
        let _ = self.exited.send(());
        let _ = self.caught_up.await;
    }
}

async fn pump(
    pipe: Receiver,
    mut log: LogWriter,
    mut on_exit: oneshot::Receiver<()>,
    tell: oneshot::Sender<()>,
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut broken = false;
    let mut keep = async |log: &mut LogWriter, bytes: &[u8]| {
        // A full disk must not block the command, and is reported once.
        if let Err(error) = log.write(bytes).await
            && !std::mem::replace(&mut broken, true)
        {
            tracing::warn!(%error, "cannot write captured output");
        }
    };
    let mut open = true;
    while open {
        tokio::select! {
            ready = pipe.readable() => {
                if ready.is_err() {
                    break;
                }
                match pipe.try_read(&mut chunk) {
                    Ok(0) => open = false,
                    Ok(count) => keep(&mut log, &chunk[..count]).await,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => open = false,
                }
            }
            _ = &mut on_exit => break,
        }
    }
    let mut drained = 0;
    while open && drained < MAX_PIPE_BYTES {
        // Read the pipe directly: the runtime may not know yet that data is available.
        match rustix::io::retry_on_intr(|| rustix::io::read(&pipe, &mut chunk[..])) {
            Ok(0) => open = false,
            Ok(count) => {
                drained += count;
                keep(&mut log, &chunk[..count]).await;
            }
            Err(Errno::AGAIN) => break,
            Err(_) => open = false,
        }
    }
    if !open {
        let _ = log.finish().await;
        let _ = tell.send(());
        return;
    }
    let _ = log.flush().await;
    let _ = tell.send(());
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                keep(&mut log, &chunk[..count]).await;
                let _ = log.flush().await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    let _ = log.finish().await;
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write as _};

    use super::*;

    #[tokio::test]
    async fn the_output_of_a_command_is_written_when_it_has_ended() {
        for _ in 0..100 {
            let (outer, inner) = pipe().unwrap();
            let (log, excerpt) = LogWriter::excerpt(100);
            let pumps = Pumps::default();
            let pump = pumps.start(outer, log);
            // A service that the command started keeps the pipe open.
            let mut inner = File::from(inner);
            inner.write_all(b"last words").unwrap();
            // The runtime has not been notified of the data yet.
            pump.catch_up().await;
            assert_eq!(excerpt.text().0, "last words");
        }
    }
}
