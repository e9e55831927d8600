//! A copy out of the container: a walk over a tree that may be hostile and still changing.

use std::{
    ffi::{CStr, CString},
    io::Read as _,
    os::fd::{AsFd as _, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use rollout_guest::{Item, Limits, MAX_DEPTH, Reply, stays_inside};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat},
    io::Errno,
};

use super::{Failed, Result, chunk, components, is_kernels, locate, open_dir, open_regular, os, shown};
use crate::out::Out;

/// How many skipped entries are named one by one.
const MAX_NAMED: usize = 1000;

/// Sends what `source` holds or, of a file, the file itself.
pub(crate) fn get(out: &Out, id: u32, cancelled: &AtomicBool, source: &str, limits: Limits) -> Result<()> {
    let mut copy = Copy { out, id, cancelled, limits, bytes: 0, entries: 0, skipped: 0, path: Vec::new() };
    let top = if components(source)?.is_empty() {
        open_dir(CWD, c"/", source)?
    } else {
        let (parent, name) = locate(source)?.ok_or_else(|| os("opening", source)(Errno::NOENT))?;
        match open_dir(parent.as_fd(), &name, source) {
            Ok(dir) => dir,
            Err(Failed { errno: Errno::NOTDIR, .. }) => {
                copy.file(parent.as_fd(), &name);
                return Ok(());
            }
            Err(failed) => return Err(failed.reason),
        }
    };
    copy.tree(Dir::new(top).map_err(os("reading", source))?);
    Ok(())
}

struct Copy<'a> {
    out: &'a Out,
    id: u32,
    cancelled: &'a AtomicBool,
    limits: Limits,
    bytes: u64,
    entries: u64,
    skipped: usize,
    path: Vec<CString>,
}

impl Copy<'_> {
    fn tree(&mut self, top: Dir) {
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            if self.cancelled.load(Ordering::Relaxed) {
                return;
            }
            let entry = match level.read() {
                Some(Ok(entry)) => entry,
                // A directory that vanished under the reader is lost to the copy.
                Some(Err(_)) | None => {
                    levels.pop();
                    if self.path.pop().is_some() {
                        self.send(Item::Leave);
                    }
                    continue;
                }
            };
            let name = entry.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries += 1;
            if self.entries > self.limits.entries {
                let most = self.limits.entries;
                self.skip(&name, &format!("there are more than {most} entries; the rest was left out"));
                return;
            }
            let Ok(parent) = level.fd() else { continue };
            let Some(kind) = kind(parent, &name, entry.file_type()) else { continue };
            match kind {
                FileType::Directory if self.path.len() >= MAX_DEPTH => {
                    self.skip(&name, "it is nested too deeply");
                }
                FileType::Directory => {
                    if let Some(below) = self.enter(parent, &name) {
                        levels.push(below);
                        self.path.push(name);
                    }
                }
                FileType::RegularFile => self.file(parent, &name),
                FileType::Symlink => self.link(parent, &name),
                FileType::Fifo => self.skip(&name, "it is a FIFO"),
                FileType::Socket => self.skip(&name, "it is a socket"),
                _ => self.skip(&name, "it is a device"),
            }
        }
    }

    fn send(&self, item: Item) {
        self.out.send(self.id, &Reply::Item(item));
    }

    fn skip(&mut self, name: &CStr, reason: &str) {
        self.skipped += 1;
        let (path, reason) = match self.skipped {
            count if count <= MAX_NAMED => (shown(&self.path, name), reason),
            count if count == MAX_NAMED + 1 => (String::new(), "more was left out"),
            _ => return,
        };
        self.out.send(self.id, &Reply::Skipped { path, reason: reason.to_owned() });
    }

    fn enter(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Option<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(parent, name, flags, Mode::empty());
        let Ok((fd, stat)) = opened.and_then(|fd| fstat(&fd).map(|stat| (fd, stat))) else {
            self.skip(name, "it changed while it was copied");
            return None;
        };
        if is_kernels(&fd) {
            self.skip(name, "it belongs to the kernel");
            return None;
        }
        let Ok(entries) = Dir::new(fd) else {
            self.skip(name, "it cannot be read");
            return None;
        };
        self.send(Item::Enter { name: name.to_bytes().to_vec(), mode: stat.st_mode & 0o777 });
        Some(entries)
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr) {
        let (file, stat) = match open_regular(parent, name) {
            Ok(Some(opened)) => opened,
            Ok(None) => return self.skip(name, "it is no regular file"),
            Err(_) => return self.skip(name, "it cannot be opened"),
        };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > self.limits.file_bytes {
            let most = self.limits.file_bytes;
            return self.skip(name, &format!("it has {size} bytes, more than {most}"));
        }
        if size > self.limits.bytes.saturating_sub(self.bytes) {
            let most = self.limits.bytes;
            return self.skip(name, &format!("the copy would have more than {most} bytes"));
        }
        self.send(Item::File {
            name: name.to_bytes().to_vec(),
            mode: stat.st_mode & 0o777,
            seconds: stat.st_mtime,
            nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        });
        // A file that grows meanwhile is copied as long as it was.
        let mut file = file.take(size);
        loop {
            match chunk(&mut file) {
                Ok(Some(_)) if self.cancelled.load(Ordering::Relaxed) => return,
                Ok(Some(bytes)) => {
                    self.bytes += bytes.len() as u64;
                    self.send(Item::Data(bytes));
                }
                Ok(None) => return,
                Err(_) => return self.skip(name, "the rest of it cannot be read"),
            }
        }
    }

    fn link(&mut self, parent: BorrowedFd<'_>, name: &CStr) {
        let Ok(target) = readlinkat(parent, name, Vec::new()) else {
            return self.skip(name, "it changed while it was copied");
        };
        let target = target.into_bytes();
        if !stays_inside(&target, self.path.len()) {
            return self.skip(name, "it is a link that leads out of the copied directory");
        }
        self.send(Item::Link { name: name.to_bytes().to_vec(), target });
    }
}

/// The kind of an entry, which not every file system tells when it lists them.
fn kind(parent: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Option<FileType> {
    if listed != FileType::Unknown {
        return Some(listed);
    }
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}
