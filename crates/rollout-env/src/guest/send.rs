//! Walks over files of the host that are copied into a container.

use std::{
    ffi::{CStr, CString, OsStr},
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, OpenOptionsExt as _},
        },
    },
    path::{Path, PathBuf},
};

use rollout_guest::{Item, MAX_DATA, MAX_DEPTH};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, readlinkat, statat},
    io::Errno,
};

/// Why files of the host cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// A file or directory of the host cannot be used.
    #[error("cannot use {path} on the host")]
    Host {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// One of the files is a FIFO, socket or device.
    #[error("{path} is not a file, directory or link, and cannot be copied into an environment")]
    Special { path: PathBuf },
    /// The receiver stopped the copy.
    #[error("the copy was cancelled")]
    Stopped,
}

/// The file or directory to send.
pub(super) struct Source {
    path: PathBuf,
    file: File,
    pub(super) is_file: bool,
}

impl Source {
    /// Opens a file or directory; a link is rejected.
    pub(super) fn open(path: &Path) -> Result<Self, SendError> {
        let failed = |source| SendError::Host { path: path.to_owned(), source };
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() && !metadata.is_dir() {
            return Err(SendError::Special { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), file, is_file: metadata.is_file() })
    }

    /// Sends the file, or the content of the directory, step by step; `send` returns whether to continue.
    pub(super) fn walk(self, send: impl FnMut(Item) -> bool) -> Result<(), SendError> {
        let mut walk = Walk { path: self.path, send };
        if self.is_file { walk.file(self.file, Vec::new()) } else { walk.tree(self.file) }
    }
}

struct Walk<F> {
    /// The current path, for messages.
    path: PathBuf,
    send: F,
}

impl<F: FnMut(Item) -> bool> Walk<F> {
    fn tree(&mut self, top: File) -> Result<(), SendError> {
        let top = Dir::new(top).map_err(|error| self.failed(error))?;
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            let Some(entry) = level.read() else {
                levels.pop();
                if !levels.is_empty() {
                    self.path.pop();
                    self.send(Item::Leave)?;
                }
                continue;
            };
            let name = entry.map_err(|error| self.failed(error))?.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let parent = level.fd().map_err(|error| self.failed(error))?;
            self.path.push(OsStr::from_bytes(name.to_bytes()));
            let below = self.entry(parent, &name)?;
            match below {
                Some(_) if levels.len() > MAX_DEPTH => return Err(self.failed(Errno::LOOP)),
                Some(below) => levels.push(below),
                None => {
                    self.path.pop();
                }
            }
        }
        Ok(())
    }

    /// Sends one entry; returns a directory whose content is still to be sent.
    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CString) -> Result<Option<Dir>, SendError> {
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| self.failed(error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let dir = self.open(parent, name, OFlags::DIRECTORY)?;
                let mode = dir.metadata().map_err(|error| self.failed(error))?.mode() & 0o7777;
                let entries = Dir::new(dir).map_err(|error| self.failed(error))?;
                self.send(Item::Enter { name: name.to_bytes().to_vec(), mode })?;
                Ok(Some(entries))
            }
            FileType::RegularFile => {
                let file = self.open(parent, name, OFlags::empty())?;
                self.file(file, name.to_bytes().to_vec()).map(|()| None)
            }
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new()).map_err(|error| self.failed(error))?;
                let (name, target) = (name.to_bytes().to_vec(), target.into_bytes());
                self.send(Item::Link { name, target }).map(|()| None)
            }
            _ => Err(SendError::Special { path: self.path.clone() }),
        }
    }

    fn open(&self, parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<File, SendError> {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(parent.as_fd(), name, flags, Mode::empty());
        opened.map(File::from).map_err(|error| self.failed(error))
    }

    fn file(&mut self, mut file: File, name: Vec<u8>) -> Result<(), SendError> {
        let metadata = file.metadata().map_err(|error| self.failed(error))?;
        if !metadata.is_file() {
            return Err(SendError::Special { path: self.path.clone() });
        }
        self.send(Item::File {
            name,
            mode: metadata.mode() & 0o7777,
            seconds: metadata.mtime(),
            nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
        })?;
        loop {
            let mut bytes = vec![0; MAX_DATA];
            match file.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    bytes.truncate(count);
                    self.send(Item::Data(bytes))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    fn send(&mut self, item: Item) -> Result<(), SendError> {
        if (self.send)(item) { Ok(()) } else { Err(SendError::Stopped) }
    }

    fn failed(&self, error: impl Into<io::Error>) -> SendError {
        SendError::Host { path: self.path.clone(), source: error.into() }
    }
}
