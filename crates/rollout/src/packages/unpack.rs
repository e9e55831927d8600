//! Archives of packages, which are untrusted: only plain files and directories, below one directory, within limits.

use std::{
    fs::{self, File},
    io::{self, Read, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Component, Path, PathBuf},
};

use flate2::read::GzDecoder;
use tar::{Archive, EntryType};

/// The largest known package has 20,000 files.
const MAX_ENTRIES: usize = 200_000;

/// The largest known package has 450 MB.
const MAX_BYTES: u64 = 4 << 30;

/// Why an archive is not unpacked.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Unpacks a tarball of npm, without its first directory, into a directory. Blocks.
pub(super) fn tarball(file: &Path, target: &Path) -> Result<(), UnpackError> {
    let mut archive = Archive::new(GzDecoder::new(File::open(file)?));
    let mut room = MAX_BYTES;
    for (number, entry) in archive.entries()?.enumerate() {
        let mut entry = entry?;
        if number >= MAX_ENTRIES {
            return Err(UnpackError::Refused(format!("it has more than {MAX_ENTRIES} entries")));
        }
        let path = entry.path()?.into_owned();
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader | EntryType::XHeader) {
            continue;
        }
        let Some(inside) = inside(&path)? else { continue };
        match kind {
            EntryType::Directory => fs::create_dir_all(target.join(inside))?,
            EntryType::Regular | EntryType::Continuous => {
                let executable = entry.header().mode()? & 0o111 != 0;
                room = write(&mut entry, &target.join(inside), executable, room)?;
            }
            _ => {
                let shown = path.display();
                return Err(UnpackError::Refused(format!("{shown} is neither a file nor a directory")));
            }
        }
    }
    Ok(())
}

/// The path below the first directory; none for that directory itself.
fn inside(path: &Path) -> Result<Option<PathBuf>, UnpackError> {
    let mut inside = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            _ => {
                let shown = path.display();
                return Err(UnpackError::Refused(format!("{shown} leads out of the package")));
            }
        }
    }
    let mut components = inside.components();
    components.next();
    let rest = components.as_path();
    Ok(Some(rest.to_owned()).filter(|rest| !rest.as_os_str().is_empty()))
}

/// Writes a file, and returns the room that is left for others.
pub(super) fn write(
    content: &mut impl Read,
    path: &Path,
    executable: bool,
    room: u64,
) -> Result<u64, UnpackError> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let mode = if executable { 0o755 } else { 0o644 };
    // A second entry of the same name replaces the first one, as with other programs that unpack archives.
    let mut file = File::options().write(true).create(true).truncate(true).mode(mode).open(path)?;
    let written = io::copy(&mut content.take(room + 1), &mut file)?;
    file.flush()?;
    room.checked_sub(written)
        .ok_or_else(|| UnpackError::Refused(format!("its files have more than {} GiB", MAX_BYTES >> 30)))
}

/// Makes a file executable, as npm does with the programs of a package.
pub(super) fn make_executable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => fs::set_permissions(path, fs::Permissions::from_mode(0o755)),
        // A package may name a program that it does not have.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, Header};

    use super::*;

    fn packed(entries: &[(&str, EntryType, &str)]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut archive = Builder::new(GzEncoder::new(file.reopen().unwrap(), Compression::fast()));
        for (path, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(if path.ends_with("run") { 0o6755 } else { 0o600 });
            let body = if *kind == EntryType::Regular { content.as_bytes() } else { b"" };
            if *kind != EntryType::Regular {
                header.set_link_name(content).unwrap();
            }
            header.set_size(body.len() as u64);
            // By hand, because the library refuses to write what is tested here.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            archive.append(&header, body).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap();
        file
    }

    #[test]
    fn files_are_unpacked_below_the_first_directory_with_plain_modes() {
        let target = tempfile::tempdir().unwrap();
        let regular = EntryType::Regular;
        let file = packed(&[("package/bin/run", regular, "x"), ("package/./a/b.js", regular, "y")]);
        tarball(file.path(), target.path()).unwrap();
        let mode = |path: &str| fs::metadata(target.path().join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("bin/run"), mode("a/b.js")), (0o755, 0o644));
        assert_eq!(fs::read_to_string(target.path().join("a/b.js")).unwrap(), "y");
    }

    #[test]
    fn an_archive_that_leads_out_or_has_links_and_devices_is_refused() {
        for (path, kind, expected) in [
            ("package/../../evil", EntryType::Regular, "package/../../evil leads out of the package"),
            ("/etc/evil", EntryType::Regular, "/etc/evil leads out of the package"),
            ("package/link", EntryType::Symlink, "package/link is neither a file nor a directory"),
            ("package/hard", EntryType::Link, "package/hard is neither a file nor a directory"),
            ("package/pipe", EntryType::Fifo, "package/pipe is neither a file nor a directory"),
            ("package/disk", EntryType::Block, "package/disk is neither a file nor a directory"),
        ] {
            let target = tempfile::tempdir().unwrap();
            let inner = target.path().join("inner");
            fs::create_dir(&inner).unwrap();
            let error = tarball(packed(&[(path, kind, "/etc/passwd")]).path(), &inner).unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert_eq!(fs::read_dir(target.path()).unwrap().count(), 1, "{path}");
        }
    }

    #[test]
    fn files_that_need_more_room_than_there_is_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(write(&mut &b"four"[..], &dir.path().join("a"), false, 6).unwrap(), 2);
        assert!(write(&mut &b"four"[..], &dir.path().join("b"), false, 3).is_err());
    }
}
