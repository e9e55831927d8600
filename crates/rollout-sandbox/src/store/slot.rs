//! Stores the layers of builds and snapshots: one directory for each key, with a lock so that only one build
//! writes to it at a time.
//!
//! ```text
//! layers/<key>/lock          held while the key is built
//! layers/<key>/<id>/         a finished layer; running sandboxes may use it, so it is never changed
//! layers/<key>/current       a link to the newest finished layer
//! layers/<key>/building-*/   a running build, or the leftovers of a killed one
//! ```
//!
//! A layer is finished when `current` points to it. The link is replaced by an atomic rename. The id of a layer is
//! random, so a path never stands for another layer, even if the first one was removed: layers and snapshots are built
//! on paths.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rollout_guest::remove::remove_tree;

use crate::private::unique_id;

/// The characters of the id of a finished layer.
pub(crate) const ID_CHARS: usize = 8;

/// How long to wait between two attempts to take a lock that another build holds: short at first, then longer.
const FIRST_WAIT: Duration = Duration::from_millis(2);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// The mode of the directory of all layers.
const PRIVATE: u32 = 0o700;

static BUILDS: AtomicU64 = AtomicU64::new(0);

/// The directory of one key.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    dir: PathBuf,
}

impl Slot {
    /// Opens the directory of a key. The parent of all layers is made private to the user, even if it was not:
    /// layers contain set-user-ID programs, and a user who could change a layer could change every image built
    /// on it.
    pub(crate) fn open(layers: &Path, key: &str) -> io::Result<Slot> {
        fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(layers)?;
        let opened = File::open(layers)?;
        let metadata = opened.metadata()?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            let message =
                "the directory belongs to another user, who could change the layers in it; remove it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        if metadata.mode() & 0o7777 != PRIVATE {
            opened.set_permissions(Permissions::from_mode(PRIVATE))?;
        }
        Ok(Slot { dir: layers.join(key) })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The newest finished layer.
    pub(crate) fn finished(&self) -> Option<PathBuf> {
        let name = fs::read_link(current_layer(&self.dir)).ok()?;
        let layer = self.dir.join(name);
        layer.is_dir().then_some(layer)
    }

    /// Waits until no other build of this key runs, in this process or another.
    ///
    /// Polls instead of waiting in the kernel, because a blocked thread could not be cancelled.
    pub(crate) async fn lock(&self) -> io::Result<SlotLock> {
        fs::create_dir_all(&self.dir)?;
        let file = File::options().write(true).create(true).truncate(false).open(self.dir.join("lock"))?;
        let mut wait = FIRST_WAIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(SlotLock { slot: self.clone(), _file: file }),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(wait).await,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

/// The link to the newest finished layer of a slot's directory.
pub(crate) fn current_layer(slot: &Path) -> PathBuf {
    slot.join("current")
}

/// The right to build a key, until it is dropped.
#[derive(Debug)]
pub(crate) struct SlotLock {
    slot: Slot,
    _file: File,
}

impl SlotLock {
    /// Starts a build, after removing the leftovers of earlier ones.
    pub(crate) fn begin(self) -> io::Result<Unfinished> {
        for entry in fs::read_dir(&self.slot.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("building-") {
                remove_tree(&entry.path())?;
            }
        }
        let number = BUILDS.fetch_add(1, Ordering::Relaxed);
        let dir = self.slot.dir.join(format!("building-{}-{number}", std::process::id()));
        let unfinished = Unfinished { dir, lock: Some(self) };
        fs::create_dir_all(unfinished.scratch())?;
        Ok(unfinished)
    }
}

/// A running build. Dropping it removes its files and then releases the lock.
#[derive(Debug)]
pub(crate) struct Unfinished {
    dir: PathBuf,
    lock: Option<SlotLock>,
}

impl Unfinished {
    /// A directory for temporary files of the build.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir.join("scratch")
    }

    /// The directory to write the layer to.
    pub(crate) fn layer(&self) -> PathBuf {
        self.dir.join("layer")
    }

    /// Makes the written layer the current one and returns its path. Blocks.
    pub(crate) fn finish(mut self) -> io::Result<PathBuf> {
        let lock = self.lock.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let id = &unique_id()[..ID_CHARS];
        let layer = lock.slot.dir.join(id);
        fs::rename(self.layer(), &layer)?;
        let link = self.dir.join("current");
        symlink(id, &link)?;
        fs::rename(link, current_layer(&lock.slot.dir))?;
        // Not in the background: the time of the slot's directory is that of its last use.
        if let Some(remove) = self.removal() {
            remove();
        }
        Ok(layer)
    }

    /// The removal of its files and then of the lock; None if it was taken before.
    fn removal(&mut self) -> Option<impl FnOnce() + Send + 'static> {
        let (dir, lock) = (std::mem::take(&mut self.dir), self.lock.take()?);
        Some(move || {
            if let Err(error) = remove_tree(&dir) {
                tracing::warn!(dir = %dir.display(), %error, "cannot remove the files of a build");
            }
            drop(lock);
        })
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(remove) = self.removal() else { return };
        // A cancelled build is dropped on a thread that must not block on removing a large tree.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_layer(unfinished: &Unfinished, text: &str) {
        fs::create_dir(unfinished.layer()).unwrap();
        fs::write(unfinished.layer().join("file"), text).unwrap();
    }

