//! Copies a file or tree out of a sandbox: sends it to the engine step by step, in the format of a container's
//! guest.

use std::{fs::File, io::Write as _, os::fd::OwnedFd};

use rollout_guest::{
    CopyLimits, GuestReply, Item, encode_reply,
    files::{CopySink, FileResult},
};

use super::FILES;

/// Sends the content of `source`, or `source` itself if it is a file. The subdirectory `first` is sent before
/// the rest.
pub(super) fn copy_out(
    (source, first): (&str, Option<&str>),
    stream: OwnedFd,
    limits: CopyLimits,
) -> FileResult<()> {
    let mut engine = ToEngine { stream: File::from(stream), gone: false };
    rollout_guest::files::copy_out(FILES, source, first, limits, &mut engine)
}

struct ToEngine {
    stream: File,
    gone: bool,
}

impl ToEngine {
    fn send(&mut self, reply: &GuestReply) {
        // The engine closes its end when it wants no more.
        self.gone |= self.stream.write_all(&encode_reply(0, reply)).is_err();
    }
}

impl CopySink for ToEngine {
    fn is_cancelled(&self) -> bool {
        self.gone
    }

    fn step(&mut self, item: Item) {
        self.send(&GuestReply::Item(item));
    }

    fn skipped(&mut self, path: String, reason: String) {
        self.send(&GuestReply::Skipped { path, reason });
    }
}
