//! The directory on the host in which the files of a `COPY` are collected.
//!
//! Names and links in it come from the task, which is not trusted. So every component of a path is opened
//! relative to its parent directory, and links are not followed: a link from one source must not lead the next
//! one out of the directory.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, fchmod, mkdirat, openat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// A staging directory being filled. All paths are relative to it.
#[derive(Debug)]
pub(crate) struct Staging {
    top: OwnedFd,
    /// The modes that directories get at the end. A directory may be read-only, and later sources still add to
    /// it.
    modes: BTreeMap<PathBuf, u32>,
}

impl Staging {
    /// Creates the directory, which must not exist.
    pub(crate) fn create(path: &Path) -> io::Result<Staging> {
        mkdirat(CWD, path, Mode::RWXU)?;
        Ok(Staging { top: open_dir(CWD, path.as_os_str())?, modes: BTreeMap::new() })
    }

    /// Creates a directory with the given mode, or sets the mode of an existing one. A link is replaced.
    pub(crate) fn dir(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let (parent, name) = self.parent(path)?;
        if is_link(parent.as_fd(), name)? {
            unlinkat(&parent, name, AtFlags::empty())?;
        }
        match mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => {}
            // Anything else at this path is rejected when it is opened.
            Err(Errno::EXIST) => drop(open_dir(parent.as_fd(), name)?),
            Err(error) => return Err(error.into()),
        }
        self.modes.insert(path.to_owned(), mode);
        Ok(())
    }

    /// Creates a link and replaces an existing file or link.
    pub(crate) fn link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let (parent, name) = self.vacated(path)?;
        Ok(symlinkat(CString::new(target.as_os_str().as_bytes())?, &parent, name)?)
    }

    /// Creates an empty file that only its owner may use, and replaces an existing file or link.
    pub(crate) fn file(&self, path: &Path) -> io::Result<File> {
        let (parent, name) = self.vacated(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Sets the modes of the directories, and the given mode of the staging directory.
    pub(crate) fn finish(self, mode: u32) -> io::Result<()> {
        // Children before parents, because parents may be made inaccessible.
        for (path, mode) in self.modes.iter().rev() {
            let (parent, name) = self.parent(path)?;
            fchmod(open_dir(parent.as_fd(), name)?, Mode::from_raw_mode(*mode))?;
        }
        Ok(fchmod(&self.top, Mode::from_raw_mode(mode))?)
    }

    /// Opens the parent directory of a path, and removes an existing file or link of that name.
    fn vacated<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (parent, name) = self.parent(path)?;
        match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((parent, name)),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the parent directory of a path, which must consist of plain names.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let mut parent = self.top.try_clone()?;
        let mut components = path.components().peekable();
        while let Some(component) = components.next() {
            let Component::Normal(name) = component else { break };
            if components.peek().is_none() {
                return Ok((parent, name));
            }
            parent = open_dir(parent.as_fd(), name)?;
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "the path leaves the staging directory"))
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

fn is_link(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Symlink),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Place {
        dir: tempfile::TempDir,
        staging: Staging,
    }

    /// A staging directory next to a file and a directory that must stay unchanged.
    fn place() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/file"), "kept").unwrap();
        let staging = Staging::create(&dir.path().join("staging")).unwrap();
        Place { dir, staging }
    }

    impl Place {
        fn assert_outside_untouched(&self) {
            let outside = self.dir.path().join("outside");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
            assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
        }
    }

    #[test]
    fn a_directory_takes_the_place_of_a_link() {
        let mut place = place();
        place.staging.link(Path::new("x"), Path::new("../outside")).unwrap();
        place.staging.dir(Path::new("x"), 0o755).unwrap();
        place.staging.file(Path::new("x/new")).unwrap();
        assert!(place.dir.path().join("staging/x").symlink_metadata().unwrap().is_dir());
        place.assert_outside_untouched();
    }

    #[test]
    fn a_file_or_link_takes_the_place_of_a_link() {
        let place = place();
        for name in ["a", "b"] {
            place.staging.link(Path::new(name), Path::new("../outside/file")).unwrap();
        }
        place.staging.file(Path::new("a")).unwrap();
        place.staging.link(Path::new("b"), Path::new("other")).unwrap();
        assert!(place.dir.path().join("staging/a").symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_link(place.dir.path().join("staging/b")).unwrap(), Path::new("other"));
        place.assert_outside_untouched();
    }

    #[test]
    fn no_path_goes_through_a_link_or_out_of_the_directory() {
        let mut place = place();
        let absolute = place.dir.path().join("outside/new");
        place.staging.link(Path::new("x"), Path::new("../outside")).unwrap();
        for path in
            ["x/new", "x/file", "../outside/new", "x/../../outside/new", absolute.to_str().unwrap(), ".."]
        {
            assert!(place.staging.file(Path::new(path)).is_err(), "{path}");
            assert!(place.staging.link(Path::new(path), Path::new("t")).is_err(), "{path}");
            assert!(place.staging.dir(Path::new(path), 0o755).is_err(), "{path}");
        }
        place.assert_outside_untouched();
    }

    #[test]
    fn a_directory_and_a_file_do_not_replace_each_other() {
        let mut place = place();
        place.staging.dir(Path::new("d"), 0o755).unwrap();
        place.staging.file(Path::new("f")).unwrap();
        assert!(place.staging.file(Path::new("d")).is_err());
        assert!(place.staging.link(Path::new("d"), Path::new("t")).is_err());
        assert!(place.staging.dir(Path::new("f"), 0o755).is_err());
    }

    #[test]
    fn directories_get_the_mode_of_their_last_source() {
        let Place { dir, mut staging } = place();
        for (path, mode) in [("a", 0o500), ("a/b", 0o000), ("a", 0o750)] {
            staging.dir(Path::new(path), mode).unwrap();
        }
        staging.file(Path::new("a/b/f")).unwrap();
        staging.finish(0o711).unwrap();
        let mode = |path: &str| dir.path().join(path).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!([mode("staging"), mode("staging/a"), mode("staging/a/b")], [0o711, 0o750, 0o000]);
        rollout_guest::remove::remove_tree(&dir.path().join("staging")).unwrap();
    }
}
