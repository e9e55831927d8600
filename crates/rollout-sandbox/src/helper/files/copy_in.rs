//! Copying a file or tree of the host into a sandbox.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, fchmod, fstat, futimens, mkdirat,
        openat, readlinkat, statat, symlinkat,
    },
    io::Errno,
};

use super::{Result, open_dir, open_regular, os, place, shown};
use rollout_guest::remove::remove_at;

use crate::wire::{FileCause, FileFailure};

/// How deep a tree may be nested: each level holds two descriptors.
const MAX_DEPTH: usize = 200;

/// Copies the file, or what the directory holds, to `target`.
pub(super) fn copy_in(source: OwnedFd, target: &str, replace: bool) -> Result<()> {
    let stat = fstat(&source).map_err(os("examining", "the source"))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let (parent, name) = place(target)?;
            if replace {
                remove_at(parent.as_fd(), &name).map_err(os("replacing", target))?;
            }
            write_file(File::from(source), &stat, parent.as_fd(), &name, target)
        }
        FileType::Directory => {
            let top = make_top(target, replace)?;
            let entries = Dir::new(source).map_err(os("reading", "the source"))?;
            copy_tree(Level { entries, target: top })
        }
        _ => Err(special("the source")),
    }
}

fn make_top(target: &str, replace: bool) -> Result<OwnedFd> {
    // The root itself is a target, too.
    if super::components(target)?.is_empty() {
        return open_dir(rustix::fs::CWD, c"/", target);
    }
    let (parent, name) = place(target)?;
    if replace {
        remove_at(parent.as_fd(), &name).map_err(os("replacing", target))?;
    }
    directory(parent.as_fd(), &name, Mode::from_raw_mode(0o755), target)
}

struct Level {
    entries: Dir,
    target: OwnedFd,
}

fn copy_tree(top: Level) -> Result<()> {
    let mut path: Vec<CString> = Vec::new();
    let mut levels = vec![top];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.read() else {
            levels.pop();
            path.pop();
            continue;
        };
        let entry = entry.map_err(os("reading", &shown(&path, c"")))?;
        let name = entry.file_name().to_owned();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let source = level.entries.fd().map_err(os("reading", &shown(&path, &name)))?;
        let stat = statat(source, &name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(os("examining", &shown(&path, &name)))?;
        let target = level.target.as_fd();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if path.len() >= MAX_DEPTH => {
                return Err(os("descending into", &shown(&path, &name))(Errno::LOOP));
            }
            FileType::Directory => {
                let shown = shown(&path, &name);
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = openat(source, &name, flags, Mode::empty()).map_err(os("opening", &shown))?;
                let target = directory(target, &name, Mode::from_raw_mode(stat.st_mode & 0o1777), &shown)?;
                levels.push(Level { entries: Dir::new(below).map_err(os("reading", &shown))?, target });
                path.push(name);
            }
            FileType::RegularFile => {
                let shown = shown(&path, &name);
                let Some((file, _)) = open_regular(source, &name, &shown)? else {
                    return Err(special(&shown));
                };
                write_file(file, &stat, target, &name, &shown)?;
            }
            FileType::Symlink => {
                let shown = shown(&path, &name);
                let link = readlinkat(source, &name, Vec::new()).map_err(os("reading", &shown))?;
                clear(target, &name, &shown)?;
                symlinkat(link, target, &name).map_err(os("linking", &shown))?;
            }
            _ => return Err(special(&shown(&path, &name))),
        }
    }
    Ok(())
}

fn special(path: &str) -> FileFailure {
    FileFailure { path: path.to_owned(), cause: FileCause::Special }
}

/// Opens a directory of the sandbox, making it if there is none; a link to a directory is followed.
fn directory(parent: BorrowedFd<'_>, name: &CStr, mode: Mode, shown: &str) -> Result<OwnedFd> {
    let made = match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(os("making", shown)(error)),
    };
    let dir = open_dir(parent, name, shown)?;
    if made {
        fchmod(&dir, mode).map_err(os("setting the mode of", shown))?;
    }
    Ok(dir)
}

/// Makes room for a new entry where a file or link is; directories stay.
fn clear(target: BorrowedFd<'_>, name: &CStr, shown: &str) -> Result<()> {
    match rustix::fs::unlinkat(target, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(os("replacing", shown)(error)),
    }
}

fn write_file(mut source: File, stat: &Stat, dir: BorrowedFd<'_>, name: &CStr, shown: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(dir, name, flags, Mode::RUSR | Mode::WUSR);
    let target = match open() {
        Err(Errno::EXIST) => {
            clear(dir, name, shown)?;
            open()
        }
        other => other,
    };
    let mut target = File::from(target.map_err(os("making", shown))?);
    io::copy(&mut source, &mut target).map_err(os("writing", shown))?;
    fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(os("setting the mode of", shown))?;
    futimens(&target, &times(stat)).map_err(os("setting the time of", shown))
}

/// The modification time of a file, for its copy.
pub(super) fn times(stat: &Stat) -> Timestamps {
    let nanoseconds = stat.st_mtime_nsec.try_into().unwrap_or(0);
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: nanoseconds };
    Timestamps { last_access: modified, last_modification: modified }
}
