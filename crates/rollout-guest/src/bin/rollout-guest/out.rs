//! The connection back to the host, shared by all threads.

use std::{
    fs::File,
    io::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rollout_guest::{GuestReply, encode_reply};

/// Sends whole replies. Blocks while the host does not read.
#[derive(Clone)]
pub(crate) struct Out {
    stream: Arc<Mutex<File>>,
    /// Whether the guest keeps running after the host has closed the stream.
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

    /// Sends the result of a request.
    pub(crate) fn answer(&self, id: u32, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.send(id, &GuestReply::Done),
            Err(reason) => self.send(id, &GuestReply::Failed(shorten(reason))),
        }
    }

    /// Keeps the guest running when the streams close.
    pub(crate) fn stay(&self) {
        self.alone.store(true, Ordering::SeqCst);
    }

    pub(crate) fn may_be_alone(&self) -> bool {
        self.alone.load(Ordering::SeqCst)
    }
}

/// Shortens a text, because the paths in it may be of any length.
fn shorten(mut text: String) -> String {
    const LONGEST: usize = 8 << 10;
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
