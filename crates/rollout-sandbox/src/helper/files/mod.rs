//! File operations inside a sandbox: the supervisor runs short ones itself, and others in a separate process.

mod copy_in;
mod copy_out;
mod pack;
mod place;
mod unpack;

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rollout_guest::{
    FileLookup,
    files::{EnvironmentFiles, FileResult, is_dots, os},
};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat};
use serde::Serialize;

use crate::{
    sys,
    wire::{self, FileRequest},
};

const FILES: EnvironmentFiles = EnvironmentFiles::Sandbox;

/// The most bytes that are copied in or read without a separate process.
const SHORT_BYTES: u64 = 256 << 10;
/// The same for a copy out: the content must fit into a pipe, together with the steps of the walk.
const SHORT_BYTES_OUT: u64 = 32 << 10;
/// The most entries that are copied without a separate process.
const SHORT_ENTRIES: usize = 64;

/// Runs one file operation in a forked process, then exits.
pub(super) fn serve(request: FileRequest, answer: OwnedFd, fds: Vec<OwnedFd>) -> ! {
    let mut keep = vec![answer.as_raw_fd()];
    keep.extend(fds.iter().map(AsRawFd::as_raw_fd));
    sys::close_all_except(&keep);
    let answered = perform(request, answer, fds);
    sys::exit_now(i32::from(answered.is_err()))
}

/// Whether an operation is so short that a separate process would cost more than the operation.
///
/// Growth between this check and the copy is bounded by the limits of the copy.
pub(super) fn is_short(request: &FileRequest, fds: &[OwnedFd]) -> bool {
    match request {
        FileRequest::MakeDir { empty: false, .. } | FileRequest::Symlink { .. } => true,
        FileRequest::MakeDir { path, empty: true, .. } => is_soon_removed(path),
        FileRequest::Read { max_bytes, .. } => *max_bytes <= SHORT_BYTES,
        FileRequest::CopyIn { target, replace } => {
            fds.first().is_some_and(|source| is_small(source.as_fd(), SHORT_BYTES))
                && (!replace || is_soon_removed(target))
        }
        FileRequest::CopyOut { source, .. } => {
            let Ok(Some((parent, name))) = FILES.locate(source) else { return true };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            openat(&parent, &name, flags, Mode::empty())
                .is_ok_and(|source| is_small(source.as_fd(), SHORT_BYTES_OUT))
        }
        FileRequest::MakeDirs { .. } => true,
        FileRequest::Remove { .. }
        | FileRequest::Find { .. }
        | FileRequest::Pack { .. }
        | FileRequest::Unpack(_) => false,
    }
}

/// Whether a file or tree is small enough to be copied quickly.
fn is_small(source: BorrowedFd<'_>, most: u64) -> bool {
    let (mut bytes, mut entries) = (0, 0);
    let mut count = |size: i64| {
        bytes += u64::try_from(size).unwrap_or(u64::MAX);
        entries += 1;
        bytes <= most && entries <= SHORT_ENTRIES
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
            if is_dots(name) {
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

/// Whether removing a path is quick: it is missing, an empty directory, or anything but a directory.
fn is_soon_removed(path: &str) -> bool {
    let Ok(Some((parent, name))) = FILES.locate(path) else { return true };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = openat(&parent, &name, flags, Mode::empty()) else { return true };
    let Ok(mut entries) = Dir::new(dir) else { return false };
    entries.all(|entry| entry.is_ok_and(|entry| is_dots(entry.file_name())))
}

/// Runs one file operation and sends its result.
pub(super) fn perform(request: FileRequest, answer: OwnedFd, mut fds: Vec<OwnedFd>) -> io::Result<()> {
    let answer = File::from(answer);
    match (request, fds.pop()) {
        (FileRequest::CopyIn { target, replace }, Some(source)) => {
            tell(&answer, &copy_in::copy_in(source, &target, replace))
        }
        (FileRequest::CopyOut { source, first, limits }, Some(stream)) => {
            tell(&answer, &copy_out::copy_out((&source, first.as_deref()), stream, limits))
        }
        (FileRequest::CopyIn { .. } | FileRequest::CopyOut { .. }, None) => Ok(()),
        (FileRequest::Read { path, max_bytes }, _) => read(&answer, &path, max_bytes),
        (FileRequest::MakeDir { path, mode, empty }, _) => tell(&answer, &FILES.make_dir(&path, mode, empty)),
        (FileRequest::Symlink { target, link }, _) => tell(&answer, &FILES.symlink(&target, &link)),
        (FileRequest::Unpack(request), Some(archive)) => tell(&answer, &unpack::unpack(&request, archive)),
        (FileRequest::Pack { source }, Some(stream)) => tell(&answer, &pack::pack(&source, stream)),
        (FileRequest::Unpack(_) | FileRequest::Pack { .. }, None) => Ok(()),
        (FileRequest::Find { pattern }, _) => tell(&answer, &pack::find(&pattern)),
        (FileRequest::MakeDirs { path, owner }, _) => tell(&answer, &make_dirs(&path, owner.as_deref())),
        (FileRequest::Remove { path }, _) => tell(&answer, &FILES.remove(&path)),
    }
}

fn make_dirs(path: &str, owner: Option<&str>) -> FileResult<()> {
    let owner = owner.map(place::find_owner).transpose()?;
    place::make_dirs(path, owner).map(drop)
}

fn tell<T: Serialize>(answer: &File, result: &FileResult<T>) -> io::Result<()> {
    wire::answer(answer, result)
}

fn read(mut answer: &File, path: &str, max_bytes: u64) -> io::Result<()> {
    let mut content = Vec::new();
    let found = find(path, max_bytes, &mut content);
    tell(answer, &found)?;
    answer.write_all(&content)
}

fn find(path: &str, max_bytes: u64, content: &mut Vec<u8>) -> FileResult<FileLookup<u64>> {
    let file = match FILES.find(path, max_bytes)? {
        FileLookup::File(file) => file,
        other => return Ok(other.map(|_| 0)),
    };
    file.take(max_bytes + 1).read_to_end(content).map_err(os("reading", path))?;
    let length = u64::try_from(content.len()).expect("a length fits in 64 bits");
    if length > max_bytes {
        content.clear();
        return Ok(FileLookup::TooLarge(length));
    }
    Ok(FileLookup::File(length))
}
