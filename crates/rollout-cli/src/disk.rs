//! How much room there is on a disk, and whether that is little.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::report::text::size;

/// With less than this, or less than one part in twenty, builds and logs may soon find none.
const LITTLE_BYTES: u64 = 5 << 30;
const LITTLE_PART: u64 = 20;

/// The command that makes room.
pub(crate) const MAKE_ROOM: &str = "rollout clean --images --cache";

/// The room on a file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes that this user may still write.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

impl Room {
    /// Looks at the file system on which a directory lies, or will when it is made.
    pub(crate) fn at(dir: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(there(dir))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Self { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
    }

    /// Whether a job may run out of it.
    pub(crate) fn is_little(self) -> bool {
        self.free < LITTLE_BYTES || self.free < self.total / LITTLE_PART
    }
}

/// A sentence for each file system of these directories on which there is little room.
pub(crate) fn shortages(dirs: &[&Path]) -> Vec<String> {
    let mut seen = Vec::new();
    let mut sentences = Vec::new();
    for dir in dirs {
        // What cannot be looked at cannot be written to either, and the job will say so.
        let (Ok(found), Ok(room)) = (there(dir).metadata(), Room::at(dir)) else { continue };
        if seen.contains(&found.dev()) {
            continue;
        }
        seen.push(found.dev());
        if room.is_little() {
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
    fn little_is_less_than_five_gibibytes_or_five_percent() {
        const GIB: u64 = 1 << 30;
        let little = |free, total| Room { free, total }.is_little();
        assert!(little(5 * GIB - 1, 10 * GIB));
        assert!(!little(5 * GIB, 10 * GIB));
        assert!(little(50 * GIB - 1, 1000 * GIB));
        assert!(!little(50 * GIB, 1000 * GIB));
    }

    #[test]
    fn a_directory_that_is_not_made_yet_has_the_room_of_the_one_above() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::at(&dir.path().join("a/b")).unwrap();
        assert_eq!(room.total, Room::at(dir.path()).unwrap().total);
    }
}
