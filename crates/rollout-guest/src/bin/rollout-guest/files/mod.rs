//! File operations. The container's files are an agent's: any path may lead over links, and any name may be a
//! FIFO, a device or a link planted in the place of something else.

mod get;
mod put;

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rollout_guest::{Found, Item, MAX_DATA, Reply};
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, fchmod, fstat,
        fstatfs, mkdirat, openat, openat2, readlinkat, statat, symlinkat, unlinkat,
    },
    io::Errno,
};

pub(crate) use self::{get::get, put::Put};
use crate::out::Out;
use rollout_guest::remove::remove_at;

/// Scripts of any user write into the directories that are asked for.
const SHARED_DIR_MODE: Mode = Mode::from_bits_retain(0o777);
const PARENT_MODE: Mode = Mode::from_bits_retain(0o755);

/// File systems whose files are the kernel's: they are no part of an environment, and act when written.
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

/// What went wrong, for people.
type Result<T, E = String> = std::result::Result<T, E>;

/// Describes a failed step on a path.
fn os<E: Into<io::Error>>(step: &str, path: &str) -> impl FnOnce(E) -> String {
    move |error| format!("{step} {path} in the environment failed: {}", error.into())
}

/// A path with the error that the kernel gave for it, for those that treat errors differently.
struct Failed {
    errno: Errno,
    reason: String,
}

impl From<Failed> for String {
    fn from(failed: Failed) -> String {
        failed.reason
    }
}

/// Opens a directory by a path that may lead over links.
fn open_dir(base: BorrowedFd<'_>, path: &CStr, shown: &str) -> Result<OwnedFd, Failed> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match openat2(base, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        // Kernels and sandboxes that do not know the call; no link leads to the host without it either.
        Err(Errno::NOSYS | Errno::PERM) => openat(base, path, flags, Mode::empty()),
        other => other,
    };
    let fd = opened.map_err(|errno| Failed { errno, reason: os("opening", shown)(errno) })?;
    if is_kernels(&fd) {
        let reason = format!(
            "{shown} leads into a file system of the kernel, whose files are no part of the environment"
        );
        return Err(Failed { errno: Errno::PERM, reason });
    }
    Ok(fd)
}

fn is_kernels(fd: &OwnedFd) -> bool {
    fstatfs(fd).is_ok_and(|system| KERNELS.contains(&system.f_type))
}

/// The components of a path from the root, with `.` and `..` taken out by the text alone.
fn components(path: &str) -> Result<Vec<CString>> {
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

/// The directory of a path, made if missing, and the last component, which is not followed.
fn place(path: &str) -> Result<(OwnedFd, CString)> {
    let mut names = components(path)?;
    let last = names.pop().ok_or_else(|| os("changing", path)(Errno::BUSY))?;
    let mut dir = open_dir(CWD, c"/", "/")?;
    for name in &names {
        match mkdirat(&dir, name, Mode::RWXU) {
            Ok(()) => {
                let made = open_dir(dir.as_fd(), name, path)?;
                fchmod(&made, PARENT_MODE).map_err(os("setting the mode of a parent of", path))?;
                dir = made;
                continue;
            }
            // A read-only directory may still have what is wanted.
            Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS) => {}
            Err(error) => return Err(os("making the parents of", path)(error)),
        }
        dir = open_dir(dir.as_fd(), name, path).map_err(|failed| match failed.errno {
            Errno::NOENT => os("making the parents of", path)(Errno::ROFS),
            _ => failed.reason,
        })?;
    }
    Ok((dir, last))
}

/// The directory and last component of a path, without making anything; `None` when there is no such directory.
fn locate(path: &str) -> Result<Option<(OwnedFd, CString)>> {
    let mut names = components(path)?;
    let last = names.pop().ok_or_else(|| os("using", path)(Errno::BUSY))?;
    let mut dir = open_dir(CWD, c"/", "/")?;
    for name in &names {
        match open_dir(dir.as_fd(), name, path) {
            Ok(next) => dir = next,
            Err(Failed { errno: Errno::NOENT | Errno::NOTDIR, .. }) => return Ok(None),
            Err(failed) => return Err(failed.reason),
        }
    }
    Ok(Some((dir, last)))
}

