//! Unpacks the layer of an image into a directory that overlayfs can use.
//!
//! An archive from a registry is not trusted. Every path is opened component by component below the directory, and
//! links are never followed, so nothing outside can be written or linked.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, XattrFlags, chownat, fchmod, fchown, fsetxattr, futimens,
        linkat, makedev, mkdirat, mknodat, openat, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};
use tar::{Archive, Entry, EntryType};

use crate::tar_stream::{attributes, decompressed, inside, invalid, owner, times};

/// The prefix of the name of a file that lower layers have and this image does not.
const WHITEOUT: &[u8] = b".wh.";

/// The name of a file that hides everything that lower layers have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What an ordinary user cannot give to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owners {
    /// The archive's.
    Kept,
    /// All files belong to the user of this process.
    User,
}

/// Unpacks an archive, which may be compressed, into a new directory. Blocks.
pub(crate) fn unpack(archive: impl Read + Send + 'static, dir: &Path, owners: Owners) -> io::Result<()> {
    mkdirat(CWD, dir, Mode::from_raw_mode(0o755))?;
    let mut layer = LayerDir { top: open_dir(CWD, dir.as_os_str())?, owners, directories: BTreeMap::new() };
    let mut archive = Archive::new(decompressed(archive)?);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let shown = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        layer.add(&mut entry).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot unpack {shown:?} of the image: {error}"))
        })?;
    }
    layer.finish()
}

/// A directory that is being filled.
struct LayerDir {
    top: OwnedFd,
    owners: Owners,
    /// The modes and times that directories get at the end: a directory may be read-only, and its time changes with
    /// every file in it.
    directories: BTreeMap<PathBuf, (u32, u64)>,
}

