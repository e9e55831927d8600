//! The free space of a disk, and warnings about low disk space.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rollout::environment::docker::Disk;

use crate::report::text::size;

/// The command that frees disk space.
pub(crate) const MAKE_ROOM: &str = "rollout clean --images --cache";

/// Returns the free space of the file system of a directory, which need not exist yet.
pub(crate) fn room_at(dir: &Path) -> io::Result<Disk> {
    let found = rustix::fs::statvfs(there(dir))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Disk { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
}

/// Returns a warning for each file system of these directories that has little free space.
pub(crate) fn shortages(dirs: &[&Path]) -> Vec<String> {
    let mut seen = Vec::new();
    let mut sentences = Vec::new();
    for dir in dirs {
        // A directory that cannot be read cannot be written either, and the job will report that.
        let (Ok(found), Ok(room)) = (there(dir).metadata(), room_at(dir)) else { continue };
        if seen.contains(&found.dev()) {
            continue;
        }
        seen.push(found.dev());
        if room.is_low() {
            let (free, total) = (size(room.free), size(room.total));
            sentences.push(format!(
                "low disk space for {}: {free} of {total} free; `{MAKE_ROOM}` frees space",
                dir.display()
            ));
        }
    }
    sentences
}

/// Returns the directory, or its nearest existing ancestor.
fn there(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    absolute.ancestors().find(|path| path.exists()).unwrap_or(&absolute).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_has_the_free_space_of_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let room = room_at(&dir.path().join("a/b")).unwrap();
        assert_eq!(room.total, room_at(dir.path()).unwrap().total);
    }
}
