//! A copy into the container, step by step as the host sends it.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::Write as _,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rollout_guest::{Item, MAX_DEPTH, is_name};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, Timestamps, fchmod, futimens, mkdirat, openat, symlinkat, unlinkat},
    io::Errno,
};

use super::{PARENT_MODE, Result, components, open_dir, os, place, shown, times, vacate};

/// A copy under way.
pub(crate) struct Put {
    target: String,
    /// The name that the one file gets, when it is no tree that is copied.
    file_name: Option<CString>,
    /// The directories that the walk is in, from the top.
    levels: Vec<OwnedFd>,
    path: Vec<CString>,
    file: Option<Open>,
}

/// A file that is being written.
struct Open {
    file: File,
    mode: Mode,
    times: Timestamps,
    shown: String,
}

impl Put {
    pub(crate) fn start(target: String, file: bool, replace: bool) -> Result<Self> {
        let mut put = Self { file_name: None, levels: Vec::new(), path: Vec::new(), file: None, target };
        let target = &put.target;
        // The root itself is a target, too.
        if !file && components(target)?.is_empty() {
            put.levels.push(open_dir(CWD, c"/", target)?);
            return Ok(put);
        }
        let (parent, name) = place(target)?;
        if replace {
            vacate(parent.as_fd(), &name).map_err(os("replacing", target))?;
        }
        if file {
            put.file_name = Some(name);
            put.levels.push(parent);
        } else {
            put.levels.push(directory(parent.as_fd(), &name, PARENT_MODE, target)?);
        }
        Ok(put)
    }

    pub(crate) fn step(&mut self, item: Item) -> Result<()> {
        if let Item::Data(bytes) = item {
            let open = self.file.as_mut().ok_or_else(misplaced)?;
            return open.file.write_all(&bytes).map_err(os("writing", &open.shown));
        }
        self.close()?;
        let level = self.levels.last().ok_or_else(misplaced)?;
        match item {
            Item::Enter { name, mode } => {
                let name = entry_name(name)?;
                let shown = shown(&self.path, &name);
                if self.path.len() >= MAX_DEPTH {
                    return Err(os("descending into", &shown)(Errno::LOOP));
                }
                let dir = directory(level.as_fd(), &name, Mode::from_raw_mode(mode & 0o1777), &shown)?;
                self.levels.push(dir);
                self.path.push(name);
            }
            Item::Leave => {
                self.path.pop().ok_or_else(misplaced)?;
                self.levels.pop();
            }
            Item::File { name, mode, seconds, nanoseconds } => {
                let (name, shown) = match &self.file_name {
                    Some(name) => (name.clone(), self.target.clone()),
                    None => {
                        let name = entry_name(name)?;
                        let shown = shown(&self.path, &name);
                        (name, shown)
                    }
                };
                let file = create(level.as_fd(), &name, &shown)?;
                let mode = Mode::from_raw_mode(mode & 0o7777);
                self.file = Some(Open { file, mode, times: times(seconds, nanoseconds), shown });
            }
            Item::Link { name, target } => {
                let name = entry_name(name)?;
                let shown = shown(&self.path, &name);
                clear(level.as_fd(), &name, &shown)?;
                symlinkat(target, level, &name).map_err(os("linking", &shown))?;
            }
            Item::Data(_) => {}
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        let Some(Open { file, mode, times, shown }) = self.file.take() else { return Ok(()) };
        fchmod(&file, mode).map_err(os("setting the mode of", &shown))?;
        futimens(&file, &times).map_err(os("setting the time of", &shown))
    }
}

fn misplaced() -> String {
    "the host sent the steps of a copy in a wrong order".to_owned()
}

fn entry_name(name: Vec<u8>) -> Result<CString> {
    if !is_name(&name) {
        return Err(format!("{:?} is no name for a file", String::from_utf8_lossy(&name)));
    }
    CString::new(name).map_err(|error| error.to_string())
}

/// Opens a directory, making it if there is none; a link to a directory is followed.
fn directory(parent: BorrowedFd<'_>, name: &CStr, mode: Mode, shown: &str) -> Result<OwnedFd> {
    let made = match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        // A read-only directory may still have what is wanted.
        Err(error @ (Errno::ROFS | Errno::ACCESS)) => {
            return open_dir(parent, name, shown).map_err(|_| os("making", shown)(error));
        }
        Err(error) => return Err(os("making", shown)(error)),
    };
    let dir = open_dir(parent, name, shown)?;
    if made {
        fchmod(&dir, mode).map_err(os("setting the mode of", shown))?;
    }
    Ok(dir)
}

/// Makes room for a new entry where a file or link is; directories stay.
fn clear(parent: BorrowedFd<'_>, name: &CStr, shown: &str) -> Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(os("replacing", shown)(error)),
    }
}

fn create(parent: BorrowedFd<'_>, name: &CStr, shown: &str) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
    let file = match open() {
        Err(Errno::EXIST) => {
            clear(parent, name, shown)?;
            open()
        }
        other => other,
    };
    file.map(File::from).map_err(os("making", shown))
}
