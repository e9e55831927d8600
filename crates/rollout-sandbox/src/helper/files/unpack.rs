//! Unpacks an archive into a sandbox, for the copies of builds.

use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use rollout_guest::files::{FileResult, os};
use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, Uid, XattrFlags, chownat, fchmod, fchown, fsetxattr, futimens,
        linkat, mkdirat, mknodat, openat, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};
use tar::{Archive, Entry, EntryType};

use super::{
    FILES,
    place::{self, Owner, Place},
};
use crate::{
    tar_stream::{attributes, inside, invalid, owner, times},
    wire::{EntryOwners, UnpackRequest},
};

/// Unpacks the archive that a pipe contains.
pub(super) fn unpack(request: &UnpackRequest, archive: OwnedFd) -> FileResult<()> {
    let given = request.owner.as_deref().map(place::find_owner).transpose()?;
    let place = match request.into_dir {
        true => Place::Dir(place::make_dirs(&request.target, given)?),
        false => place::place_file(&request.target, given)?,
    };
    let (top, single) = match place {
        Place::Dir(top) => (top, None),
        Place::File(parent, name) => (parent, Some(name)),
    };
    let mut target = UnpackTarget { request, top, single, given, parent: None };
    let mut archive = Archive::new(io::BufReader::with_capacity(1 << 16, File::from(archive)));
    let entries = archive.entries().map_err(os("reading an archive for", &request.target))?;
    for entry in entries {
        let mut entry = entry.map_err(os("reading an archive for", &request.target))?;
        let shown = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        target.add(&mut entry).map_err(os("writing", &shown))?;
    }
    // An archive may be padded. The writer must not find its pipe closed.
    io::copy(&mut archive.into_inner(), &mut io::sink())
        .map(drop)
        .map_err(os("reading an archive for", &request.target))
}

/// Where an archive is unpacked.
struct UnpackTarget<'a> {
    request: &'a UnpackRequest,
    top: OwnedFd,
    /// The name of a single file.
    single: Option<CString>,
    given: Option<Owner>,
    /// The directory of the last entry, which is usually that of the next one.
    parent: Option<(PathBuf, OwnedFd)>,
}

impl UnpackTarget<'_> {
    fn add(&mut self, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let path = inside(&entry.path_bytes())?;
        let kind = entry.header().entry_type();
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            // The top itself keeps its mode and owner.
            return Ok(());
        };
        let name = match &self.single {
            Some(single) => single.clone(),
            None => {
                self.go_to(path.parent().unwrap_or(Path::new("")))?;
                CString::new(name.as_bytes())?
            }
        };
        let dir = self.dir();
        match kind {
            EntryType::Directory => self.directory(dir, &name, entry),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => self.file(dir, &name, entry),
            EntryType::Symlink => self.link(dir, &name, entry),
            EntryType::Link => self.hard_link(dir, &name, entry),
            EntryType::Fifo => {
                clear(dir, &name)?;
                mknodat(dir, &name, FileType::Fifo, self.mode(entry)?, 0)?;
                self.own(dir, &name, entry)
            }
            // Devices are left out: a sandbox has its own. Other entries describe the ones that follow.
            _ => Ok(()),
        }
    }

    /// The directory of the current entry.
    fn dir(&self) -> &OwnedFd {
        self.parent.as_ref().filter(|_| self.single.is_none()).map_or(&self.top, |(_, dir)| dir)
    }

    /// Opens the directory of an entry.
    fn go_to(&mut self, path: &Path) -> io::Result<()> {
        if self.parent.as_ref().is_some_and(|(known, _)| known == path) {
            return Ok(());
        }
        let mut dir = self.top.try_clone()?;
        for name in path.iter() {
            let shown = name.to_string_lossy();
            let name = CString::new(name.as_bytes())?;
            dir = place::enter(&dir, &name, self.given, &shown)
                .map_err(|failure| io::Error::other(failure.to_string()))?;
        }
        self.parent = Some((path.to_owned(), dir));
        Ok(())
    }

    fn directory(&self, dir: &OwnedFd, name: &CString, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        match mkdirat(dir, name, Mode::RWXU) {
            Err(Errno::EXIST) if is_link(dir, name)? => {
                // A link to a directory stands for the directory, which stays as it is.
                if FILES.open_dir(dir.as_fd(), name, "").is_ok() {
                    return Ok(());
                }
                clear(dir, name)?;
                mkdirat(dir, name, Mode::RWXU)?;
            }
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let made = FILES.open_dir(dir.as_fd(), name, &name.to_string_lossy());
        let made = made.map_err(|failure| io::Error::other(failure.to_string()))?;
        if let Some((user, group)) = self.owner_of(entry)? {
            fchown(&made, Some(user), Some(group))?;
        }
        Ok(fchmod(&made, self.mode(entry)?)?)
    }

    fn file(&self, dir: &OwnedFd, name: &CString, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let (mode, time) = (self.mode(entry)?, entry.header().mtime()?);
        let owner = self.owner_of(entry)?;
        let attributes = attributes(entry);
        clear(dir, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
        io::copy(entry, &mut file)?;
        if let Some((user, group)) = owner {
            fchown(&file, Some(user), Some(group))?;
        }
        for (name, value) in attributes {
            // File systems differ in what they can hold; a missing attribute shows itself to the program.
            let _ = fsetxattr(&file, name.as_str(), &value, XattrFlags::empty());
        }
        // After the owner, which clears some bits.
        fchmod(&file, mode)?;
        Ok(futimens(&file, &times(time))?)
    }

    fn link(&self, dir: &OwnedFd, name: &CString, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        let target = entry.link_name_bytes().ok_or_else(|| invalid("a link without a target"))?;
        clear(dir, name)?;
        symlinkat(OsStr::from_bytes(&target), dir, name)?;
        self.own(dir, name, entry)?;
        Ok(utimensat(dir, name, &times(entry.header().mtime()?), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn hard_link(&self, dir: &OwnedFd, name: &CString, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        let target = entry.link_name_bytes().ok_or_else(|| invalid("a link without a target"))?;
        let target = inside(&target)?;
        clear(dir, name)?;
        // Both are inside the sandbox, whatever links the path contains.
        Ok(linkat(&self.top, &target, dir, name, AtFlags::empty())?)
    }

    fn own(&self, dir: &OwnedFd, name: &CString, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        match self.owner_of(entry)? {
            Some((user, group)) => {
                Ok(chownat(dir, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
            }
            None => Ok(()),
        }
    }

    /// The owner that an entry gets.
    fn owner_of(&self, entry: &Entry<'_, impl Read>) -> io::Result<Option<Owner>> {
        Ok(match self.request.owners {
            EntryOwners::Given => self.given,
            EntryOwners::Archive => Some(owner(entry.header())?),
            // Also of directories that exist already.
            EntryOwners::Root => Some((Uid::ROOT, Gid::ROOT)),
        })
    }

    fn mode(&self, entry: &Entry<'_, impl Read>) -> io::Result<Mode> {
        let mode = match self.request.chmod {
            // As in Docker, which sets no other bits.
            Some(mode) => mode & 0o777,
            None => entry.header().mode()? & 0o7777,
        };
        Ok(Mode::from_raw_mode(mode))
    }
}

fn is_link(dir: &OwnedFd, name: &CString) -> io::Result<bool> {
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Removes a file or link; a directory in the way is an error.
fn clear(dir: &OwnedFd, name: &CString) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
