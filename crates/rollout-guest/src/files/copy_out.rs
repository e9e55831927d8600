//! Copies a tree out of an environment. The tree may be hostile and change during the walk.

use std::{
    ffi::{CStr, CString},
    io::{Read, Seek as _, SeekFrom},
    os::fd::{AsFd as _, BorrowedFd},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, fstat, openat, readlinkat, statat},
    io::Errno,
};

use super::{
    DIRECTORY, EnvironmentFiles, FileResult, chunk, components, is_dots, open_regular, os, shown, size,
};
use crate::{
    names::stays_inside,
    protocol::{CopyLimits, Item, MAX_DEPTH},
};

/// The number of skipped entries that are reported individually.
const MAX_NAMED: u64 = 1000;

/// The receiver of a copy.
pub trait CopySink {
    /// Whether the copy was cancelled.
    fn is_cancelled(&self) -> bool;

    /// Receives the next step of the walk.
    fn step(&mut self, item: Item);

    /// Receives the path of an entry that was skipped, or of which a part was skipped.
    fn skipped(&mut self, path: String, reason: String);
}

/// Why an entry is skipped.
struct Skipped(String);

impl From<&str> for Skipped {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

/// Copies the content of `source`, or `source` itself if it is a file. The subdirectory `first` is copied
/// before the rest, with its own limits, so that other files cannot use them up.
pub fn copy_out(
    files: EnvironmentFiles,
    source: &str,
    first: Option<&str>,
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
                walk.settle(&name, copied);
                return Ok(());
            }
            opened => opened?,
        }
    };
    let first = first.map(|first| CString::new(first).map_err(|_| os("naming", source)(Errno::INVAL)));
    let first = first.transpose()?;
    if let Some(first) = &first
        && let Ok(below) = walk.enter(top.as_fd(), first)
    {
        walk.path.push(first.clone());
        walk.tree(below, None);
        (walk.bytes, walk.entries) = (0, 0);
    }
    walk.tree(Dir::new(top).map_err(os("reading", source))?, first.as_deref());
    walk.end();
    Ok(())
}

struct Walk<'a, S> {
    files: EnvironmentFiles,
    limits: CopyLimits,
    sink: &'a mut S,
    bytes: u64,
    entries: u64,
    skipped: u64,
    path: Vec<CString>,
}

impl<S: CopySink> Walk<'_, S> {
    /// Copies a directory, except for one entry that was copied before.
    fn tree(&mut self, top: Dir, but: Option<&CStr>) {
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            if self.sink.is_cancelled() {
                return;
            }
            let entry = match level.read() {
                Some(Ok(entry)) => entry,
                // The directory was removed during the walk; its remaining entries are not copied.
                Some(Err(_)) | None => {
                    levels.pop();
                    if self.path.pop().is_some() {
                        self.sink.step(Item::Leave);
                    }
                    continue;
                }
            };
            let name = entry.file_name().to_owned();
            if is_dots(&name) || (self.path.is_empty() && but == Some(name.as_c_str())) {
                continue;
            }
            self.entries += 1;
            let most = self.limits.entries;
            if self.entries > most {
                self.skip(&name, format!("there are more than {most} entries; the rest was left out"));
                while self.path.pop().is_some() {
                    self.sink.step(Item::Leave);
                }
                return;
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
                    Err(skipped) => Err(skipped),
                },
                FileType::RegularFile => self.file(parent, &name),
                FileType::Symlink => self.link(parent, &name),
                FileType::Fifo => Err("it is a FIFO".into()),
                FileType::Socket => Err("it is a socket".into()),
                _ => Err("it is a device".into()),
            };
            self.settle(&name, copied);
        }
    }

    fn settle(&mut self, name: &CStr, copied: Result<(), Skipped>) {
        if let Err(Skipped(reason)) = copied {
            self.skip(name, reason);
        }
    }

    fn skip(&mut self, name: &CStr, reason: String) {
        self.skipped += 1;
        if self.skipped <= MAX_NAMED {
            self.sink.skipped(shown(&self.path, name), reason);
        }
    }

    /// Reports the number of skipped entries that were not reported individually.
    fn end(&mut self) {
        let unnamed = self.skipped.saturating_sub(MAX_NAMED);
        if unnamed > 0 {
            self.sink.skipped(String::new(), format!("and {unnamed} more entries were left out"));
        }
    }

    fn enter(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<Dir, Skipped> {
        if self.path.len() >= MAX_DEPTH {
            return Err("it is nested too deeply".into());
        }
        let opened = openat(parent, name, DIRECTORY, Mode::empty());
        let Ok((fd, stat)) = opened.and_then(|fd| fstat(&fd).map(|stat| (fd, stat))) else {
            return Err("it changed while it was copied".into());
        };
        if self.files.check(&fd, "").is_err() {
            return Err("it is in a kernel file system".into());
        }
        let entries = Dir::new(fd).map_err(|_| "it cannot be read")?;
        self.sink.step(Item::Enter { name: name.to_bytes().to_vec(), mode: stat.st_mode & 0o777 });
        Ok(entries)
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Skipped> {
        let opened = open_regular(parent, name).map_err(|_| "it cannot be opened")?;
        let (mut file, stat) = opened.ok_or("it is not a regular file")?;
        let size = size(&stat);
        let kept = size.min(self.limits.file_bytes);
        let most = self.limits.bytes;
        if kept > most.saturating_sub(self.bytes) {
            return Err(Skipped(format!("the copy would have more than {most} bytes")));
        }
        self.bytes += kept;
        self.sink.step(Item::File {
            name: name.to_bytes().to_vec(),
            mode: stat.st_mode & 0o777,
            seconds: stat.st_mtime,
            nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        });
        if kept == size {
            // A file that grows meanwhile is copied up to its initial size.
            return self.content(file.take(size));
        }
        // The start and the end of a log are its most useful parts.
        let mark = format!("\n[{} bytes were left out here]\n", size - kept);
        let end = kept / 2;
        let start = (kept - end).saturating_sub(mark.len() as u64);
        self.content((&file).take(start))?;
        self.sink.step(Item::Data(mark.into_bytes()));
        file.seek(SeekFrom::Start(size - end)).map_err(|_| "the rest of it cannot be read")?;
        self.content(file.take(end))?;
        Err(Skipped(format!("it has {size} bytes; only {kept} bytes of its start and end are kept")))
    }

    fn content(&mut self, mut content: impl Read) -> Result<(), Skipped> {
        while let Some(bytes) = chunk(&mut content).map_err(|_| "the rest of it cannot be read")? {
            if self.sink.is_cancelled() {
                break;
            }
            self.sink.step(Item::Data(bytes));
        }
        Ok(())
    }

    fn link(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Skipped> {
        let target = readlinkat(parent, name, Vec::new()).map_err(|_| "it changed while it was copied")?;
        if !stays_inside(target.to_bytes(), self.path.len()) {
            return Err("it is a link that leads out of the copied directory".into());
        }
        self.sink.step(Item::Link { name: name.to_bytes().to_vec(), target: target.into_bytes() });
        Ok(())
    }
}

/// The kind of an entry, which some file systems do not list; `None` if the entry was removed.
fn kind(parent: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Option<FileType> {
    if listed != FileType::Unknown {
        return Some(listed);
    }
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}
