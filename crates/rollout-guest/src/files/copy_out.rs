//! A copy out of an environment: a walk over a tree that may be hostile and still changing.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{Read as _, Take},
    os::fd::{AsFd as _, BorrowedFd},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, Stat, fstat, openat, readlinkat, statat},
    io::Errno,
};

use super::{
    DIRECTORY, EnvironmentFiles, FileFailure, FileResult, components, is_dots, open_regular, os, shown, size,
};
use crate::{
    names::stays_inside,
    protocol::{CopyLimits, MAX_DEPTH},
};

/// How many skipped entries are named one by one.
const MAX_NAMED: usize = 1000;

/// Where a copy goes.
pub trait CopySink {
    /// Whether nobody wants the copy any more.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Steps into a directory with these permissions.
    fn enter(&mut self, entry: &CopyEntry<'_>, mode: u32) -> Result<(), NotCopied>;

    /// Steps back out.
    fn leave(&mut self);

    /// Takes a regular file, and counts its bytes as it does.
    fn file(
        &mut self,
        entry: &CopyEntry<'_>,
        content: &mut Take<File>,
        stat: &Stat,
        copied: &mut u64,
    ) -> Result<(), NotCopied>;

    /// Takes a link that does not lead out of the copy.
    fn link(&mut self, entry: &CopyEntry<'_>, target: CString) -> Result<(), NotCopied>;

    /// Hears of an entry that was left out.
    fn skipped(&mut self, path: String, reason: String);
}

/// A file, directory or link that is copied.
pub struct CopyEntry<'a> {
    /// Its name in the directory around it.
    pub name: &'a CStr,
    parents: &'a [CString],
}

impl CopyEntry<'_> {
    /// Its path below what is copied, for people to read.
    pub fn shown(&self) -> String {
        shown(self.parents, self.name)
    }
}

/// Why an entry was not copied.
pub enum NotCopied {
    /// It is left out, for this reason.
    Skipped(String),
    /// Nothing more can be copied.
    Failed(FileFailure),
}

impl From<&str> for NotCopied {
    fn from(reason: &str) -> Self {
        Self::Skipped(reason.to_owned())
    }
}

impl From<FileFailure> for NotCopied {
    fn from(failure: FileFailure) -> Self {
        Self::Failed(failure)
    }
}

/// Copies what `source` holds or, of a file, the file itself.
pub fn copy_out(
    files: EnvironmentFiles,
    source: &str,
    limits: CopyLimits,
    sink: &mut impl CopySink,
) -> FileResult<()> {
    let mut walk = Walk { files, limits, sink, bytes: 0, entries: 0, skipped: 0, path: Vec::new() };
    let top = if components(source)?.is_empty() {
        files.open_dir(CWD, c"/", source)?
    } else {
        let (parent, name) = files.locate(source)?.ok_or_else(|| os("opening", source)(Errno::NOENT))?;
        match files.open_dir(parent.as_fd(), &name, source) {
            Err(failure) if failure.errno() == Some(Errno::NOTDIR) => {
                let copied = walk.file(parent.as_fd(), &name);
                return walk.settle(&name, copied);
            }
            opened => opened?,
        }
    };
    walk.tree(Dir::new(top).map_err(os("reading", source))?)
}

struct Walk<'a, S> {
    files: EnvironmentFiles,
    limits: CopyLimits,
    sink: &'a mut S,
    bytes: u64,
    entries: u64,
    skipped: usize,
    path: Vec<CString>,
}

impl<S: CopySink> Walk<'_, S> {
    fn tree(&mut self, top: Dir) -> FileResult<()> {
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            if self.sink.is_cancelled() {
                return Ok(());
            }
            let entry = match level.read() {
                Some(Ok(entry)) => entry,
                // The directory vanished under the reader: what it still held is lost to the copy.
                Some(Err(_)) | None => {
                    levels.pop();
                    if self.path.pop().is_some() {
                        self.sink.leave();
                    }
                    continue;
                }
            };
            let name = entry.file_name().to_owned();
            if is_dots(&name) {
                continue;
            }
            self.entries += 1;
            let most = self.limits.entries;
            if self.entries > most {
                self.skip(&name, format!("there are more than {most} entries; the rest was left out"));
                return Ok(());
            }
            let Ok(parent) = level.fd() else { continue };
            let Some(kind) = kind(parent, &name, entry.file_type()) else { continue };
            let copied = match kind {
                FileType::Directory => match self.enter(parent, &name) {
                    Ok(below) => {
                        levels.push(below);
                        self.path.push(name);
                        continue;
                    }
                    Err(not_copied) => Err(not_copied),
                },
                FileType::RegularFile => self.file(parent, &name),
                FileType::Symlink => self.link(parent, &name),
                FileType::Fifo => Err("it is a FIFO".into()),
                FileType::Socket => Err("it is a socket".into()),
                _ => Err("it is a device".into()),
            };
            self.settle(&name, copied)?;
        }
        Ok(())
    }

    fn settle(&mut self, name: &CStr, copied: Result<(), NotCopied>) -> FileResult<()> {
        match copied {
            Ok(()) => {}
            Err(NotCopied::Skipped(reason)) => self.skip(name, reason),
            Err(NotCopied::Failed(failure)) => return Err(failure),
        }
        Ok(())
    }

    fn skip(&mut self, name: &CStr, reason: String) {
        self.skipped += 1;
        match self.skipped {
            count if count <= MAX_NAMED => self.sink.skipped(shown(&self.path, name), reason),
            count if count == MAX_NAMED + 1 => {
                self.sink.skipped(String::new(), "more was left out".to_owned())
            }
            _ => {}
        }
    }

    fn enter(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<Dir, NotCopied> {
        if self.path.len() >= MAX_DEPTH {
            return Err("it is nested too deeply".into());
        }
        let opened = openat(parent, name, DIRECTORY, Mode::empty());
        let Ok((fd, stat)) = opened.and_then(|fd| fstat(&fd).map(|stat| (fd, stat))) else {
            return Err("it changed while it was copied".into());
        };
        if self.files.check(&fd, "").is_err() {
            return Err("it belongs to the kernel".into());
        }
        let entries = Dir::new(fd).map_err(|_| "it cannot be read")?;
        self.sink.enter(&CopyEntry { name, parents: &self.path }, stat.st_mode & 0o777)?;
        Ok(entries)
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), NotCopied> {
        let opened = open_regular(parent, name).map_err(|_| "it cannot be opened")?;
        let (file, stat) = opened.ok_or("it is no regular file")?;
        let (size, most) = (size(&stat), self.limits.file_bytes);
        if size > most {
            return Err(NotCopied::Skipped(format!("it has {size} bytes, more than {most}")));
        }
        let most = self.limits.bytes;
        if size > most.saturating_sub(self.bytes) {
            return Err(NotCopied::Skipped(format!("the copy would have more than {most} bytes")));
        }
        // A file that grows meanwhile is copied as long as it was.
        let entry = CopyEntry { name, parents: &self.path };
        self.sink.file(&entry, &mut file.take(size), &stat, &mut self.bytes)
    }

    fn link(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), NotCopied> {
        let target = readlinkat(parent, name, Vec::new()).map_err(|_| "it changed while it was copied")?;
        if !stays_inside(target.to_bytes(), self.path.len()) {
            return Err("it is a link that leads out of the copied directory".into());
        }
        self.sink.link(&CopyEntry { name, parents: &self.path }, target)
    }
}

/// The kind of an entry, which not every file system tells when it lists them; `None` when it is gone.
fn kind(parent: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Option<FileType> {
    if listed != FileType::Unknown {
        return Some(listed);
    }
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}
