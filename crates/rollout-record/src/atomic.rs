//! Atomic writes: a reader sees a complete file or none.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Writes a temporary file, and renames it to the path.
///
/// If this process crashes, the old or the new file remains. The file is not synced to disk: all files written this way
/// can be restored from the journal, which is synced.
pub fn write(path: &Path, fill: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> Result<(), WriteError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let attempt = || -> io::Result<()> {
        let mut file = io::BufWriter::new(fs::File::create(&temporary)?);
        fill(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?;
        fs::rename(&temporary, path)
    };
    attempt().map_err(|source| {
        // A failure to remove the temporary file is harmless.
        let _ = fs::remove_file(&temporary);
        WriteError { path: path.to_owned(), source }
    })
}

/// Writes a value as indented JSON with a final newline.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), WriteError> {
    write(path, |mut file| {
        serde_json::to_writer_pretty(&mut file, value)?;
        file.write_all(b"\n")
    })
}
