//! Cuts a stream of server-sent events into events without changing their bytes.

use bytes::{Bytes, BytesMut};

/// Collects bytes until events are complete.
#[derive(Debug, Default)]
pub(crate) struct EventSplitter {
    held: BytesMut,
    /// How much of it was searched for an end.
    searched: usize,
}

impl EventSplitter {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next complete event, with the empty line that ends it.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        for at in self.searched..self.held.len() {
            if self.held[at] == b'\n' && matches!(self.held[..at], [.., b'\n'] | [.., b'\n', b'\r']) {
                self.searched = 0;
                return Some(self.held.split_to(at + 1).freeze());
            }
        }
        self.searched = self.held.len();
        None
    }

    /// What is left at the end of the stream.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.searched = 0;
        self.held.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_keep_their_bytes_wherever_the_stream_is_cut() {
        let text = "data: a\n\nevent: x\r\ndata: b\r\n\r\n: c\n\ndata: rest";
        for size in 1..text.len() {
            let mut splitter = EventSplitter::default();
            let mut events = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                splitter.push(piece);
                while let Some(event) = splitter.next() {
                    events.push(String::from_utf8(event.to_vec()).unwrap());
                }
            }
            assert_eq!(events, ["data: a\n\n", "event: x\r\ndata: b\r\n\r\n", ": c\n\n"], "{size}");
            assert_eq!(splitter.rest(), "data: rest");
        }
    }
}
