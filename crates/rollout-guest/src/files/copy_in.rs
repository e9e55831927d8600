//! A copy into an environment, step by step.

use std::{
    ffi::{CStr, CString},
    fs::File,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, Timestamps, fchmod, futimens, openat, symlinkat, unlinkat},
    io::Errno,
};

use super::{EnvironmentFiles, FileResult, PARENT_MODE, components, os, shown};
use crate::protocol::MAX_DEPTH;

/// A copy in progress.
pub struct CopyInto {
    files: EnvironmentFiles,
    target: String,
    /// The name of the target if a single file is copied.
    file_name: Option<CString>,
    /// The open directories from the top to the current one; never empty.
    levels: Vec<OwnedFd>,
    path: Vec<CString>,
}

/// A file that is being written.
pub struct CopiedFile {
    /// Receives the content.
    pub file: File,
    /// Its path for messages.
    pub shown: String,
    mode: Mode,
    times: Timestamps,
}

impl CopyInto {
    /// Starts to copy into the directory `target`, or to the file `target` if `file` is set. With `replace`, an
    /// existing target is removed first.
    pub fn start(files: EnvironmentFiles, target: &str, file: bool, replace: bool) -> FileResult<Self> {
        let copy = |level, file_name| {
            let (target, levels) = (target.to_owned(), vec![level]);
            Ok(Self { files, target, file_name, levels, path: Vec::new() })
        };
        // The target may be the root itself.
        if !file && components(target)?.is_empty() {
            return copy(files.open_dir(CWD, c"/", target)?, None);
        }
        let (parent, name) = files.place(target)?;
        if replace {
            EnvironmentFiles::vacate(parent.as_fd(), &name).map_err(os("replacing", target))?;
        }
        if file {
            copy(parent, Some(name))
        } else {
            copy(files.directory(parent.as_fd(), &name, PARENT_MODE, ("making", target))?, None)
        }
    }

    /// Whether a single file is copied, whose name is ignored.
    pub fn is_file(&self) -> bool {
        self.file_name.is_some()
    }

    fn level(&self) -> BorrowedFd<'_> {
        self.levels[self.levels.len() - 1].as_fd()
    }

    /// The path of an entry of the current directory, for messages.
    pub fn shown(&self, name: &CStr) -> String {
        shown(&self.path, name)
    }

    /// Enters a directory, which is created if missing.
    pub fn enter(&mut self, name: &CStr, mode: u32) -> FileResult<()> {
        let shown = self.shown(name);
        if self.path.len() >= MAX_DEPTH {
            return Err(os("descending into", &shown)(Errno::LOOP));
        }
        let mode = Mode::from_raw_mode(mode & 0o1777);
        let dir = self.files.directory(self.level(), name, mode, ("making", &shown))?;
        self.levels.push(dir);
        self.path.push(name.to_owned());
        Ok(())
    }

    /// Leaves the current directory; `false` at the top.
    pub fn leave(&mut self) -> bool {
        let inside = self.path.pop().is_some();
        if inside {
            self.levels.pop();
        }
        inside
    }

    /// Creates a file and replaces an existing file or link.
    pub fn file(&mut self, name: &CStr, mode: u32, times: Timestamps) -> FileResult<CopiedFile> {
        let (name, shown) = match &self.file_name {
            Some(name) => (name.as_c_str(), self.target.clone()),
            None => (name, self.shown(name)),
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(self.level(), name, flags, Mode::RUSR | Mode::WUSR);
        let made = match open() {
            Err(Errno::EXIST) => {
                self.clear(name, &shown)?;
                open()
            }
            other => other,
        };
        let file = File::from(made.map_err(os("making", &shown))?);
        Ok(CopiedFile { file, shown, mode: Mode::from_raw_mode(mode & 0o7777), times })
    }

    /// Creates a link and replaces an existing file or link.
    pub fn link(&mut self, name: &CStr, target: &[u8]) -> FileResult<()> {
        let shown = self.shown(name);
        self.clear(name, &shown)?;
        symlinkat(target, self.level(), name).map_err(os("linking", &shown))
    }

    /// Removes an existing file or link of this name; directories are kept.
    fn clear(&self, name: &CStr, shown: &str) -> FileResult<()> {
        match unlinkat(self.level(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(os("replacing", shown)(error)),
        }
    }
}

impl CopiedFile {
    /// Sets the mode and time of the written file.
    pub fn finish(self) -> FileResult<()> {
        fchmod(&self.file, self.mode).map_err(os("setting the mode of", &self.shown))?;
        futimens(&self.file, &self.times).map_err(os("setting the time of", &self.shown))
    }
}
