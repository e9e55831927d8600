//! Ctrl-C and its kin: the first asks the job to stop in good order, the second to stop at once.

use std::io;

use rollout::job::Cancel;
use tokio::signal::unix::{SignalKind, signal};

/// Listens from now on. Must be called on the runtime.
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
