//! Writes what a guest sends into a directory of the host.
//!
//! The guest may be anybody's by now, so every step is checked here as if no guest had. On the host nothing is
//! overwritten, nothing is followed, and no link is made that leads out of the directory.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rollout_guest::{CopyLimits, Item, MAX_DEPTH, is_name, stays_inside};
use rustix::{
    fs::{Mode, OFlags, RawMode, Timespec, Timestamps, fchmod, futimens, mkdirat, openat, symlinkat},
    io::Errno,
};

use super::start_of;

/// How many skipped entries are kept, with a last word that there were more.
const MAX_SKIPPED: usize = 1001;

/// Bytes of the path and of the reason of each. No guest sends as many.
const MAX_SKIPPED_BYTES: usize = 2048;

/// Why a copy cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    /// A step that no guest takes.
    #[error("the guest does not keep to the protocol")]
    Nonsense,
    /// The host's file system refuses.
    #[error("cannot write {path} on the host")]
    Host {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A copy under way.
pub(super) struct Receive {
    target: PathBuf,
    limits: CopyLimits,
    /// The directories that the walk is in, from the top; `None` for those that are left out.
    levels: Vec<Option<OwnedFd>>,
    path: PathBuf,
    file: Option<Current>,
    entries: u64,
    bytes: u64,
    skipped: Vec<Skipped>,
}

/// An entry that stays inside, or the rest of one.
struct Skipped {
    path: String,
    reason: String,
    is_rest: bool,
}

/// The file whose content comes next.
struct Current {
    path: PathBuf,
    bytes: u64,
    /// `None` for one that is left out.
    open: Option<Open>,
}

struct Open {
    file: File,
    mode: Mode,
    times: Timestamps,
}

impl Receive {
    /// Makes the directory, if there is none.
    pub(super) fn start(target: &Path, limits: CopyLimits) -> Result<Self, ReceiveError> {
        let failed = |source| ReceiveError::Host { path: target.to_owned(), source };
        fs::create_dir_all(target).map_err(failed)?;
        let flags = OFlags::DIRECTORY.bits().cast_signed();
        let top = fs::OpenOptions::new().read(true).custom_flags(flags).open(target).map_err(failed)?;
        Ok(Self {
            target: target.to_owned(),
            limits,
            levels: vec![Some(top.into())],
            path: PathBuf::new(),
            file: None,
            entries: 0,
            bytes: 0,
            skipped: Vec::new(),
        })
    }

    /// Takes the guest's next step.
    pub(super) fn step(&mut self, item: Item) -> Result<(), ReceiveError> {
        if let Item::Data(bytes) = item {
            return self.data(&bytes);
        }
        self.close()?;
        if !matches!(item, Item::Leave) {
            self.entries += 1;
            if self.entries > self.limits.entries {
                return Err(ReceiveError::Nonsense);
            }
        }
        match item {
            Item::Enter { name, mode } => self.enter(&name, mode),
            Item::Leave => {
                if self.levels.len() <= 1 {
                    return Err(ReceiveError::Nonsense);
                }
                self.levels.pop();
                self.path.pop();
                Ok(())
            }
            Item::File { name, mode, seconds, nanoseconds } => {
                let nanoseconds = i64::from(nanoseconds.min(999_999_999));
                let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
                let times = Timestamps { last_access: modified, last_modification: modified };
                self.create(&name, mode, times)
            }
            Item::Link { name, target } => self.link(&name, &target),
            Item::Data(_) => Ok(()),
        }
    }

    /// Notes what the guest has left out.
    pub(super) fn skip(&mut self, path: String, reason: String) {
        if self.skipped.len() < MAX_SKIPPED {
            let is_rest = self.file.as_ref().is_some_and(|file| file.path == Path::new(&path));
            let [path, reason] = [path, reason].map(|text| start_of(&text, MAX_SKIPPED_BYTES));
            self.skipped.push(Skipped { path, reason, is_rest });
        }
    }

    /// Ends the copy; says what was left out, and why.
    pub(super) fn finish(mut self) -> Result<Vec<String>, ReceiveError> {
        self.close()?;
        // What the host has already is no loss: it was put there to take the place of the other.
        let is_there = |path: &str| {
            let path = Path::new(path);
            let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
            inside && !path.as_os_str().is_empty() && self.target.join(path).symlink_metadata().is_ok()
        };
        let missing = self.skipped.iter().filter(|skipped| skipped.is_rest || !is_there(&skipped.path));
        Ok(missing.map(|Skipped { path, reason, .. }| format!("{path}: {reason}")).collect())
    }

    /// The directory that the walk is in, and the path of an entry in it.
    fn locate(&self, name: &[u8]) -> Result<(Option<BorrowedFd<'_>>, PathBuf), ReceiveError> {
        if !is_name(name) {
            return Err(ReceiveError::Nonsense);
        }
        let level = self.levels.last().ok_or(ReceiveError::Nonsense)?;
        let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name);
        Ok((level.as_ref().map(|level| level.as_fd()), self.path.join(name)))
    }

    fn enter(&mut self, name: &[u8], mode: u32) -> Result<(), ReceiveError> {
        if self.levels.len() > MAX_DEPTH {
            return Err(ReceiveError::Nonsense);
        }
        let (level, path) = self.locate(name)?;
        let below = match level {
            Some(level) => make_directory(level, name, mode).map_err(|error| self.host(&path, error))?,
            None => None,
        };
        self.levels.push(below);
        self.path = path;
        Ok(())
    }

    fn create(&mut self, name: &[u8], mode: u32, times: Timestamps) -> Result<(), ReceiveError> {
        let (level, path) = self.locate(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = match level.map(|level| openat(level, name, flags, Mode::RUSR | Mode::WUSR)) {
            None | Some(Err(Errno::EXIST)) => None,
            Some(Err(error)) => return Err(self.host(&path, error)),
            Some(Ok(fd)) => {
                Some(Open { file: fd.into(), mode: permissions(mode) | Mode::RUSR | Mode::WUSR, times })
            }
        };
        self.file = Some(Current { path, bytes: 0, open });
        Ok(())
    }

    fn link(&mut self, name: &[u8], target: &[u8]) -> Result<(), ReceiveError> {
        let (level, path) = self.locate(name)?;
        if !stays_inside(target, self.levels.len() - 1) {
            return Err(ReceiveError::Nonsense);
        }
        match level.map(|level| symlinkat(target, level, name)) {
            None | Some(Ok(()) | Err(Errno::EXIST)) => Ok(()),
            Some(Err(error)) => Err(self.host(&path, error)),
        }
    }

    fn data(&mut self, bytes: &[u8]) -> Result<(), ReceiveError> {
        let count = bytes.len() as u64;
        self.bytes += count;
        let file = self.file.as_mut().ok_or(ReceiveError::Nonsense)?;
        file.bytes += count;
        if self.bytes > self.limits.bytes || file.bytes > self.limits.file_bytes {
            return Err(ReceiveError::Nonsense);
        }
        let Some(open) = &mut file.open else { return Ok(()) };
        open.file
            .write_all(bytes)
            .map_err(|source| ReceiveError::Host { path: self.target.join(&file.path), source })
    }

    fn close(&mut self) -> Result<(), ReceiveError> {
        let Some(Current { path, open: Some(open), .. }) = self.file.take() else { return Ok(()) };
        let closed = fchmod(&open.file, open.mode).and_then(|()| futimens(&open.file, &open.times));
        closed.map_err(|error| self.host(&path, error))
    }

    fn host(&self, path: &Path, error: Errno) -> ReceiveError {
        ReceiveError::Host { path: self.target.join(path), source: error.into() }
    }
}

/// Opens a directory, making it if there is none; `None` when something else has its name.
fn make_directory(parent: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<Option<OwnedFd>, Errno> {
    let made = match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(parent, name, flags, Mode::empty()) {
        Ok(dir) => {
            if made {
                fchmod(&dir, permissions(mode) | Mode::RWXU)?;
            }
            Ok(Some(dir))
        }
        Err(Errno::LOOP | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The mode of a copy: none of the bits that lend somebody's rights.
fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(RawMode::try_from(mode & 0o777).unwrap_or(0))
}

#[cfg(test)]
mod tests;
