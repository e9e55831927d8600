//! Ctrl-C and similar signals: the first stops the job gracefully, the second stops it immediately.

use std::io;

use rollout::job::Cancel;
use tokio::signal::unix::{SignalKind, signal};

/// Starts to listen for signals. Must be called on the runtime.
pub(crate) fn listen() -> io::Result<Cancel> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let cancel = Cancel::default();
    let tokens = cancel.clone();
    tokio::spawn(async move {
        for token in [&tokens.graceful, &tokens.now] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            token.cancel();
        }
    });
    Ok(cancel)
}
