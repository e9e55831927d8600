//! Operations on the files of an environment, run by its first process.
//!
//! An agent controls these files: any path may contain links, and any name may be a FIFO, a device or a link
//! that replaced something else. The kernel resolves paths relative to the environment's root, so no link
//! reaches the host. Links of /proc to open descriptors are rejected, because such a descriptor may belong to
//! the host.

mod copy_in;
mod copy_out;
mod failure;

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, fchmod, fstat,
        fstatfs, mkdirat, openat, openat2, readlinkat, statat, symlinkat, unlinkat,
    },
    io::Errno,
};

pub use self::{
    copy_in::{CopiedFile, CopyInto},
    copy_out::{CopySink, copy_out},
    failure::{FileCause, FileFailure, os},
};
use crate::{protocol::FileLookup, remove::remove_at, wire::MAX_DATA};

/// The result of a file operation.
pub type FileResult<T> = Result<T, FileFailure>;

/// The mode of directories that are created as parents.
const PARENT_MODE: Mode = Mode::from_bits_retain(0o755);

/// Opens a directory without following a link.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Kernel file systems: they are not part of an environment, and writing to their files has effects.
const KERNELS: [i64; 10] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x1cd1,      // devpts
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x1980_0202, // mqueue
];

/// The owner of the files, which determines what can be assumed about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvironmentFiles {
    /// Files of a sandbox: created by its engine, on a kernel that can resolve paths without the links of
    /// /proc.
    Sandbox,
    /// Files of a container: created by any engine, with any mounts, on any kernel.
    Container,
}

impl EnvironmentFiles {
    /// Opens a path; follows links except those of /proc.
    fn open(self, base: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        match openat2(base, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
            // Some kernels and sandboxes lack this call. A container's first process has no descriptor of the
            // host that such a link could reach.
            Err(Errno::NOSYS | Errno::PERM) if self == Self::Container => {
                openat(base, path, flags, Mode::empty())
            }
            other => other,
        }
    }

    /// Opens a directory; follows links in the path.
    pub fn open_dir(self, base: BorrowedFd<'_>, path: &CStr, shown: &str) -> FileResult<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = self.open(base, path, flags).map_err(os("opening", shown))?;
        self.check(&fd, shown)?;
        Ok(fd)
    }

    /// Rejects file systems that are not part of the environment.
    fn check(self, fd: &OwnedFd, shown: &str) -> FileResult<()> {
        let system = match fstatfs(fd) {
            Err(_) if self == Self::Container => return Ok(()),
            system => system.map_err(os("examining", shown))?.f_type,
        };
        if KERNELS.contains(&system) { Err(FileFailure::new(shown, FileCause::Forbidden)) } else { Ok(()) }
    }

    /// Opens a directory, which is created if missing; a link to a directory is followed.
    fn directory(
        self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        mode: Mode,
        (making, shown): (&'static str, &str),
    ) -> FileResult<OwnedFd> {
        match mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => open_made(parent, name, mode, shown),
            Err(Errno::EXIST) => self.open_dir(parent, name, shown),
            // The entry may exist in a read-only directory.
            Err(error @ (Errno::ROFS | Errno::ACCESS)) => {
                self.open_dir(parent, name, shown).map_err(|_| os(making, shown)(error))
            }
            Err(error) => Err(os(making, shown)(error)),
        }
    }

    /// The parent directory of a path, created if missing, and the last component, which is not followed.
    fn place(self, path: &str) -> FileResult<(OwnedFd, CString)> {
        let mut names = components(path)?;
        let last = names.pop().ok_or_else(|| os("changing", path)(Errno::BUSY))?;
        let mut dir = self.open_dir(CWD, c"/", "/")?;
        for name in &names {
            dir = self.directory(dir.as_fd(), name, PARENT_MODE, ("creating the parents of", path))?;
        }
        Ok((dir, last))
    }