impl LayerDir {
    fn add(&mut self, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let path = inside(&entry.path_bytes())?;
        let Some(name) = path.file_name() else {
            // The root itself.
            return self.directory(&path, entry);
        };
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            let parent = path.parent().unwrap_or(Path::new(""));
            return match name.as_bytes() {
                OPAQUE => self.make_opaque(self.open(parent)?.as_fd()),
                _ => self.whiteout(parent, OsStr::from_bytes(hidden)),
            };
        }
        match entry.header().entry_type() {
            EntryType::Directory => self.directory(&path, entry),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => self.file(&path, entry),
            EntryType::Symlink => self.link(&path, entry),
            EntryType::Link => self.hard_link(&path, entry),
            EntryType::Fifo => self.fifo(&path, entry),
            // A sandbox has devices of its own, and mounts its files without devices.
            EntryType::Char | EntryType::Block => Ok(()),
            // Headers that describe other entries.
            _ => Ok(()),
        }
    }

    fn directory(&mut self, path: &Path, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        let header = entry.header();
        let dir = self.open(path)?;
        if self.owners == Owners::Kept {
            let (user, group) = owner(header)?;
            fchown(&dir, Some(user), Some(group))?;
        }
        self.directories.insert(path.to_owned(), (header.mode()? & 0o7777, header.mtime()?));
        Ok(())
    }

    fn file(&mut self, path: &Path, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let (mode, time) = (entry.header().mode()? & 0o7777, entry.header().mtime()?);
        let (user, group) = owner(entry.header())?;
        let attributes = attributes(entry);
        let (parent, name) = self.vacant(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        io::copy(entry, &mut file)?;
        if self.owners == Owners::Kept {
            fchown(&file, Some(user), Some(group))?;
            for (name, value) in attributes {
                // File systems differ in what they can hold; a missing attribute shows itself to the program.
                let _ = fsetxattr(&file, name.as_str(), &value, XattrFlags::empty());
            }
        }
        // After the owner, which clears some bits.
        fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(futimens(&file, &times(time))?)
    }

    fn link(&mut self, path: &Path, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        let target = entry.link_name_bytes().ok_or_else(|| invalid("a link without a target"))?;
        let (parent, name) = self.vacant(path)?;
        symlinkat(OsStr::from_bytes(&target), &parent, name)?;
        self.own(parent.as_fd(), name, entry)?;
        Ok(utimensat(&parent, name, &times(entry.header().mtime()?), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn hard_link(&mut self, path: &Path, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        let target = entry.link_name_bytes().ok_or_else(|| invalid("a link without a target"))?;
        let target = inside(&target)?;
        let (from, from_name) = self.parent(&target)?;
        if kind(from.as_fd(), from_name)? == Some(FileType::Directory) {
            return Err(invalid("a hard link to a directory"));
        }
        let (parent, name) = self.vacant(path)?;
        Ok(linkat(&from, from_name, &parent, name, AtFlags::empty())?)
    }

    fn fifo(&mut self, path: &Path, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        let (parent, name) = self.vacant(path)?;
        let mode = Mode::from_raw_mode(entry.header().mode()? & 0o777);
        mknodat(&parent, name, FileType::Fifo, mode, 0)?;
        self.own(parent.as_fd(), name, entry)
    }

    /// Hides a file of lower layers. overlayfs knows such a file as a device with the number 0.
    ///
    /// What the same layer has in its place stays, before or after this entry. A directory hides what lower layers have
    /// there if it is opaque, and everything else does anyway.
    fn whiteout(&self, parent: &Path, name: &OsStr) -> io::Result<()> {
        require_name(name)?;
        let dir = self.open(parent)?;
        match kind(dir.as_fd(), name)? {
            None => Ok(mknodat(&dir, name, FileType::CharacterDevice, Mode::empty(), makedev(0, 0))?),
            Some(FileType::Directory) => self.make_opaque(open_dir(dir.as_fd(), name)?.as_fd()),
            Some(_) => Ok(()),
        }
    }

    /// Hides everything that lower layers have in a directory.
    fn make_opaque(&self, dir: BorrowedFd<'_>) -> io::Result<()> {
        let attribute = match self.owners {
            Owners::Kept => "trusted.overlay.opaque",
            Owners::User => "user.overlay.opaque",
        };
        Ok(fsetxattr(dir, attribute, b"y", XattrFlags::empty())?)
    }

    fn own(&self, parent: BorrowedFd<'_>, name: &OsStr, entry: &Entry<'_, impl Read>) -> io::Result<()> {
        if self.owners == Owners::User {
            return Ok(());
        }
        let (user, group) = owner(entry.header())?;
        Ok(chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Gives the directories their modes and times, children first.
    fn finish(self) -> io::Result<()> {
        for (path, (mode, time)) in self.directories.iter().rev() {
            let dir = self.open(path)?;
            fchmod(&dir, Mode::from_raw_mode(*mode))?;
            futimens(&dir, &times(*time))?;
        }
        Ok(())
    }

    /// Opens a directory, and makes it where it is missing. A link or a file in its place is an error.
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut dir = self.top.try_clone()?;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            dir = match open_dir(dir.as_fd(), name) {
                Err(Errno::NOENT) => make_dir(dir.as_fd(), name)?,
                // The layer's own devices are left out, so this is a whiteout of what lower layers have here.
                Err(Errno::NOTDIR) if kind(dir.as_fd(), name)? == Some(FileType::CharacterDevice) => {
                    unlinkat(&dir, name, AtFlags::empty())?;
                    let made = make_dir(dir.as_fd(), name)?;
                    self.make_opaque(made.as_fd())?;
                    made
                }
                opened => opened?,
            };
        }
        Ok(dir)
    }

    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or_else(|| invalid("a path without a name"))?;
        Ok((self.open(path.parent().unwrap_or(Path::new("")))?, name))
    }

    /// The parent of a path at which nothing is left.
    fn vacant<'a>(&mut self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (dir, name) = self.parent(path)?;
        match kind(dir.as_fd(), name)? {
            None => {}
            Some(FileType::Directory) => {
                self.directories.retain(|known, _| !known.starts_with(path));
                unlinkat(&dir, name, AtFlags::REMOVEDIR)?;
            }
            Some(_) => unlinkat(&dir, name, AtFlags::empty())?,
        }
        Ok((dir, name))
    }
}

/// Rejects a name that is not that of one file.
fn require_name(name: &OsStr) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/') {
        return Err(invalid("a path that leaves the image"));
    }
    Ok(())
}

