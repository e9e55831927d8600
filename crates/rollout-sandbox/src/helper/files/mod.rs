//! File operations inside a sandbox: short ones by the supervisor, others in a process of their own.
//!
//! Paths are resolved by the kernel with the sandbox's root, so no link can lead to the host; links of /proc
//! that lead to open descriptors are refused, because one of those is the host's.

mod copy_in;
mod copy_out;

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, mkdirat, openat, openat2,
        readlinkat, statat, symlinkat, unlinkat,
    },
    io::Errno,
};
use serde::Serialize;

use rollout_guest::remove::remove_at;

use crate::{
    sys,
    wire::{self, FileCause, FileFailure, FileRequest, ReadAnswer},
};

const OVERLAYFS_MAGIC: i64 = 0x794c_7630;
const TMPFS_MAGIC: i64 = 0x0102_1994;

type Result<T, E = FileFailure> = std::result::Result<T, E>;

/// What is copied or read without a process of its own: at most this many bytes,
const SHORT_BYTES: u64 = 256 << 10;
/// in at most this many entries.
const SHORT_ENTRIES: usize = 64;

/// Serves one file operation in a forked process and ends it.
pub(super) fn serve(request: FileRequest, answer: OwnedFd, fds: Vec<OwnedFd>) -> ! {
    let mut keep = vec![answer.as_raw_fd()];
    keep.extend(fds.iter().map(AsRawFd::as_raw_fd));
    sys::close_all_except(&keep);
    let told = perform(request, answer, fds);
    sys::exit_now(i32::from(told.is_err()))
}

/// Whether an operation is over so soon that a process of its own would cost more than it.
///
/// What grows in the moment between this look and the copy is bounded by the copy's own limits.
pub(super) fn is_short(request: &FileRequest, fds: &[OwnedFd]) -> bool {
    match request {
        FileRequest::MakeDir { empty: false, .. } | FileRequest::Symlink { .. } => true,
        FileRequest::MakeDir { path, empty: true, .. } => is_soon_removed(path),
        FileRequest::Read { max_bytes, .. } => *max_bytes <= SHORT_BYTES,
        FileRequest::CopyIn { target, replace } => {
            fds.first().is_some_and(|source| is_small(source.as_fd()))
                && (!replace || is_soon_removed(target))
        }
        FileRequest::CopyOut { source, .. } => {
            let Ok(Some((parent, name))) = locate(source) else { return true };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            openat(&parent, &name, flags, Mode::empty()).is_ok_and(|source| is_small(source.as_fd()))
        }
        FileRequest::Remove { .. } => false,
    }
}

/// Whether a file or tree holds so little that it is copied in a moment.
fn is_small(source: BorrowedFd<'_>) -> bool {
    let (mut bytes, mut entries) = (0, 0);
    let mut count = |size: i64| {
        bytes += u64::try_from(size).unwrap_or(u64::MAX);
        entries += 1;
        bytes <= SHORT_BYTES && entries <= SHORT_ENTRIES
    };
    let Ok(stat) = fstat(source) else { return false };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return count(stat.st_size);
    }
    let Ok(top) = Dir::read_from(source) else { return false };
    let mut pending = vec![top];
    while let Some(mut dir) = pending.pop() {
        while let Some(entry) = dir.read() {
            let Ok(entry) = entry else { return false };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(parent) = dir.fd() else { return false };
            let Ok(stat) = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
            if !count(stat.st_size) {
                return false;
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let Ok(Ok(below)) = openat(parent, name, flags, Mode::empty()).map(Dir::new) else {
                    return false;
                };
                pending.push(below);
            }
        }
    }
    true
}

/// Whether there is nothing at a path, or a single entry: anything but a directory that holds others.
fn is_soon_removed(path: &str) -> bool {
    let Ok(Some((parent, name))) = locate(path) else { return true };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = openat(&parent, &name, flags, Mode::empty()) else { return true };
    let Ok(mut entries) = Dir::new(dir) else { return false };
    entries.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
}

/// Carries out one file operation and tells how it went.
pub(super) fn perform(request: FileRequest, answer: OwnedFd, mut fds: Vec<OwnedFd>) -> io::Result<()> {
    let answer = File::from(answer);
    match (request, fds.pop()) {
        (FileRequest::CopyIn { target, replace }, Some(source)) => {
            tell(&answer, &copy_in::copy_in(source, &target, replace))
        }
        (FileRequest::CopyOut { source, limits }, Some(target)) => {
            tell(&answer, &copy_out::copy_out(&source, target, limits))
        }
        (FileRequest::CopyIn { .. } | FileRequest::CopyOut { .. }, None) => Ok(()),
        (FileRequest::Read { path, max_bytes }, _) => read(&answer, &path, max_bytes),
        (FileRequest::MakeDir { path, mode, empty }, _) => tell(&answer, &make_dir(&path, mode, empty)),
        (FileRequest::Symlink { target, link }, _) => tell(&answer, &symlink(&target, &link)),
        (FileRequest::Remove { path }, _) => tell(&answer, &remove(&path)),
    }
}

fn tell<T: Serialize>(answer: &File, result: &Result<T>) -> io::Result<()> {
    wire::answer(answer, result)
}

/// Makes a failed system call on `path` a [`FileFailure`].
fn os<E: Into<io::Error>>(step: &'static str, path: &str) -> impl FnOnce(E) -> FileFailure {
    move |error| {
        let errno = error.into().raw_os_error().unwrap_or(libc::EIO);
        FileFailure { path: path.to_owned(), cause: FileCause::Os { step: step.to_owned(), errno } }
    }
}