/// Removes what is at a name. A mount point cannot go, so what it holds does; `true` when it is still there.
fn vacate(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    match remove_at(parent, name) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {}
        other => return other.map(|()| false),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(parent, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            remove_at(dir.as_fd(), entry.file_name())?;
        }
    }
    Ok(true)
}

/// Makes directories; with `empty`, whatever was there, a link included, is gone.
pub(crate) fn make_dirs(paths: &[String], empty: bool) -> Result<()> {
    paths.iter().try_for_each(|path| make_dir(path, empty))
}

fn make_dir(path: &str, empty: bool) -> Result<()> {
    if components(path)?.is_empty() && !empty {
        return Ok(());
    }
    let (parent, name) = place(path)?;
    let stays = empty && vacate(parent.as_fd(), &name).map_err(os("emptying", path))?;
    match mkdirat(&parent, &name, Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) if stays => {}
        // A link to a directory is as good, unless it was to be new.
        Err(Errno::EXIST) if !empty => return Ok(open_dir(parent.as_fd(), &name, path).map(drop)?),
        // A read-only directory may still have what is wanted.
        Err(Errno::ROFS | Errno::ACCESS) if !empty && open_dir(parent.as_fd(), &name, path).is_ok() => {
            return Ok(());
        }
        Err(error) => return Err(os("making", path)(error)),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(&parent, &name, flags, Mode::empty()).map_err(os("opening", path))?;
    fchmod(&dir, SHARED_DIR_MODE).map_err(os("setting the mode of", path))
}

/// Makes a link, replacing another link; a real file or directory is left alone.
pub(crate) fn link(target: &str, link: &str) -> Result<()> {
    let (parent, name) = place(link)?;
    match readlinkat(&parent, &name, Vec::new()) {
        Ok(_) => unlinkat(&parent, &name, AtFlags::empty()).map_err(os("replacing", link))?,
        Err(Errno::NOENT) => {}
        Err(_) => return Ok(()),
    }
    symlinkat(target, &parent, &name).map_err(os("linking", link))
}

/// Sends a file's content, of at most one byte more than allowed, which shows that there is more.
pub(crate) fn read(out: &Out, id: u32, path: &str, max_bytes: u64) -> Result<()> {
    let found = |found| {
        out.send(id, &Reply::Found(found));
        Ok(())
    };
    let Some((dir, name)) = locate(path)? else { return found(Found::Missing) };
    match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return found(Found::Missing),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
        Ok(_) => return found(Found::NotRegular),
        Err(error) => return Err(os("examining", path)(error)),
    }
    let Some((file, stat)) = open_regular(dir.as_fd(), &name).map_err(os("opening", path))? else {
        return found(Found::NotRegular);
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > max_bytes {
        return found(Found::TooLarge(size));
    }
    out.send(id, &Reply::Found(Found::File));
    let mut file = file.take(max_bytes.saturating_add(1));
    while let Some(bytes) = chunk(&mut file).map_err(os("reading", path))? {
        out.send(id, &Reply::Item(Item::Data(bytes)));
    }
    Ok(())
}

/// The next bytes of a file; `None` at its end.
fn chunk(file: &mut impl io::Read) -> io::Result<Option<Vec<u8>>> {
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

/// Opens a regular file for reading, never waiting for a FIFO's writer; `None` when it is something else.
fn open_regular(dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<(File, Stat)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = match openat(dir, name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => return Ok(None),
        other => other?,
    };
    let stat = fstat(&fd)?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(regular.then(|| (File::from(fd), stat)))
}

/// A modification time, for a copy.
fn times(seconds: i64, nanoseconds: u32) -> Timestamps {
    let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.min(999_999_999).into() };
    Timestamps { last_access: modified, last_modification: modified }
}

/// A path below the copied directory for people to read.
fn shown(parents: &[CString], name: &CStr) -> String {
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
