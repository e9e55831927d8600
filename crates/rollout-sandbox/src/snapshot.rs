//! Snapshots: a sandbox's files kept as an image, for later sandboxes to start from.
//!
//! A snapshot is a layer, kept like those of builds, and beside it the image it was made on:
//!
//! ```text
//! snapshots/<key>/<n>/<part>/    the changes, a directory for each part of the image
//! snapshots/<key>/<n>/base.json  the image below, and marks by which its layers are known again
//! ```

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rollout_guest::remove::remove_tree;

use crate::{
    blocking::blocking_io,
    engine::SandboxEngine,
    error::CreateError,
    image::{Image, Layer},
    sandbox::{KeepError, RunningSandbox},
    store::{
        SNAPSHOTS,
        base::{BASE_FILE, Base},
        slot::{Slot, Unfinished},
    },
};

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The changes could not be kept.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// The snapshot's files could not be written or read.
    #[error("cannot use {path}")]
    Store {
        /// The snapshot's directory.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The snapshot was made, but the sandbox could not go on.
    #[error("cannot go on after the snapshot")]
    Restart(#[source] CreateError),
}

impl SandboxEngine {
    /// Finds the image that [`RunningSandbox::snapshot`] kept under a key.
    pub async fn snapshot(&self, key: &str) -> Result<Option<Image>, SnapshotError> {
        let fail = |source| SnapshotError::Store { path: self.state_dir().join(SNAPSHOTS).join(key), source };
        let slot = self.snapshot_slot(key).await.map_err(fail)?;
        self.find_snapshot(slot, key).await.map_err(fail)
    }

    async fn snapshot_slot(&self, key: &str) -> io::Result<Slot> {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the key has other than letters and digits",
            ));
        }
        self.core.lease(SNAPSHOTS, key).await?;
        let (dir, key) = (self.state_dir().join(SNAPSHOTS), key.to_owned());
        blocking_io(move || Slot::open(&dir, &key)).await
    }

    async fn find_snapshot(&self, slot: Slot, key: &str) -> io::Result<Option<Image>> {
        let (core, state_dir, key) = (self.core.clone(), self.state_dir().to_owned(), key.to_owned());
        blocking_io(move || {
            let Some(layer) = slot.finished() else { return Ok(None) };
            // One that was made by another version, or on layers that are gone, is as good as none.
            let Ok(base) = Base::read(&layer) else { return Ok(None) };
            core.leases.take_image(&state_dir, &base.image)?;
            if !base.is_there(&state_dir) {
                return Ok(None);
            }
            Ok(Some(base.image.with_layer(&Layer::open(layer)?, identity(&key))))
        })
        .await
    }
}

impl RunningSandbox {
    /// Keeps the files as they are now as an image, for [`SandboxEngine::snapshot`] to find by the key.
    ///
    /// Every process inside ends, and the sandbox goes on with nothing but its files. Where there is a
    /// snapshot of the key already, nothing happens. After an error the sandbox may have ended.
    pub async fn snapshot(&mut self, key: &str) -> Result<(), SnapshotError> {
        let path = self.core.state_dir().join(SNAPSHOTS).join(key);
        let fail = |source| SnapshotError::Store { path: path.clone(), source };
        if self.preserved.is_some() {
            return Err(fail(io::Error::new(io::ErrorKind::Unsupported, "the sandbox is preserved already")));
        }
        let engine = SandboxEngine { core: self.core.clone() };
        let slot = engine.snapshot_slot(key).await.map_err(fail)?;
        let lock = slot.lock().await.map_err(fail)?;
        if engine.find_snapshot(slot, key).await.map_err(fail)?.is_some() {
            return Ok(());
        }
        let (image, state_dir) = (self.spec.image.clone(), engine.state_dir().to_owned());
        let begun = blocking_io(move || {
            let unfinished = lock.begin()?;
            // Written first, so that a full disk does not cost the sandbox.
            let base = serde_json::to_vec(&Base::new(&state_dir, &image)?)?;
            fs::write(unfinished.scratch().join(BASE_FILE), base)?;
            Ok(unfinished)
        });
        let unfinished = begun.await.map_err(fail)?;
        self.stop_to_keep().await?;
        let dir = self.dir.clone();
        let layer = blocking_io(move || keep(&dir, unfinished)).await.map_err(fail)?;
        let mut spec = self.spec.clone();
        spec.image = spec.image.with_layer(&layer, identity(key));
        *self = engine.create_in(self.dir.clone(), spec, None).await.map_err(SnapshotError::Restart)?;
        Ok(())
    }
}

/// Moves a stopped sandbox's changes into a slot, and makes its directory that of a new one.
fn keep(dir: &Path, unfinished: Unfinished) -> io::Result<Layer> {
    let layer = unfinished.layer();
    fs::rename(dir.join("upper"), &layer)?;
    fs::rename(unfinished.scratch().join(BASE_FILE), layer.join(BASE_FILE))?;
    let layer = Layer::open(unfinished.finish()?)?;
    // An overlay does not take the work directory of another.
    remove_tree(&dir.join("work"))?;
    Ok(layer)
}

fn identity(key: &str) -> String {
    format!("snapshot-{key}")
}
