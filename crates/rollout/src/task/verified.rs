//! Notes beside cached files that say in which state a file was verified, so that a changed file is noticed without
//! reading every file again.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// What changes when the content of a file is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) size: u64,
    /// Seconds and nanoseconds.
    pub(super) modified: (i64, i64),
}

impl Stamp {
    /// The stamp of a file.
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        Self { size: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

/// Records that a file was verified in its present state. Blocks.
pub(super) fn record(file: &Path) -> io::Result<()> {
    let stamp = Stamp::of(&fs::metadata(file)?);
    write_whole(&note(file), &serde_json::to_vec(&stamp)?)
}

/// Whether a file is in the state in which it was verified. Blocks.
pub(super) fn is_recorded(file: &Path) -> bool {
    let recorded = fs::read(note(file)).ok().and_then(|text| serde_json::from_slice::<Stamp>(&text).ok());
    recorded.is_some() && recorded == fs::metadata(file).ok().map(|found| Stamp::of(&found))
}

/// Writes a small file, complete or not at all.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    io::Write::write_all(&mut file, content)?;
    file.persist(path)?;
    Ok(())
}

fn note(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".verified");
    name.into()
}
