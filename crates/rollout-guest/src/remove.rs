//! Removes untrusted trees: any depth, any modes, links never followed.

use std::{
    ffi::{CStr, CString, OsStr},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, fchmod, ioctl_getflags, ioctl_setflags, openat,
        renameat, statat, unlinkat,
    },
    io::Errno,
};

/// The number of directories that are open at once; deeper ones are first moved up.
const MAX_OPEN: usize = 64;
/// How often a directory that does not become empty is retried, because another process may still be filling
/// it.
const MAX_RETRIES: u32 = 200;

/// Removes a file or tree. A missing path is not an error. An error names the path that could not be removed.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut removal = Removal::default();
    removal.remove(CWD, &name).map_err(|error| {
        let left = removal.failed.take().unwrap_or_else(|| path.to_owned());
        io::Error::new(error.kind(), format!("{}: {error}", left.display()))
    })
}

/// Removes the file or tree `name` of the directory `parent`. A missing entry is not an error.
pub(crate) fn remove_at(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    Removal::default().remove(parent, name)
}

/// Unlinks an entry, also an immutable one if that is permitted.
fn unlink(parent: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> rustix::io::Result<()> {
    match unlinkat(parent, name, flags) {
        // The parent directory may be the immutable one.
        Err(Errno::PERM) if make_mutable(parent, name) | make_mutable(parent, c".") => {
            unlinkat(parent, name, flags)
        }
        other => other,
    }
}

/// Clears the attributes that make a file or directory immutable; `false` if it has none or this is not
/// permitted.
fn make_mutable(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    let kind =
        statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| FileType::from_raw_mode(stat.st_mode));
    // Opening anything else could have side effects.
    if !matches!(kind, Ok(FileType::RegularFile | FileType::Directory)) {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fixed = IFlags::IMMUTABLE | IFlags::APPEND;
    openat(parent, name, flags, Mode::empty()).is_ok_and(|fd| {
        ioctl_getflags(&fd)
            .is_ok_and(|flags| flags.intersects(fixed) && ioctl_setflags(&fd, flags - fixed).is_ok())
    })
}

struct Level {
    name: CString,
    entries: Dir,
    fd: OwnedFd,
}

#[derive(Default)]
struct Removal {
    levels: Vec<Level>,
    moved: u64,
    moved_before: u64,
    retries: u32,
    /// The path that could not be removed.
    failed: Option<PathBuf>,
}

impl Removal {
    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        match unlink(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        // A mount point is detected before its content is removed.
        match unlink(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCESS | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        self.run(parent, name)
    }

    fn run(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        self.levels.extend(open_level(parent, name)?);
        while let Some(level) = self.levels.last_mut() {
            match level.entries.read().transpose()? {
                Some(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Some(entry) => {
                    let name = entry.file_name().to_owned();
                    if let Err(error) = self.remove_entry(&name, entry.file_type()) {
                        let above = self.levels.iter().map(|level| &level.name);
                        let names = above.chain([&name]).map(|name| OsStr::from_bytes(name.to_bytes()));
                        self.failed = Some(names.collect());
                        return Err(error);
                    }
                }
                None => self.leave(parent)?,
            }
        }
        Ok(())
    }

    fn remove_entry(&mut self, name: &CStr, kind: FileType) -> io::Result<()> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let fd = level.fd.as_fd();
        let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlink(fd, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR) if self.levels.len() < MAX_OPEN => {
                let below = open_level(fd, name)?;
                self.levels.extend(below);
                Ok(())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR) => {
                self.moved += 1;
                let top = &self.levels[0].fd;
                Ok(renameat(fd, name, top, format!(".rollout-removed-{}", self.moved))?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A directory into which entries were moved is always retried; one that other processes fill is retried a
    /// limited number of times.
    fn may_retry(&mut self) -> bool {
        if self.levels.is_empty() && self.moved > self.moved_before {
            self.moved_before = self.moved;
            return true;
        }
        self.retries += 1;
        self.retries <= MAX_RETRIES
    }

    fn leave(&mut self, parent: BorrowedFd<'_>) -> io::Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let directory = self.levels.last().map_or(parent, |above| above.fd.as_fd());
        match unlink(directory, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let again = open_level(directory, &level.name)?;
        if !self.may_retry() {
            return Err(Errno::NOTEMPTY.into());
        }
        self.levels.extend(again);
        Ok(())
    }
}

/// Opens a directory for removal; `None` if it no longer exists.
fn open_level(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<Level>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(Errno::ACCESS) => {
            make_accessible(parent, name)?;
            openat(parent, name, flags, Mode::empty())?
        }
        other => other?,
    };
    if !rustix::process::geteuid().is_root() {
        // If this fails, removing the entries reports the error.
        let _ = fchmod(&fd, Mode::RWXU);
    }
    Ok(Some(Level { name: name.to_owned(), entries: Dir::read_from(&fd)?, fd }))
}

/// Makes a directory accessible to its owner, the caller.
fn make_accessible(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(parent, name, flags, Mode::empty())?;
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::RWXU)?)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn removing_a_missing_tree_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        remove_tree(&dir.path().join("nothing")).unwrap();
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
        fs::create_dir(dir.path().join("kept")).unwrap();
        fs::write(dir.path().join("kept/file"), "x").unwrap();
        symlink("../../kept", dir.path().join("tree/sub/link")).unwrap();
        remove_tree(&dir.path().join("tree")).unwrap();
        assert!(!dir.path().join("tree").exists());
        assert!(dir.path().join("kept/file").exists());
    }

    #[test]
    fn immutable_files_and_directories_are_removed_or_reported() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/file"), "x").unwrap();
        let set = |path: &str, on: bool| {
            let file = fs::File::open(tree.join(path)).unwrap();
            let flags = ioctl_getflags(&file)?;
            let wanted = if on { flags | IFlags::IMMUTABLE } else { flags - IFlags::IMMUTABLE };
            ioctl_setflags(&file, wanted)
        };
        // Only root can do this, and not on every file system.
        if set("sub/file", true).and_then(|()| set("sub", true)).is_err() {
            return;
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_path_that_cannot_be_removed_is_reported() {
        let error = remove_tree(Path::new("/proc/self/fdinfo")).unwrap_err();
        assert!(error.to_string().starts_with("/proc/self/fdinfo"), "{error}");
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("deep");
        fs::create_dir(&top).unwrap();
        let mut fd = rustix::fs::open(&top, OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..600 {
            rustix::fs::mkdirat(&fd, "a-directory", Mode::RWXU).unwrap();
            fd = openat(&fd, "a-directory", OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        drop(fd);
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }
}
