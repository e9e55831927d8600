//! A copy out of an environment: a walk over a tree that may be hostile and still changing.

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

/// How many skipped entries are named one by one.
const MAX_NAMED: u64 = 1000;

/// Where a copy goes.
pub trait CopySink {
    /// Whether nobody wants the copy any more.
    fn is_cancelled(&self) -> bool;

    /// Takes the next step of the walk.
    fn step(&mut self, item: Item);

    /// Hears of an entry that was left out, or of the part of one.
    fn skipped(&mut self, path: String, reason: String);
}

/// Why an entry is left out.
struct Skipped(String);

impl From<&str> for Skipped {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

/// Copies what `source` holds or, of a file, the file itself. The directory `first` in there is copied before the rest,
/// with limits of its own, so that nothing beside it can use them up.
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
    /// Copies a directory, up to the one around it, but for one entry that was copied before.
    fn tree(&mut self, top: Dir, but: Option<&CStr>) {
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            if self.sink.is_cancelled() {
                return;
            }
            let entry = match level.read() {
                Some(Ok(entry)) => entry,
                // The directory vanished under the reader: what it still held is lost to the copy.
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

    /// Counts what was left out without being named.
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
            return Err("it belongs to the kernel".into());
        }
        let entries = Dir::new(fd).map_err(|_| "it cannot be read")?;
        self.sink.step(Item::Enter { name: name.to_bytes().to_vec(), mode: stat.st_mode & 0o777 });
        Ok(entries)
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Skipped> {
        let opened = open_regular(parent, name).map_err(|_| "it cannot be opened")?;
        let (mut file, stat) = opened.ok_or("it is no regular file")?;
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
            // A file that grows meanwhile is copied as long as it was.
            return self.content(file.take(size));
        }
        // How a log starts and how it ends says most of what it says.
        let mark = format!("\n[{} bytes were left out here]\n", size - kept);
        let end = kept / 2;
        let start = (kept - end).saturating_sub(mark.len() as u64);
        self.content((&file).take(start))?;
        self.sink.step(Item::Data(mark.into_bytes()));
        file.seek(SeekFrom::Start(size - end)).map_err(|_| "the rest of it cannot be read")?;
        self.content(file.take(end))?;
        Err(Skipped(format!("it has {size} bytes; {kept} are kept, of its start and its end")))
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

/// The kind of an entry, which not every file system tells when it lists them; `None` when it is gone.
fn kind(parent: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Option<FileType> {
    if listed != FileType::Unknown {
        return Some(listed);
    }
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}
