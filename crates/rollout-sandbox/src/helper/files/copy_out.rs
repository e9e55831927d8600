//! Copying a file or tree out of a sandbox to the host.
//!
//! The tree may be hostile and still changing. On the host nothing is overwritten, nothing is followed,
//! and no link is made that leads out of the copy.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, fchmod, fstat, futimens, mkdirat, openat, readlinkat,
        statat, symlinkat,
    },
    io::Errno,
};

use super::{
    Result, check_file_system, components, copy_in::times, locate, open_dir, open_regular, os, shown,
};
use crate::wire::{CopyLimits, CopyReport, FileCause, FileFailure, Skipped};

/// How deep a tree may be nested: each level holds two descriptors.
const MAX_DEPTH: usize = 200;
/// How many skipped entries are named one by one.
const MAX_NAMED: usize = 1000;

/// Copies what `source` holds (or, of a file, the file itself) into the host's directory.
pub(super) fn copy_out(source: &str, target: OwnedFd, limits: CopyLimits) -> Result<CopyReport> {
    let mut copy = Copy { limits, report: CopyReport::default(), entries: 0, path: Vec::new() };
    let missing = || os("opening", source)(Errno::NOENT);
    let top = if components(source)?.is_empty() {
        open_dir(CWD, c"/", source)?
    } else {
        let (parent, name) = locate(source)?.ok_or_else(missing)?;
        match open_dir(parent.as_fd(), &name, source) {
            Ok(dir) => dir,
            Err(FileFailure { cause: FileCause::Os { errno: libc::ENOTDIR, .. }, .. }) => {
                check_file_system(&parent, source)?;
                copy.file(parent.as_fd(), &name, target.as_fd())?;
                return Ok(copy.report);
            }
            Err(failure) => return Err(failure),
        }
    };
    copy.tree(Level { entries: Dir::new(top).map_err(os("reading", source))?, target })?;
    Ok(copy.report)
}

struct Level {
    entries: Dir,
    target: OwnedFd,
}

struct Copy {
    limits: CopyLimits,
    report: CopyReport,
    entries: u64,
    path: Vec<CString>,
}

