//! Tracks which repositories of the cache are in use, and removes the others.
//!
//! A job reads tasks from the cache while it runs. So a process that uses directories of a repository holds a shared
//! lock on its file `use` until the process ends.

use std::{
    collections::HashMap,
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

const USE: &str = "use";

/// The prefix of an interrupted removal. No hash of a URL starts with it.
const REMOVED: &str = "removed-";

/// The locks of this process, by the repositories' directories.
static HELD: Mutex<Option<HashMap<PathBuf, File>>> = Mutex::new(None);

/// A repository that was fetched.
#[derive(Debug, Clone)]
pub struct Checkout {
    /// Its path.
    pub path: PathBuf,
    /// Whether a running process may read from it.
    pub used: bool,
}

/// Protects a repository, which need not exist, from removal until this process ends. Blocks.
pub(super) fn hold(repository: &Path) -> io::Result<()> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let held = held.get_or_insert_default();
    if held.get(repository).is_some_and(|lock| is_there(lock, repository)) {
        return Ok(());
    }
    loop {
        fs::create_dir_all(repository)?;
        let lock = match open(repository) {
            // Another process has just removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            lock => lock?,
        };
        lock.lock_shared()?;
        if is_there(&lock, repository) {
            held.insert(repository.to_owned(), lock);
            return Ok(());
        }
    }
}

/// Lists the repositories below a cache directory. Blocks.
pub fn checkouts(cache_dir: &Path) -> io::Result<Vec<Checkout>> {
    let entries = match fs::read_dir(cache_dir.join("git")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            let used = File::open(path.join(USE))
                .is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
            found.push(Checkout { path, used });
        }
    }
    Ok(found)
}

/// Removes the repositories that no running process uses, and returns them. Blocks.
pub fn remove_unused_checkouts(cache_dir: &Path) -> io::Result<Vec<Checkout>> {
    let mut removed = Vec::new();
    for checkout in checkouts(cache_dir)? {
        let gone = remove(&checkout.path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot remove {}: {error}", checkout.path.display()))
        })?;
        if gone {
            removed.push(checkout);
        }
    }
    Ok(removed)
}

/// Removes a repository unless it is in use or already removed.
fn remove(repository: &Path) -> io::Result<bool> {
    let lock = match open(repository) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        lock => lock?,
    };
    match lock.try_lock() {
        Ok(()) if is_there(&lock, repository) => {}
        Ok(()) | Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let name = repository.file_name().unwrap_or_default().to_string_lossy();
    let trash = if name.starts_with(REMOVED) {
        repository.to_owned()
    } else {
        repository.with_file_name(format!("{REMOVED}{name}-{}", std::process::id()))
    };
    // Renamed first, because an existing directory counts as complete.
    fs::rename(repository, &trash)?;
    fs::remove_dir_all(&trash)?;
    Ok(true)
}

fn open(repository: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(repository.join(USE))
}

/// Whether a lock is on the existing file, not on one that was removed.
fn is_there(lock: &File, repository: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let there = fs::metadata(repository.join(USE)).map(identity);
    there.is_ok_and(|there| lock.metadata().map(identity).is_ok_and(|held| held == there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_repositories_stay_and_others_are_removed_even_after_an_interrupted_removal() {
        let cache = tempfile::tempdir().unwrap();
        let git = cache.path().join("git");
        for name in ["held", "old", "removed-older-1"] {
            fs::create_dir_all(git.join(name).join("commit/repository")).unwrap();
        }
        hold(&git.join("held")).unwrap();
        hold(&git.join("new")).unwrap();
        let mut listed: Vec<_> = checkouts(cache.path())
            .unwrap()
            .into_iter()
            .map(|found| (found.path.file_name().unwrap().to_string_lossy().into_owned(), found.used))
            .collect();
        listed.sort();
        let expected = [("held", true), ("new", true), ("old", false), ("removed-older-1", false)]
            .map(|(name, used)| (name.to_owned(), used));
        assert_eq!(listed, expected);
        assert_eq!(remove_unused_checkouts(cache.path()).unwrap().len(), 2);
        let mut left: Vec<_> = fs::read_dir(&git).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["held", "new"]);
    }

    #[test]
    fn a_missing_cache_is_empty() {
        let cache = tempfile::tempdir().unwrap();
        assert!(checkouts(cache.path()).unwrap().is_empty());
        assert!(remove_unused_checkouts(cache.path()).unwrap().is_empty());
    }
}
