//! The way back to the host, which all threads share.

use std::{
    fs::File,
    io::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rollout_guest::{GuestReply, encode_reply};

/// Sends replies, each whole. A host that does not read makes the sender wait.
#[derive(Clone)]
pub(crate) struct Out {
    stream: Arc<Mutex<File>>,
    /// Nobody reads any more, and that is no reason to end.
    alone: Arc<AtomicBool>,
}

impl Out {
    pub(crate) fn new(stream: File) -> Self {
        Self { stream: Arc::new(Mutex::new(stream)), alone: Arc::default() }
    }

    pub(crate) fn send(&self, id: u32, reply: &GuestReply) {
        let frame = encode_reply(id, reply);
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.write_all(&frame).is_err() && !self.may_be_alone() {
            std::process::exit(0);
        }
    }

    /// Sends how a request went.
    pub(crate) fn answer(&self, id: u32, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.send(id, &GuestReply::Done),
            Err(reason) => self.send(id, &GuestReply::Failed(shorten(reason))),
        }
    }

    /// From now on the end of the streams ends nothing.
    pub(crate) fn stay(&self) {
        self.alone.store(true, Ordering::SeqCst);
    }

    pub(crate) fn may_be_alone(&self) -> bool {
        self.alone.load(Ordering::SeqCst)
    }
}

/// Cuts a text that names paths, which may be as long as an agent likes.
fn shorten(mut text: String) -> String {
    const LONGEST: usize = 8 << 10;
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