impl Copy {
    fn tree(&mut self, top: Level) -> Result<()> {
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            let entry = match level.entries.read() {
                Some(Ok(entry)) => entry,
                // The directory vanished under the reader: what it still held is lost to the copy.
                Some(Err(_)) | None => {
                    levels.pop();
                    self.path.pop();
                    continue;
                }
            };
            let name = entry.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries += 1;
            if self.entries > self.limits.max_entries {
                let reason =
                    format!("there are more than {} entries; the rest was left out", self.limits.max_entries);
                self.skip(&name, reason);
                return Ok(());
            }
            let source = level.entries.fd().map_err(os("reading", &shown(&self.path, &name)))?;
            let Some(kind) = kind(source, &name, entry.file_type()) else { continue };
            let target = level.target.as_fd();
            match kind {
                FileType::Directory if self.path.len() >= MAX_DEPTH => {
                    self.skip(&name, "it is nested too deeply")
                }
                FileType::Directory => {
                    if let Some(below) = self.enter(source, &name, target)? {
                        levels.push(below);
                        self.path.push(name);
                    }
                }
                FileType::RegularFile => self.file(source, &name, target)?,
                FileType::Symlink => self.link(source, &name, target)?,
                FileType::Fifo => self.skip(&name, "it is a FIFO"),
                FileType::Socket => self.skip(&name, "it is a socket"),
                _ => self.skip(&name, "it is a device"),
            }
        }
        Ok(())
    }

    fn skip(&mut self, name: &CStr, reason: impl Into<String>) {
        match self.report.skipped.len() {
            MAX_NAMED => {
                self.report.skipped.push(Skipped { path: String::new(), reason: "more was left out".into() });
            }
            count if count < MAX_NAMED => {
                self.report.skipped.push(Skipped { path: shown(&self.path, name), reason: reason.into() });
            }
            _ => {}
        }
    }

    /// Opens a directory and its copy; `None` when it is skipped.
    fn enter(
        &mut self,
        source: BorrowedFd<'_>,
        name: &CStr,
        target: BorrowedFd<'_>,
    ) -> Result<Option<Level>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(source, name, flags, Mode::empty());
        let Ok(below) = opened else {
            self.skip(name, "it changed while it was copied");
            return Ok(None);
        };
        if check_file_system(&below, "").is_err() {
            self.skip(name, "it belongs to the kernel");
            return Ok(None);
        }
        let shown = shown(&self.path, name);
        let mode = fstat(&below).map_err(os("examining", &shown))?.st_mode;
        let made = match mkdirat(target, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(os("making", &shown)(error)),
        };
        let Ok(copy) = openat(target, name, flags, Mode::empty()) else {
            self.skip(name, "something of that name is already there");
            return Ok(None);
        };
        if made {
            fchmod(&copy, Mode::from_raw_mode(mode & 0o777 | 0o700))
                .map_err(os("setting the mode of", &shown))?;
            self.report.files += 1;
        }
        let entries = Dir::new(below).map_err(os("reading", &shown))?;
        Ok(Some(Level { entries, target: copy }))
    }

    fn file(&mut self, source: BorrowedFd<'_>, name: &CStr, target: BorrowedFd<'_>) -> Result<()> {
        let shown = shown(&self.path, name);
        let (file, size) = match open_regular(source, name, &shown) {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                self.skip(name, "it is no regular file");
                return Ok(());
            }
            Err(_) => {
                self.skip(name, "it cannot be opened");
                return Ok(());
            }
        };
        if size > self.limits.max_file_bytes {
            self.skip(name, format!("it has {size} bytes, more than {}", self.limits.max_file_bytes));
            return Ok(());
        }
        let room = self.limits.max_bytes - self.report.bytes;
        if size > room {
            self.skip(name, format!("the copy would have more than {} bytes", self.limits.max_bytes));
            return Ok(());
        }
        let stat = fstat(&file).map_err(os("examining", &shown))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut copy = match openat(target, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => File::from(fd),
            Err(Errno::EXIST) => {
                self.skip(name, "something of that name is already there");
                return Ok(());
            }
            Err(error) => return Err(os("making", &shown)(error)),
        };
        // A file that grows meanwhile is copied as long as it was.
        let copied = io::copy(&mut file.take(size), &mut copy).map_err(os("copying", &shown))?;
        fchmod(&copy, Mode::from_raw_mode(stat.st_mode & 0o777 | 0o600))
            .map_err(os("setting the mode of", &shown))?;
        futimens(&copy, &times(&stat)).map_err(os("setting the time of", &shown))?;
        self.report.files += 1;
        self.report.bytes += copied;
        Ok(())
    }

    fn link(&mut self, source: BorrowedFd<'_>, name: &CStr, target: BorrowedFd<'_>) -> Result<()> {
        let Ok(link) = readlinkat(source, name, Vec::new()) else {
            self.skip(name, "it changed while it was copied");
            return Ok(());
        };
        if !stays_inside(link.to_bytes(), self.path.len()) {
            self.skip(name, "it is a link that leads out of the copied directory");
            return Ok(());
        }
        match symlinkat(link, target, name) {
            Ok(()) => self.report.files += 1,
            Err(Errno::EXIST) => self.skip(name, "something of that name is already there"),
            Err(error) => return Err(os("linking", &shown(&self.path, name))(error)),
        }
        Ok(())
    }
}

/// The kind of an entry; `None` when it is gone.
fn kind(dir: BorrowedFd<'_>, name: &CStr, told: FileType) -> Option<FileType> {
    if told != FileType::Unknown {
        return Some(told);
    }
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

/// Whether a link at this depth cannot lead out of the tree, whatever other such links it passes.
///
/// `..` counts only at the start: after a name that may itself be a link, it could climb from anywhere.
fn stays_inside(link: &[u8], depth: usize) -> bool {
    if link.starts_with(b"/") {
        return false;
    }
    let names = || link.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let climbs = names().take_while(|name| *name == b"..").count();
    climbs <= depth && names().skip(climbs).all(|name| name != b"..")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn links_that_may_lead_out_are_told_from_those_that_cannot() {
        for (link, depth, inside) in [
            ("file", 0, true),
            ("../file", 1, true),
            ("./../file", 1, true),
            ("../file", 0, false),
            ("../../file", 1, false),
            ("/etc/passwd", 3, false),
            ("//x", 3, false),
            ("a/../../file", 1, false),
            ("a/../b", 0, false),
        ] {
            assert_eq!(stays_inside(link.as_bytes(), depth), inside, "{link} at {depth}");
        }
    }

    proptest! {
        #[test]
        fn a_link_that_stays_inside_never_climbs_past_the_top(
            names in prop::collection::vec(prop_oneof!["\\.\\.", "\\.", "[a-c]", ""], 0..8),
            depth in 0_usize..4,
        ) {
            let link = names.join("/");
            if stays_inside(link.as_bytes(), depth) {
                prop_assert!(!link.starts_with('/'));
                let mut level = i64::try_from(depth).unwrap();
                for name in &names {
                    level += match name.as_str() { ".." => -1, "" | "." => 0, _ => 1 };
                    prop_assert!(level >= 0);
                }
            }
        }
    }
}
