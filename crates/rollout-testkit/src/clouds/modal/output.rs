//! The output of a command, which clients read from any recent position.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{io::AsyncReadExt as _, net::unix::pipe, sync::watch};

/// The bytes that are kept before the last position that was read, and that may wait after it.
const ROOM: u64 = 4 << 20;

/// The most bytes of an answer.
const PART: usize = 64 << 10;

/// What a command has written to one of its files.
#[derive(Default)]
pub(super) struct Output {
    state: Mutex<Written>,
    /// Changes with the state.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Written {
    bytes: VecDeque<u8>,
    /// The position of the first byte that is kept.
    start: u64,
    /// The position up to which a client has read.
    read: u64,
    is_closed: bool,
}

impl Output {
    /// Reads a pipe to its end. A client that does not read stops the command.
    pub(super) async fn fill(&self, mut pipe: pipe::Receiver) {
        let mut changes = self.changed.subscribe();
        let mut piece = vec![0; PART];
        loop {
            // The sender is a part of `self`.
            let _ = changes.wait_for(|()| self.lock().waiting() < ROOM).await;
            let count = pipe.read(&mut piece).await.unwrap_or(0);
            let mut state = self.lock();
            state.bytes.extend(&piece[..count]);
            state.is_closed = count == 0;
            drop(state);
            self.changed.send_replace(());
            if count == 0 {
                return;
            }
        }
    }

    /// The bytes from a position on, when there are some; `None` at the end, or if they are not kept any more.
    pub(super) async fn read(&self, from: u64) -> Option<Vec<u8>> {
        let mut changes = self.changed.subscribe();
        let _ = changes
            .wait_for(|()| {
                let state = self.lock();
                state.is_closed || state.end() > from
            })
            .await;
        let mut state = self.lock();
        let skipped = usize::try_from(from.checked_sub(state.start)?).ok()?;
        let part: Vec<u8> = state.bytes.iter().skip(skipped).take(PART).copied().collect();
        state.read = state.read.max(from + part.len() as u64);
        let surplus = state.read.saturating_sub(ROOM).saturating_sub(state.start);
        state.bytes.drain(..usize::try_from(surplus).unwrap_or(0));
        state.start += surplus;
        drop(state);
        self.changed.send_replace(());
        (!part.is_empty()).then_some(part)
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn waiting(&self) -> u64 {
        self.end() - self.read
    }
}
