//! Snapshots: the files of a sandbox stored as an image, from which later sandboxes can start.
//!
//! A snapshot is a layer, stored like those of builds, next to a description of the image below it:
//!
//! ```text
//! snapshots/<key>/<id>/<part>/    the changes, a directory for each part of the image
//! snapshots/<key>/<id>/base.json  the image below
//! ```

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rollout_guest::remove::remove_tree;

use crate::{
    blocking::blocking_io,
    engine::{SandboxEngine, Start},
    error::CreateError,
    image::{Image, Layer, Lease, SNAPSHOT_IDENTITY},
    sandbox::{KeepError, RunningSandbox},
    store::{
        SNAPSHOTS,
        base::{BASE_FILE, Base},
        slot::{Slot, Unfinished},
    },
};

/// Why a snapshot could not be created or found.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The changes could not be stored.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// The snapshot's files could not be written or read.
    #[error("cannot use {path}")]
    Store {
        /// The snapshot's directory.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The snapshot was created, but the sandbox could not be restarted.
    #[error("cannot restart the sandbox after the snapshot")]
    Restart(#[source] CreateError),
}

impl SandboxEngine {
    /// Finds the image that [`RunningSandbox::snapshot`] stored under a key.
    pub async fn snapshot(&self, key: &str) -> Result<Option<Image>, SnapshotError> {
        let fail = |source| SnapshotError::Store { path: self.state_dir().join(SNAPSHOTS).join(key), source };
        let (slot, lease) = self.snapshot_slot(key).await.map_err(fail)?;
        let found = self.find_snapshot(slot, key).await.map_err(fail)?;
        Ok(found.map(|image| image.using([lease])))
    }

    async fn snapshot_slot(&self, key: &str) -> io::Result<(Slot, Lease)> {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the key may contain only letters and digits",
            ));
        }
        let lease = self.core.lease(SNAPSHOTS, key).await?;
        let (dir, key) = (self.state_dir().join(SNAPSHOTS), key.to_owned());
        Ok((blocking_io(move || Slot::open(&dir, &key)).await?, lease))
    }

    async fn find_snapshot(&self, slot: Slot, key: &str) -> io::Result<Option<Image>> {
        let (core, key) = (self.core.clone(), key.to_owned());
        blocking_io(move || {
            let Some(layer) = slot.finished() else { return Ok(None) };
            // A snapshot of another version, or on layers that no longer exist, is ignored.
            let Ok(base) = Base::read(&layer) else { return Ok(None) };
            let leases = core.leases.take_image(&base.image)?;
            if !base.is_there() {
                return Ok(None);
            }
            Ok(Some(base.image.with_layer(&Layer::open(layer)?, identity(&key)).using(leases)))
        })
        .await
    }
}

impl RunningSandbox {
    /// Stores the current files as an image, which [`SandboxEngine::snapshot`] finds by the key.
    ///
    /// Every process inside is killed, and the sandbox continues with only its files. If the key already has a
    /// snapshot, nothing happens. After an error the sandbox may have ended. Returns whether the sandbox was
    /// restarted, with a new network unless it uses the host's.
    pub async fn snapshot(&mut self, key: &str) -> Result<bool, SnapshotError> {
        let path = self.core.state_dir().join(SNAPSHOTS).join(key);
        let fail = |source| SnapshotError::Store { path: path.clone(), source };
        if self.preserved.is_some() {
            return Err(fail(io::Error::new(io::ErrorKind::Unsupported, "the sandbox is preserved already")));
        }
        let engine = SandboxEngine { core: self.core.clone() };
        let (slot, lease) = engine.snapshot_slot(key).await.map_err(fail)?;
        let lock = slot.lock().await.map_err(fail)?;
        if engine.find_snapshot(slot, key).await.map_err(fail)?.is_some() {
            return Ok(false);
        }
        let image = self.spec.image.clone();
        let begun = blocking_io(move || {
            let unfinished = lock.begin()?;
            // Written first, so that a full disk does not lose the sandbox.
            let base = serde_json::to_vec(&Base { image })?;
            fs::write(unfinished.scratch().join(BASE_FILE), base)?;
            Ok(unfinished)
        });
        let unfinished = begun.await.map_err(fail)?;
        self.stop_to_keep().await?;
        let dir = self.dir.clone();
        let layer = blocking_io(move || keep(&dir, unfinished)).await.map_err(fail)?;
        let mut spec = self.spec.clone();
        spec.image = spec.image.with_layer(&layer, identity(key)).using([lease]);
        *self = engine
            .create_in(self.dir.clone(), spec, Start::default())
            .await
            .map_err(SnapshotError::Restart)?;
        Ok(true)
    }
}

/// Moves the changes of a stopped sandbox into a slot, and resets its directory.
fn keep(dir: &Path, unfinished: Unfinished) -> io::Result<Layer> {
    let layer = unfinished.layer();
    fs::rename(dir.join("upper"), &layer)?;
    fs::rename(unfinished.scratch().join(BASE_FILE), layer.join(BASE_FILE))?;
    let layer = Layer::open(unfinished.finish()?)?;
    // An overlay cannot reuse the work directory of another.
    remove_tree(&dir.join("work"))?;
    Ok(layer)
}

fn identity(key: &str) -> String {
    format!("{SNAPSHOT_IDENTITY}{key}")
}
