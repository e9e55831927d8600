//! A copy out of the container, sent to the host step by step.

use std::sync::atomic::{AtomicBool, Ordering};

use rollout_guest::{
    CopyLimits, GuestReply, Item,
    files::{CopySink, copy_out},
};

use super::{FILES, Result};
use crate::out::Out;

/// Sends the content of `source`, or `source` itself if it is a file. The subdirectory `first` is sent before
/// the rest.
pub(crate) fn get(
    out: &Out,
    id: u32,
    cancelled: &AtomicBool,
    (source, first): (&str, Option<&str>),
    limits: CopyLimits,
) -> Result<()> {
    Ok(copy_out(FILES, source, first, limits, &mut ToHost { out, id, cancelled })?)
}

struct ToHost<'a> {
    out: &'a Out,
    id: u32,
    cancelled: &'a AtomicBool,
}

impl CopySink for ToHost<'_> {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn step(&mut self, item: Item) {
        self.out.send(self.id, &GuestReply::Item(item));
    }

    fn skipped(&mut self, path: String, reason: String) {
        self.out.send(self.id, &GuestReply::Skipped { path, reason });
    }
}
