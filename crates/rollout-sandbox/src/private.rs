//! Directories that only the engine's user may enter, and unique names for them.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::Path,
};

/// Creates a directory that other users of the machine cannot enter, because it may contain set-user-ID
/// programs. The permissions of an existing directory are tightened.
pub(crate) fn private_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if fs::metadata(dir)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// A unique name across engines and processes.
pub(crate) fn unique_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_closed_to_others_even_if_it_was_open() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |dir: &Path| fs::metadata(dir).unwrap().permissions().mode() & 0o7777;
        let (fresh, open) = (dir.path().join("fresh"), dir.path().join("open"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        for dir in [&fresh, &open] {
            private_dir(dir).unwrap();
            assert_eq!(mode(dir), 0o700);
        }
    }
}