/// Opens a directory by a path that may lead over links of the sandbox.
fn open_dir(base: BorrowedFd<'_>, path: &CStr, shown: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = openat2(base, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
        .map_err(os("opening", shown))?;
    check_file_system(&fd, shown)?;
    Ok(fd)
}

/// Refuses file systems that are the kernel's: their files are no part of an environment, and act when written.
fn check_file_system(fd: &OwnedFd, shown: &str) -> Result<()> {
    let kind = fstatfs(fd).map_err(os("examining", shown))?.f_type;
    if kind == OVERLAYFS_MAGIC || kind == TMPFS_MAGIC {
        Ok(())
    } else {
        Err(FileFailure { path: shown.to_owned(), cause: FileCause::Forbidden })
    }
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

/// Opens the directory that these components name, making what is missing.
fn make_parents(names: &[CString], shown: &str) -> Result<OwnedFd> {
    let mut dir = open_dir(CWD, c"/", "/")?;
    for name in names {
        match mkdirat(&dir, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            // A read-only directory may still have what is wanted.
            Err(Errno::ROFS | Errno::ACCESS) => {}
            Err(error) => return Err(os("making the parents of", shown)(error)),
        }
        dir = open_dir(dir.as_fd(), name, shown)?;
    }
    Ok(dir)
}

/// The directory of a path, made if missing, and the last component, which is not followed.
fn place(path: &str) -> Result<(OwnedFd, CString)> {
    let mut names = components(path)?;
    let name = names.pop().ok_or_else(|| os("changing", path)(Errno::BUSY))?;
    Ok((make_parents(&names, path)?, name))
}

fn make_dir(path: &str, mode: u32, empty: bool) -> Result<()> {
    if components(path)?.is_empty() && !empty {
        return Ok(());
    }
    let (parent, name) = place(path)?;
    if empty {
        remove_at(parent.as_fd(), &name).map_err(os("emptying", path))?;
    }
    match mkdirat(&parent, &name, Mode::RWXU) {
        Ok(()) => {
            let dir =
                openat(&parent, &name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                    .map_err(os("opening", path))?;
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode)).map_err(os("setting the mode of", path))
        }
        // A link to a directory is as good, unless it was to be new.
        Err(Errno::EXIST) if !empty => open_dir(parent.as_fd(), &name, path).map(drop),
        Err(error) => Err(os("making", path)(error)),
    }
}

fn symlink(target: &str, link: &str) -> Result<()> {
    let (parent, name) = place(link)?;
    match readlinkat(&parent, &name, Vec::new()) {
        Ok(_) => unlinkat(&parent, &name, AtFlags::empty()).map_err(os("replacing", link))?,
        Err(Errno::NOENT) => {}
        // A real file or directory of the image stays.
        Err(_) => return Ok(()),
    }
    symlinkat(target, &parent, &name).map_err(os("linking", link))
}

fn remove(path: &str) -> Result<()> {
    match locate(path)? {
        Some((parent, name)) => remove_at(parent.as_fd(), &name).map_err(os("removing", path)),
        None => Ok(()),
    }
}

/// The directory and last component of a path, without making anything; `None` when there is no such directory.
fn locate(path: &str) -> Result<Option<(OwnedFd, CString)>> {
    let mut names = components(path)?;
    let name = names.pop().ok_or_else(|| os("using", path)(Errno::BUSY))?;
    let mut dir = open_dir(CWD, c"/", "/")?;
    for name in &names {
        match open_dir(dir.as_fd(), name, path) {
            Ok(next) => dir = next,
            Err(FileFailure { cause: FileCause::Os { errno: libc::ENOENT | libc::ENOTDIR, .. }, .. }) => {
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(Some((dir, name)))
}

fn read(mut answer: &File, path: &str, max_bytes: u64) -> io::Result<()> {
    let mut content = Vec::new();
    let found = find(path, max_bytes, &mut content);
    tell(answer, &found)?;
    answer.write_all(&content)
}

fn find(path: &str, max_bytes: u64, content: &mut Vec<u8>) -> Result<ReadAnswer> {
    let Some((dir, name)) = locate(path)? else { return Ok(ReadAnswer::Missing) };
    match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(ReadAnswer::Missing),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
        Ok(_) => return Ok(ReadAnswer::NotRegular),
        Err(error) => return Err(os("examining", path)(error)),
    }
    let Some((file, size)) = open_regular(dir.as_fd(), &name, path)? else {
        return Ok(ReadAnswer::NotRegular);
    };
    if size > max_bytes {
        return Ok(ReadAnswer::TooLarge(size));
    }
    file.take(max_bytes + 1).read_to_end(content).map_err(os("reading", path))?;
    let length = u64::try_from(content.len()).expect("a length fits in 64 bits");
    if length > max_bytes {
        content.clear();
        return Ok(ReadAnswer::TooLarge(length));
    }
    Ok(ReadAnswer::Content(length))
}

/// Opens a regular file for reading, never waiting for a FIFO's writer; `None` when it is something else.
fn open_regular(dir: BorrowedFd<'_>, name: &CStr, shown: &str) -> Result<Option<(File, u64)>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match openat(dir, name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => return Ok(None),
        other => other.map_err(os("opening", shown))?,
    };
    let stat = fstat(&fd).map_err(os("examining", shown))?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(regular.then(|| (File::from(fd), size)))
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
