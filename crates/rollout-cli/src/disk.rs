//! How much room there is on a disk, and whether that is little.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rollout::environment::docker::Disk;

use crate::report::text::size;

/// The command that makes room.
pub(crate) const MAKE_ROOM: &str = "rollout clean --images --cache";

/// Looks at the file system on which a directory lies, or will when it is made.
pub(crate) fn room_at(dir: &Path) -> io::Result<Disk> {
    let found = rustix::fs::statvfs(there(dir))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Disk { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
}

/// A sentence for each file system of these directories on which there is little room.
pub(crate) fn shortages(dirs: &[&Path]) -> Vec<String> {
    let mut seen = Vec::new();
    let mut sentences = Vec::new();
    for dir in dirs {
        // What cannot be looked at cannot be written to either, and the job will say so.
        let (Ok(found), Ok(room)) = (there(dir).metadata(), room_at(dir)) else { continue };
        if seen.contains(&found.dev()) {
            continue;
        }
        seen.push(found.dev());
        if room.is_low() {
            let (free, total) = (size(room.free), size(room.total));
            sentences.push(format!(
                "there is little room for {}: {free} of {total} are free. `{MAKE_ROOM}` makes room",
                dir.display()
            ));
        }
    }
    sentences
}

/// The directory, or the nearest one above that exists.
fn there(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    absolute.ancestors().find(|path| path.exists()).unwrap_or(&absolute).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_made_yet_has_the_room_of_the_one_above() {
        let dir = tempfile::tempdir().unwrap();
        let room = room_at(&dir.path().join("a/b")).unwrap();
        assert_eq!(room.total, room_at(dir.path()).unwrap().total);
    }
}
