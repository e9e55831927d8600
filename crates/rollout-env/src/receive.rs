//! Writes files that are copied out of an environment into a directory of the host, and masks their secrets.
//!
//! The sender may be compromised, so every step is checked here. On the host nothing is overwritten, no link is
//! followed, no link is created that leaves the directory, and no secret is written even for a moment.

use std::{
    fs::{self, File},
    io::{self, Seek as _, SeekFrom, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rollout_guest::{CopyLimits, GuestReply, Item, MAX_DEPTH, is_name, stays_inside};
use rustix::{
    fs::{Mode, OFlags, RawMode, Timespec, Timestamps, fchmod, futimens, mkdirat, openat, symlinkat},
    io::Errno,
};

use rollout_core::redact::{Redactor, StreamRedactor};

use crate::environment::CopyOut;

/// The limits of a copy out of one environment, so that a trial cannot fill the job's disk.
pub(crate) const LOG_LIMITS: CopyLimits =
    CopyLimits { bytes: 1 << 30, entries: 100_000, file_bytes: 256 << 20 };

/// The number of skipped entries that are kept, including a last one for the rest.
const MAX_SKIPPED: usize = 1001;

/// The longest path and reason that are kept, in bytes. A guest sends shorter ones.
const MAX_SKIPPED_BYTES: usize = 2048;

/// The smallest run of zeros that is written as a hole.
const MIN_HOLE: usize = 4 << 10;

/// Why a copy cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The guest violated the protocol.
    #[error("the guest violated the protocol")]
    Protocol,
    /// A write on the host failed.
    #[error("cannot write {path} on the host")]
    Host {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The result of a copy.
#[derive(Debug)]
pub(crate) enum Received {
    /// Everything was copied except for these entries.
    Whole(Vec<String>),
    /// Nothing was copied, for a reason from inside.
    Failed(String),
    /// A part was copied before the stream ended.
    Lost,
}

/// A copy in progress.
pub(crate) struct Receive {
    target: PathBuf,
    redactor: Redactor,
    limits: CopyLimits,
    /// The open directories from the top to the current one; `None` for skipped ones.
    levels: Vec<Option<OwnedFd>>,
    path: PathBuf,
    file: Option<Current>,
    entries: u64,
    bytes: u64,
    skipped: Vec<Skipped>,
    /// The number of entries whose names or targets contain secrets.
    secret: u64,
}

/// A skipped entry, or the skipped rest of one.
struct Skipped {
    path: String,
    reason: String,
    is_rest: bool,
}

/// The file whose content comes next.
struct Current {
    path: PathBuf,
    bytes: u64,
    /// `None` for a skipped file.
    open: Option<Open>,
}

struct Open {
    file: File,
    mode: Mode,
    times: Timestamps,
    /// Finds secrets that are split between two steps. `None` if there are no secrets.
    masked: Option<StreamRedactor>,
    /// Whether the last bytes are a hole, for which nothing was written.
    ends_in_hole: bool,
}

impl Open {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(masked) = &mut self.masked else { return self.write(bytes) };
        let mut clean = Vec::with_capacity(bytes.len());
        masked.push(bytes, &mut clean);
        self.write(&clean)
    }

    /// Writes bytes; runs of zeros become holes, so a sparse file does not fill the host's disk.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.ends_in_hole = bytes.len() >= MIN_HOLE && bytes.iter().all(|byte| *byte == 0);
        if self.ends_in_hole {
            self.file.seek(SeekFrom::Current(bytes.len().try_into().map_err(io::Error::other)?)).map(drop)
        } else {
            self.file.write_all(bytes)
        }
    }

    fn end(mut self) -> io::Result<()> {
        if let Some(masked) = &mut self.masked {
            let mut rest = Vec::new();
            masked.flush(&mut rest);
            self.write(&rest)?;
        }
        if self.ends_in_hole {
            let length = self.file.stream_position()?;
            self.file.set_len(length)?;
        }
        fchmod(&self.file, self.mode)?;
        Ok(futimens(&self.file, &self.times)?)
    }
}

impl Receive {
    /// A copy that has not started.
    pub(crate) fn new(copy: &CopyOut<'_>, limits: CopyLimits) -> Self {
        // What is copied first has limits of its own, and its directory is one more entry.
        let first = u64::from(copy.first.is_some());
        let (bytes, entries) = ((1 + first) * limits.bytes, (1 + first) * limits.entries + first);
        Self {
            target: copy.target.to_owned(),
            redactor: copy.redactor.clone(),
            limits: CopyLimits { bytes, entries, ..limits },
            levels: Vec::new(),
            path: PathBuf::new(),
            file: None,
            entries: 0,
            bytes: 0,
            skipped: Vec::new(),
            secret: 0,
        }
    }

    /// Creates the directory if it is missing.
    fn open(&mut self) -> Result<(), ReceiveError> {
        let failed = |source| ReceiveError::Host { path: self.target.clone(), source };
        fs::create_dir_all(&self.target).map_err(failed)?;
        let flags = OFlags::DIRECTORY.bits().cast_signed();
        let top = fs::OpenOptions::new().read(true).custom_flags(flags).open(&self.target).map_err(failed)?;
        self.levels.push(Some(top.into()));
        Ok(())
    }

    /// Handles replies up to and including the last one.
    pub(crate) fn all(
        mut self,
        mut next: impl FnMut() -> Option<GuestReply>,
    ) -> Result<Received, ReceiveError> {
        self.open()?;
        loop {
            match next() {
                Some(GuestReply::Item(item)) => self.step(item)?,
                Some(GuestReply::Skipped { path, reason }) => self.skip(path, reason),
                Some(GuestReply::Done) => return self.finish().map(Received::Whole),
                Some(GuestReply::Failed(reason)) => return Ok(Received::Failed(reason)),
                Some(_) => return Err(ReceiveError::Protocol),
                None => return Ok(Received::Lost),
            }
        }
    }

    /// Handles the next step.
    fn step(&mut self, item: Item) -> Result<(), ReceiveError> {
        if let Item::Data(bytes) = item {
            return self.data(&bytes);
        }
        self.close()?;
        if !matches!(item, Item::Leave) {
            self.entries += 1;
            if self.entries > self.limits.entries {
                return Err(ReceiveError::Protocol);
            }
        }
        match item {
            Item::Enter { name, mode } => self.enter(&name, mode),
            Item::Leave => {
                if self.levels.len() <= 1 {
                    return Err(ReceiveError::Protocol);
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

    /// Records an entry that was skipped inside.
    fn skip(&mut self, path: String, reason: String) {
        if self.skipped.len() < MAX_SKIPPED {
            let is_rest = self.file.as_ref().is_some_and(|file| file.path == Path::new(&path));
            let [path, reason] = [path, reason].map(|text| start_of(&text, MAX_SKIPPED_BYTES));
            self.skipped.push(Skipped { path, reason, is_rest });
        }
    }

    /// Finishes the copy; returns the skipped entries with the reasons.
    fn finish(mut self) -> Result<Vec<String>, ReceiveError> {
        self.close()?;
        // An entry that already exists on the host is not reported: it was written there to replace the other.
        let is_there = |path: &str| {
            let path = Path::new(path);
            let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
            inside && !path.as_os_str().is_empty() && self.target.join(path).symlink_metadata().is_ok()
        };
        let missing = self.skipped.iter().filter(|skipped| skipped.is_rest || !is_there(&skipped.path));
        let mut report: Vec<String> = missing
            .map(|Skipped { path, reason, .. }| match path.as_str() {
                "" => reason.clone(),
                path => format!("{}: {reason}", self.redactor.text(path)),
            })
            .collect();
        if self.secret > 0 {
            report.push(format!("{} entries that have secrets in their names or targets", self.secret));
        }
        Ok(report)
    }

    /// The current directory, and the path of an entry in it.
    fn locate(&self, name: &[u8]) -> Result<(Option<BorrowedFd<'_>>, PathBuf), ReceiveError> {
        if !is_name(name) {
            return Err(ReceiveError::Protocol);
        }
        let level = self.levels.last().ok_or(ReceiveError::Protocol)?;
        let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name);
        Ok((level.as_ref().map(|level| level.as_fd()), self.path.join(name)))
    }

    fn enter(&mut self, name: &[u8], mode: u32) -> Result<(), ReceiveError> {
        if self.levels.len() > MAX_DEPTH {
            return Err(ReceiveError::Protocol);
        }
        let (level, path) = self.locate(name)?;
        let hidden = self.redactor.finds(name);
        let below = match level {
            Some(level) if !hidden => {
                make_directory(level, name, mode).map_err(|error| self.host(&path, error))?
            }
            _ => None,
        };
        self.secret += u64::from(hidden);
        self.levels.push(below);
        self.path = path;
        Ok(())
    }

    fn create(&mut self, name: &[u8], mode: u32, times: Timestamps) -> Result<(), ReceiveError> {
        let (level, path) = self.locate(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let hidden = self.redactor.finds(name);
        let level = level.filter(|_| !hidden);
        let open = match level.map(|level| openat(level, name, flags, Mode::RUSR | Mode::WUSR)) {
            None | Some(Err(Errno::EXIST)) => None,
            Some(Err(error)) => return Err(self.host(&path, error)),
            Some(Ok(fd)) => Some(Open {
                file: fd.into(),
                mode: permissions(mode) | Mode::RUSR | Mode::WUSR,
                times,
                masked: (!self.redactor.is_empty()).then(|| self.redactor.stream()),
                ends_in_hole: false,
            }),
        };
        self.secret += u64::from(hidden);
        self.file = Some(Current { path, bytes: 0, open });
        Ok(())
    }

    fn link(&mut self, name: &[u8], target: &[u8]) -> Result<(), ReceiveError> {
        let (level, path) = self.locate(name)?;
        if !stays_inside(target, self.levels.len() - 1) {
            return Err(ReceiveError::Protocol);
        }
        if self.redactor.finds(name) || self.redactor.finds(target) {
            self.secret += 1;
            return Ok(());
        }
        match level.map(|level| symlinkat(target, level, name)) {
            None | Some(Ok(()) | Err(Errno::EXIST)) => Ok(()),
            Some(Err(error)) => Err(self.host(&path, error)),
        }
    }

    fn data(&mut self, bytes: &[u8]) -> Result<(), ReceiveError> {
        let count = bytes.len() as u64;
        self.bytes += count;
        let file = self.file.as_mut().ok_or(ReceiveError::Protocol)?;
        file.bytes += count;
        if self.bytes > self.limits.bytes || file.bytes > self.limits.file_bytes {
            return Err(ReceiveError::Protocol);
        }
        let Some(open) = &mut file.open else { return Ok(()) };
        open.take(bytes).map_err(|source| ReceiveError::Host { path: self.target.join(&file.path), source })
    }

    fn close(&mut self) -> Result<(), ReceiveError> {
        let Some(Current { path, open: Some(open), .. }) = self.file.take() else { return Ok(()) };
        open.end().map_err(|source| ReceiveError::Host { path: self.target.join(path), source })
    }

    fn host(&self, path: &Path, error: Errno) -> ReceiveError {
        ReceiveError::Host { path: self.target.join(path), source: error.into() }
    }
}

/// Opens a directory, which is created if missing; `None` if something else has its name.
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

/// The mode of a copy, without the set-user-ID, set-group-ID and sticky bits.
fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(RawMode::try_from(mode & 0o777).unwrap_or(0))
}

/// The start of a text that may be as long as a frame, in a new allocation.
pub(crate) fn start_of(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