    #[test]
    fn only_the_user_can_enter_the_directory_of_layers() {
        let state = tempfile::tempdir().unwrap();
        let layers = state.path().join("layers");
        let mode = || layers.metadata().unwrap().mode() & 0o7777;
        Slot::open(&state.path().join("layers"), "key").unwrap();
        assert_eq!(mode(), 0o700);
        fs::set_permissions(&layers, Permissions::from_mode(0o777)).unwrap();
        Slot::open(&state.path().join("layers"), "key").unwrap();
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn layers_of_another_user_are_not_used() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let state = tempfile::tempdir().unwrap();
        let layers = state.path().join("layers");
        fs::create_dir(&layers).unwrap();
        std::os::unix::fs::chown(&layers, Some(65534), None).unwrap();
        assert_eq!(
            Slot::open(&state.path().join("layers"), "key").unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
    }

    #[tokio::test]
    async fn a_layer_counts_only_when_it_is_finished() {
        let state = tempfile::tempdir().unwrap();
        let slot = Slot::open(&state.path().join("layers"), "key").unwrap();
        assert_eq!(slot.finished(), None);
        let unfinished = slot.lock().await.unwrap().begin().unwrap();
        write_layer(&unfinished, "1");
        assert_eq!(slot.finished(), None);
        let layer = unfinished.finish().unwrap();
        assert_eq!(slot.finished(), Some(layer.clone()));
        assert_eq!(fs::read_to_string(layer.join("file")).unwrap(), "1");
    }

    #[tokio::test]
    async fn a_new_build_leaves_the_layer_that_sandboxes_use() {
        let state = tempfile::tempdir().unwrap();
        let slot = Slot::open(&state.path().join("layers"), "key").unwrap();
        let mut layers = Vec::new();
        for text in ["old", "new"] {
            let unfinished = slot.lock().await.unwrap().begin().unwrap();
            write_layer(&unfinished, text);
            layers.push(unfinished.finish().unwrap());
        }
        assert_eq!(fs::read_to_string(layers[0].join("file")).unwrap(), "old");
        assert_eq!(fs::read_to_string(slot.finished().unwrap().join("file")).unwrap(), "new");
    }

    #[tokio::test]
    async fn what_a_killed_build_left_is_removed_and_never_used() {
        let state = tempfile::tempdir().unwrap();
        let slot = Slot::open(&state.path().join("layers"), "key").unwrap();
        let left = slot.dir().join("building-1-0/layer");
        fs::create_dir_all(&left).unwrap();
        assert_eq!(slot.finished(), None);
        let _unfinished = slot.lock().await.unwrap().begin().unwrap();
        assert!(!left.exists());
    }

    #[tokio::test]
    async fn a_dropped_build_frees_the_lock_once_its_files_are_gone() {
        let state = tempfile::tempdir().unwrap();
        let slot = Slot::open(&state.path().join("layers"), "key").unwrap();
        let unfinished = slot.lock().await.unwrap().begin().unwrap();
        write_layer(&unfinished, "torn");
        drop(unfinished);
        let _lock = slot.lock().await.unwrap();
        let names: Vec<_> = fs::read_dir(slot.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["lock"]);
    }
}