fn kind(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<FileType>> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

fn make_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    open_dir(parent, name)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Seek as _, Write as _},
        os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    };

    use super::*;

    fn header(kind: EntryType, mode: u32, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(1_000_000);
        header.set_uid(u64::from(rustix::process::geteuid().as_raw()));
        header.set_gid(u64::from(rustix::process::getegid().as_raw()));
        header
    }

    /// An archive in memory.
    struct Made(tar::Builder<Vec<u8>>);

    impl Made {
        fn new() -> Self {
            Self(tar::Builder::new(Vec::new()))
        }

        fn dir(mut self, path: &str, mode: u32) -> Self {
            self.0.append_data(&mut header(EntryType::Directory, mode, 0), path, io::empty()).unwrap();
            self
        }

        fn file(mut self, path: &str, text: &str) -> Self {
            let mut header = header(EntryType::Regular, 0o644, text.len() as u64);
            self.0.append_data(&mut header, path, text.as_bytes()).unwrap();
            self
        }

        /// A file whose path the builder would refuse.
        fn raw_file(mut self, path: &str) -> Self {
            let mut header = header(EntryType::Regular, 0o644, 0);
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            self.0.append(&header, io::empty()).unwrap();
            self
        }

        fn link(mut self, kind: EntryType, path: &str, target: &str) -> Self {
            self.0.append_link(&mut header(kind, 0o777, 0), path, target).unwrap();
            self
        }

        fn unpack(self, dir: &Path) -> io::Result<()> {
            self.unpack_as(dir, |bytes| bytes)
        }

        fn unpack_as(self, dir: &Path, compress: impl FnOnce(Vec<u8>) -> Vec<u8>) -> io::Result<()> {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&compress(self.0.into_inner().unwrap())).unwrap();
            file.rewind().unwrap();
            unpack(file, dir, Owners::User)
        }
    }

    #[test]
    fn files_links_modes_and_times_are_those_of_the_archive() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("layer");
        Made::new()
            .dir("read-only", 0o555)
            .file("read-only/file", "text")
            .file("./without/parents", "x")
            .link(EntryType::Symlink, "absolute", "/etc/passwd")
            .link(EntryType::Link, "same", "read-only/file")
            .unpack(&dir)
            .unwrap();
        let metadata = |path: &str| dir.join(path).symlink_metadata().unwrap();
        assert_eq!(fs::read_to_string(dir.join("read-only/file")).unwrap(), "text");
        assert_eq!(
            (metadata("read-only").mode() & 0o7777, metadata("read-only").mtime()),
            (0o555, 1_000_000)
        );
        assert_eq!(metadata("same").ino(), metadata("read-only/file").ino());
        assert_eq!(fs::read_link(dir.join("absolute")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(metadata("without").mode() & 0o7777, 0o755);
    }

    #[test]
    fn hidden_files_and_directories_are_marked_for_overlayfs() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("layer");
        let made =
            Made::new().file("a/.wh.gone", "").dir("b", 0o755).file("b/kept", "").file("b/.wh..wh..opq", "");
        made.unpack(&dir).unwrap();
        let gone = dir.join("a/gone").symlink_metadata().unwrap();
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
        let mut value = [0; 8];
        assert_eq!(rustix::fs::getxattr(dir.join("b"), "user.overlay.opaque", &mut value), Ok(1));
        assert!(dir.join("b/kept").exists());
    }

    #[test]
    fn a_hidden_name_may_also_be_a_new_directory_or_file() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("layer");
        Made::new()
            .file(".wh.before", "")
            .dir("before", 0o700)
            .file("before/new", "")
            .dir("after", 0o700)
            .file("after/new", "")
            .file(".wh.after", "")
            .file("file", "new")
            .file(".wh.file", "")
            .unpack(&dir)
            .unwrap();
        for name in ["before", "after"] {
            let mut value = [0; 8];
            assert_eq!(rustix::fs::getxattr(dir.join(name), "user.overlay.opaque", &mut value), Ok(1));
            assert!(dir.join(name).join("new").exists(), "{name}");
            assert_eq!(dir.join(name).metadata().unwrap().mode() & 0o7777, 0o700, "{name}");
        }
        assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "new");
    }

    #[test]
    fn a_path_cannot_leave_the_directory() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("outside")).unwrap();
        let outside = place.path().join("outside");
        let link = |made: Made| made.link(EntryType::Symlink, "door", outside.to_str().unwrap());
        for (number, made) in [
            Made::new().raw_file("../outside/file"),
            Made::new().raw_file("a/../../outside/file"),
            link(Made::new()).file("door/file", "x"),
            link(Made::new()).file("door/.wh.file", ""),
            Made::new().link(EntryType::Link, "stolen", "../outside"),
            Made::new().raw_file(".wh..."),
        ]
        .into_iter()
        .enumerate()
        {
            let error = made.unpack(&place.path().join(number.to_string())).unwrap_err();
            assert!(error.to_string().contains("of the image"), "{number}: {error}");
        }
        assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
    }

    #[test]
    fn every_compression_of_layers_is_read() {
        let place = tempfile::tempdir().unwrap();
        let gzip = |bytes: Vec<u8>| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = |bytes: Vec<u8>| zstd::encode_all(bytes.as_slice(), 1).unwrap();
        let none = |bytes: Vec<u8>| bytes;
        for (name, compress) in [("none", none as fn(Vec<u8>) -> Vec<u8>), ("gzip", gzip), ("zstd", zstd)] {
            let dir = place.path().join(name);
            Made::new().file("file", name).unpack_as(&dir, compress).unwrap();
            assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), name);
        }
    }

    #[test]
    fn a_later_entry_replaces_an_earlier_one() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("layer");
        let made =
            Made::new().dir("x", 0o700).file("x", "file").file("y", "1").link(EntryType::Symlink, "y", "x");
        made.unpack(&dir).unwrap();
        assert_eq!(fs::read_to_string(dir.join("y")).unwrap(), "file");
    }
}
