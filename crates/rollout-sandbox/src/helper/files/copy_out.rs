//! Copying a file or tree out of a sandbox to the host.
//!
//! On the host nothing is overwritten, nothing is followed, and no link is made that leads out of the copy.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Take},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rollout_guest::{
    CopyLimits,
    files::{CopyEntry, CopySink, FileResult, NotCopied, os, times},
};
use rustix::{
    fs::{Mode, OFlags, Stat, fchmod, futimens, mkdirat, openat, symlinkat},
    io::Errno,
};

use super::FILES;
use crate::wire::{CopyOutReport, Skipped};

const TAKEN: &str = "something of that name is already there";

/// Copies what `source` holds (or, of a file, the file itself) into the host's directory.
pub(super) fn copy_out(source: &str, target: OwnedFd, limits: CopyLimits) -> FileResult<CopyOutReport> {
    let mut host = ToHost { report: CopyOutReport::default(), levels: vec![target] };
    rollout_guest::files::copy_out(FILES, source, limits, &mut host)?;
    Ok(host.report)
}

struct ToHost {
    report: CopyOutReport,
    /// The host's directories that the copy is in, from the top; there is always one.
    levels: Vec<OwnedFd>,
}

impl ToHost {
    fn level(&self) -> BorrowedFd<'_> {
        self.levels[self.levels.len() - 1].as_fd()
    }
}

impl CopySink for ToHost {
    fn enter(&mut self, entry: &CopyEntry<'_>, mode: u32) -> Result<(), NotCopied> {
        let made = match mkdirat(self.level(), entry.name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(os("making", &entry.shown())(error).into()),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = openat(self.level(), entry.name, flags, Mode::empty()).map_err(|_| TAKEN)?;
        if made {
            fchmod(&copy, Mode::from_raw_mode(mode | 0o700))
                .map_err(os("setting the mode of", &entry.shown()))?;
            self.report.files += 1;
        }
        self.levels.push(copy);
        Ok(())
    }

    fn leave(&mut self) {
        self.levels.pop();
    }

    fn file(
        &mut self,
        entry: &CopyEntry<'_>,
        content: &mut Take<File>,
        stat: &Stat,
        copied: &mut u64,
    ) -> Result<(), NotCopied> {
        let shown = entry.shown();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut copy = match openat(self.level(), entry.name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => File::from(fd),
            Err(Errno::EXIST) => return Err(TAKEN.into()),
            Err(error) => return Err(os("making", &shown)(error).into()),
        };
        *copied += io::copy(content, &mut copy).map_err(os("copying", &shown))?;
        fchmod(&copy, Mode::from_raw_mode(stat.st_mode & 0o777 | 0o600))
            .map_err(os("setting the mode of", &shown))?;
        let nanoseconds = stat.st_mtime_nsec.try_into().unwrap_or(0);
        futimens(&copy, &times(stat.st_mtime, nanoseconds)).map_err(os("setting the time of", &shown))?;
        self.report.files += 1;
        self.report.bytes = *copied;
        Ok(())
    }

    fn link(&mut self, entry: &CopyEntry<'_>, target: CString) -> Result<(), NotCopied> {
        match symlinkat(target, self.level(), entry.name) {
            Ok(()) => self.report.files += 1,
            Err(Errno::EXIST) => return Err(TAKEN.into()),
            Err(error) => return Err(os("linking", &entry.shown())(error).into()),
        }
        Ok(())
    }

    fn skipped(&mut self, path: String, reason: String) {
        self.report.skipped.push(Skipped { path, reason });
    }
}
