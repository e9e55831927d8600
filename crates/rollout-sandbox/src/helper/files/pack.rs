//! Finds files of a sandbox, and packs them into an archive, for the copies of builds.

use std::{
    collections::HashMap,
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use rollout_guest::files::{FileCause, FileFailure, FileResult, components, is_dots, os};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fgetxattr, fstat, openat, readlinkat, statat},
    io::Errno,
};
use tar::{Builder, EntryType, Header};

use super::FILES;
use crate::{
    pattern::{component_matches, is_pattern},
    tar_stream::{CAPABILITIES, XATTR, header, join},
    wire::FoundFile,
};

/// The most files that a pattern may name.
const MAX_FOUND: usize = 10_000;

/// The most directories inside each other.
const MAX_DEPTH: usize = 512;

/// Directories of the root that a sandbox mounts itself.
const MOUNTED: [&str; 3] = ["dev", "proc", "sys"];

/// The largest value of an extended attribute that is read.
const MAX_ATTRIBUTE: usize = 4096;

/// Finds the files that a path names, which may be a pattern. Links are followed.
pub(super) fn find(pattern: &str) -> FileResult<Vec<FoundFile>> {
    let mut found = vec![String::new()];
    for part in components(pattern)? {
        let part = part.to_string_lossy().into_owned();
        let mut next = Vec::new();
        for parent in found {
            match is_pattern(&part) {
                false => next.push(format!("{parent}/{part}")),
                true => next.extend(matching(&parent, &part)),
            }
            if next.len() > MAX_FOUND {
                return Err(os("finding the files of", pattern)(Errno::TOOBIG));
            }
        }
        found = next;
    }
    let mut files = Vec::new();
    for path in found {
        let path = if path.is_empty() { "/".to_owned() } else { path };
        let name = CString::new(path.as_str()).map_err(|_| os("naming", pattern)(Errno::INVAL))?;
        match statat(CWD, &name, AtFlags::empty()) {
            Ok(stat) => {
                let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                files.push(FoundFile { path, is_dir });
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(os("examining", &path)(error)),
        }
    }
    Ok(files)
}

/// The entries of a directory that match a pattern, sorted.
fn matching(parent: &str, pattern: &str) -> Vec<String> {
    let shown = if parent.is_empty() { "/" } else { parent };
    let opened = CString::new(shown).ok().and_then(|path| FILES.open_dir(CWD, &path, shown).ok());
    let Some(Ok(dir)) = opened.map(Dir::new) else { return Vec::new() };
    let entries = dir.filter_map(Result::ok).filter(|entry| !is_dots(entry.file_name()));
    let mut found: Vec<String> = entries
        .filter(|entry| component_matches(pattern.as_bytes(), entry.file_name().to_bytes()))
        .map(|entry| format!("{parent}/{}", entry.file_name().to_string_lossy()))
        .collect();
    found.sort();
    found
}

/// Writes the content of a directory, or one file, to a pipe.
pub(super) fn pack(source: &str, stream: OwnedFd) -> FileResult<()> {
    let mut packer =
        Packer { archive: Builder::new(io::BufWriter::new(File::from(stream))), linked: HashMap::new() };
    packer.archive.mode(tar::HeaderMode::Complete);
    let path = CString::new(source).map_err(|_| os("naming", source)(Errno::INVAL))?;
    let stat = statat(CWD, &path, AtFlags::empty()).map_err(os("examining", source))?;
    let packed = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let dir = FILES.open_dir(CWD, &path, source)?;
            packer.tree(dir, Path::new(""), components(source)?.is_empty(), 0)
        }
        FileType::RegularFile => {
            let name = source.rsplit('/').next().unwrap_or_default();
            packer.file(CWD, &path, Path::new(name), &stat, true)
        }
        _ => return Err(FileFailure::new(source, FileCause::Special)),
    };
    let written = packed.and_then(|()| packer.archive.into_inner()?.flush());
    written.map_err(os("packing", source))
}

struct Packer {
    archive: Builder<io::BufWriter<File>>,
    /// Files with several names, by device and number.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl Packer {
    fn tree(&mut self, dir: OwnedFd, path: &Path, is_root: bool, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(Errno::LOOP.into());
        }
        let mut entries: Vec<CString> = Vec::new();
        for entry in Dir::read_from(&dir)? {
            entries.push(entry?.file_name().to_owned());
        }
        entries.sort();
        for name in entries {
            let shown = OsStr::from_bytes(name.to_bytes());
            if is_dots(&name) || (is_root && MOUNTED.iter().any(|mounted| shown == *mounted)) {
                continue;
            }
            let stat = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            let path = join(path, Path::new(shown));
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    // A kernel file system is not part of the files.
                    let Ok(below) = FILES.open_dir(dir.as_fd(), &name, &path.to_string_lossy()) else {
                        continue;
                    };
                    let mut header = described(EntryType::Directory, &stat, 0);
                    self.archive.append_data(&mut header, &path, io::empty())?;
                    self.tree(below, &path, false, depth + 1)?;
                }
                FileType::RegularFile => self.file(dir.as_fd(), &name, &path, &stat, false)?,
                FileType::Symlink => {
                    let target = readlinkat(&dir, &name, Vec::new())?;
                    let mut header = described(EntryType::Symlink, &stat, 0);
                    let target = Path::new(OsStr::from_bytes(target.to_bytes()));
                    self.archive.append_link(&mut header, &path, target)?;
                }
                FileType::Fifo => {
                    let mut header = described(EntryType::Fifo, &stat, 0);
                    self.archive.append_data(&mut header, &path, io::empty())?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        dir: std::os::fd::BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
        stat: &Stat,
        follow: bool,
    ) -> io::Result<()> {
        if stat.st_nlink > 1 {
            let id = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.linked.get(&id) {
                let mut header = described(EntryType::Link, stat, 0);
                return self.archive.append_link(&mut header, path, first);
            }
            self.linked.insert(id, path.to_owned());
        }
        let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !follow);
        let file = File::from(openat(dir, name, flags, Mode::empty())?);
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        self.attribute(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let mut header = described(EntryType::Regular, &stat, size);
        self.archive.append_data(&mut header, path, io::Read::take(file, size))
    }

    /// Writes the capabilities of a program before its entry.
    fn attribute(&mut self, file: &File) -> io::Result<()> {
        let mut value = vec![0; MAX_ATTRIBUTE];
        let Ok(length) = fgetxattr(file, CAPABILITIES, value.as_mut_slice()) else { return Ok(()) };
        let record = pax_record(&format!("{XATTR}{CAPABILITIES}"), &value[..length]);
        let mut header = header(EntryType::XHeader, 0o644, (0, 0), 0, record.len() as u64);
        self.archive.append_data(&mut header, "pax", record.as_slice())
    }
}

fn described(kind: EntryType, stat: &Stat, size: u64) -> Header {
    let time = u64::try_from(stat.st_mtime).unwrap_or_default();
    header(kind, stat.st_mode, (stat.st_uid, stat.st_gid), time, size)
}

/// A record of an extended header: its own length, a name and a value.
fn pax_record(name: &str, value: &[u8]) -> Vec<u8> {
    let rest = name.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    let mut record = format!("{length} {name}=").into_bytes();
    record.extend_from_slice(value);
    record.push(b'\n');
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for length in [0, 1, 80, 84, 85, 86, 87, 88, 89, 90, 980, 1000] {
            let record = pax_record("name", &vec![b'x'; length]);
            let text = String::from_utf8(record.clone()).unwrap();
            assert_eq!(text.split(' ').next().unwrap().parse(), Ok(record.len()), "{length}");
        }
    }
}