    /// The parent directory and last component of a path; `None` if the directory is missing. Creates nothing.
    pub fn locate(self, path: &str) -> FileResult<Option<(OwnedFd, CString)>> {
        let mut names = components(path)?;
        let last = names.pop().ok_or_else(|| os("using", path)(Errno::BUSY))?;
        let mut dir = self.open_dir(CWD, c"/", "/")?;
        for name in &names {
            match self.open_dir(dir.as_fd(), name, path) {
                Ok(next) => dir = next,
                Err(failure) if matches!(failure.errno(), Some(Errno::NOENT | Errno::NOTDIR)) => {
                    return Ok(None);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(Some((dir, last)))
    }

    /// Removes the entry of a name. A mount point, or a directory that contains one, cannot be removed, so only
    /// its content is removed; returns `true` if the entry is still there.
    fn vacate(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
        match remove_at(parent, name) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {}
            other => return other.map(|()| false),
        }
        let dir = openat(parent, name, DIRECTORY, Mode::empty())?;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            if !is_dots(entry.file_name()) {
                Self::vacate(dir.as_fd(), entry.file_name())?;
            }
        }
        Ok(true)
    }

    /// Creates a directory and its parents; with `empty`, an existing directory, file or link is removed first.
    pub fn make_dir(self, path: &str, mode: u32, empty: bool) -> FileResult<()> {
        if components(path)?.is_empty() && !empty {
            return Ok(());
        }
        let (parent, name) = self.place(path)?;
        let mode = Mode::from_raw_mode(mode);
        if !empty {
            return self.directory(parent.as_fd(), &name, mode, ("making", path)).map(drop);
        }
        let stays = Self::vacate(parent.as_fd(), &name).map_err(os("emptying", path))?;
        match mkdirat(&parent, &name, Mode::RWXU) {
            Err(Errno::EXIST) if stays => {}
            made => made.map_err(os("making", path))?,
        }
        open_made(parent.as_fd(), &name, mode, path).map(drop)
    }

    /// Creates a link and replaces an existing link; an existing file or directory is left unchanged.
    pub fn symlink(self, target: &str, link: &str) -> FileResult<()> {
        let (parent, name) = self.place(link)?;
        match readlinkat(&parent, &name, Vec::new()) {
            Ok(_) => unlinkat(&parent, &name, AtFlags::empty()).map_err(os("replacing", link))?,
            Err(Errno::NOENT) => {}
            Err(_) => return Ok(()),
        }
        symlinkat(target, &parent, &name).map_err(os("linking", link))
    }

    /// Removes a file or tree. A missing path is not an error.
    pub fn remove(self, path: &str) -> FileResult<()> {
        match self.locate(path)? {
            Some((parent, name)) => remove_at(parent.as_fd(), &name).map_err(os("removing", path)),
            None => Ok(()),
        }
    }

    /// Opens a regular file of at most `max_bytes` bytes; a link as the last component is not followed.
    pub fn find(self, path: &str, max_bytes: u64) -> FileResult<FileLookup<File>> {
        let Some((dir, name)) = self.locate(path)? else { return Ok(FileLookup::Missing) };
        match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(FileLookup::Missing),
            Ok(stat) if is_regular(&stat) => {}
            Ok(_) => return Ok(FileLookup::NotRegular),
            Err(error) => return Err(os("examining", path)(error)),
        }
        Ok(match open_regular(dir.as_fd(), &name).map_err(os("opening", path))? {
            None => FileLookup::NotRegular,
            Some((_, stat)) if size(&stat) > max_bytes => FileLookup::TooLarge(size(&stat)),
            Some((file, _)) => FileLookup::File(file),
        })
    }

    /// Reads the start of a text file that hostile processes may have replaced; empty if it is not a regular
    /// file.
    pub(crate) fn read_text(self, path: &CStr, max_bytes: u64) -> String {
        let mut text = Vec::new();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if let Ok(fd) = self.open(CWD, path, flags)
            && fstat(&fd).is_ok_and(|stat| is_regular(&stat))
        {
            // The bytes read before an error are used.
            let _ = File::from(fd).take(max_bytes).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Opens a directory that was just created, and sets its mode.
fn open_made(parent: BorrowedFd<'_>, name: &CStr, mode: Mode, shown: &str) -> FileResult<OwnedFd> {
    let dir = openat(parent, name, DIRECTORY, Mode::empty()).map_err(os("opening", shown))?;
    fchmod(&dir, mode).map_err(os("setting the mode of", shown))?;
    Ok(dir)
}

/// The components of a path from the root, with `.` and `..` resolved textually.
pub fn components(path: &str) -> FileResult<Vec<CString>> {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(CString::new(name).map_err(|_| os("naming", path)(Errno::INVAL))?),
        }
    }
    Ok(names)
}

/// Opens a regular file for reading without blocking on a FIFO; `None` for any other kind.
pub fn open_regular(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Option<(File, Stat)>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = match openat(dir, name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => return Ok(None),
        other => other?,
    };
    let stat = fstat(&fd)?;
    Ok(is_regular(&stat).then(|| (File::from(fd), stat)))
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// The next bytes of a file; `None` at its end.
pub fn chunk(file: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; MAX_DATA];
    loop {
        match file.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => return Ok(None),
            Ok(count) => {
                bytes.truncate(count);
                return Ok(Some(bytes));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether an entry is `.` or `..`.
pub fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// A modification time, for a copy.
pub fn times(seconds: i64, nanoseconds: u32) -> Timestamps {
    let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.min(999_999_999).into() };
    Timestamps { last_access: modified, last_modification: modified }
}

/// A path below the copied directory, for messages.
pub fn shown(parents: &[CString], name: &CStr) -> String {
    const LONGEST: usize = 1024;
    let mut text = String::new();
    for parent in parents {
        text.push_str(&parent.to_string_lossy());
        text.push('/');
        if text.len() > LONGEST {
            break;
        }
    }
    text.push_str(&name.to_string_lossy());
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
