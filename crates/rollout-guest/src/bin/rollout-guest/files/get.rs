//! A copy out of the container, sent to the host step by step.

use std::{
    ffi::CString,
    fs::File,
    io::Take,
    sync::atomic::{AtomicBool, Ordering},
};

use rollout_guest::{
    CopyLimits, GuestReply, Item,
    files::{CopyEntry, CopySink, NotCopied, copy_out},
};
use rustix::fs::Stat;

use super::{FILES, Result, chunk};
use crate::out::Out;

/// Sends what `source` holds or, of a file, the file itself.
pub(crate) fn get(
    out: &Out,
    id: u32,
    cancelled: &AtomicBool,
    source: &str,
    limits: CopyLimits,
) -> Result<()> {
    Ok(copy_out(FILES, source, limits, &mut ToHost { out, id, cancelled })?)
}

struct ToHost<'a> {
    out: &'a Out,
    id: u32,
    cancelled: &'a AtomicBool,
}

impl ToHost<'_> {
    fn send(&self, item: Item) {
        self.out.send(self.id, &GuestReply::Item(item));
    }
}

impl CopySink for ToHost<'_> {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn enter(&mut self, entry: &CopyEntry<'_>, mode: u32) -> Result<(), NotCopied> {
        self.send(Item::Enter { name: entry.name.to_bytes().to_vec(), mode });
        Ok(())
    }

    fn leave(&mut self) {
        self.send(Item::Leave);
    }

    fn file(
        &mut self,
        entry: &CopyEntry<'_>,
        content: &mut Take<File>,
        stat: &Stat,
        copied: &mut u64,
    ) -> Result<(), NotCopied> {
        self.send(Item::File {
            name: entry.name.to_bytes().to_vec(),
            mode: stat.st_mode & 0o777,
            seconds: stat.st_mtime,
            nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        });
        while let Some(bytes) = chunk(content).map_err(|_| "the rest of it cannot be read")? {
            if self.is_cancelled() {
                break;
            }
            *copied += bytes.len() as u64;
            self.send(Item::Data(bytes));
        }
        Ok(())
    }

    fn link(&mut self, entry: &CopyEntry<'_>, target: CString) -> Result<(), NotCopied> {
        self.send(Item::Link { name: entry.name.to_bytes().to_vec(), target: target.into_bytes() });
        Ok(())
    }

    fn skipped(&mut self, path: String, reason: String) {
        self.out.send(self.id, &GuestReply::Skipped { path, reason });
    }
}
