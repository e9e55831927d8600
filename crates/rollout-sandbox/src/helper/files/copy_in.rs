//! Copies a file or tree of the host into a sandbox.

use std::{ffi::CStr, fs::File, io, os::fd::OwnedFd};

use rollout_guest::files::{CopyInto, FileCause, FileFailure, FileResult, is_dots, open_regular, os, times};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};

use super::FILES;

/// Copies the file, or the content of the directory, to `target`.
pub(super) fn copy_in(source: OwnedFd, target: &str, replace: bool) -> FileResult<()> {
    let stat = fstat(&source).map_err(os("examining", "the source"))?;
    let start = |file| CopyInto::start(FILES, target, file, replace);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => write_file(&mut start(true)?, c"", File::from(source), &stat),
        FileType::Directory => {
            copy_tree(&mut start(false)?, Dir::new(source).map_err(os("reading", "the source"))?)
        }
        _ => Err(special("the source")),
    }
}

fn copy_tree(copy: &mut CopyInto, top: Dir) -> FileResult<()> {
    let mut levels = vec![top];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.read() else {
            levels.pop();
            copy.leave();
            continue;
        };
        let entry = entry.map_err(os("reading", &copy.shown(c"")))?;
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        let shown = copy.shown(name);
        let source = level.fd().map_err(os("reading", &shown))?;
        let stat = statat(source, name, AtFlags::SYMLINK_NOFOLLOW).map_err(os("examining", &shown))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                copy.enter(name, stat.st_mode)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = openat(source, name, flags, Mode::empty()).map_err(os("opening", &shown))?;
                levels.push(Dir::new(below).map_err(os("reading", &shown))?);
            }
            FileType::RegularFile => {
                let opened = open_regular(source, name).map_err(os("opening", &shown))?;
                let (file, _) = opened.ok_or_else(|| special(&shown))?;
                write_file(copy, name, file, &stat)?;
            }
            FileType::Symlink => {
                let link = readlinkat(source, name, Vec::new()).map_err(os("reading", &shown))?;
                copy.link(name, link.to_bytes())?;
            }
            _ => return Err(special(&shown)),
        }
    }
    Ok(())
}

fn special(path: &str) -> FileFailure {
    FileFailure::new(path, FileCause::Special)
}

fn write_file(copy: &mut CopyInto, name: &CStr, mut source: File, stat: &Stat) -> FileResult<()> {
    let nanoseconds = stat.st_mtime_nsec.try_into().unwrap_or(0);
    let mut target = copy.file(name, stat.st_mode, times(stat.st_mtime, nanoseconds))?;
    io::copy(&mut source, &mut target.file).map_err(os("writing", &target.shown))?;
    target.finish()
}
