//! Removing directory trees that others filled: any depth, any modes, still being emptied by somebody else.

use std::{fs, io, path::Path};

/// Removes a tree; one that is already gone is removed.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
