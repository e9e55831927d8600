//! The mounts of a `RUN --mount`: where their files are on the host, and what is left of them in the image.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::context::{Context, CopyFailure};
use super::plan::{Origin, Run};
use super::run_mount::MountKind;
use super::transfer;
use crate::blocking::blocking_io;
use crate::engine::SandboxEngine;
use crate::image::Lease;
use crate::oci::hex;
use crate::sandbox::RunningSandbox;
use crate::store::{
    self,
    slot::{Slot, SlotLock},
};
use crate::wire::{ExtraMount, MountSource};

/// The mounts of one command.
#[derive(Default)]
pub(crate) struct Mounted {
    pub(crate) mounts: Vec<ExtraMount>,
    /// Files that exist only as places of mounts.
    pub(crate) placeholders: Vec<String>,
    /// Kept while the command uses the caches.
    caches: BTreeMap<String, Cache>,
}

/// A cache that no other build uses meanwhile.
struct Cache {
    dir: PathBuf,
    _lock: SlotLock,
    _lease: Lease,
}

/// What is needed to prepare mounts.
pub(crate) struct Preparation<'a> {
    pub(crate) engine: &'a SandboxEngine,
    pub(crate) context: &'a Arc<Context>,
    pub(crate) scratch: &'a Path,
    /// The sandbox of the build, before it has the mounts.
    pub(crate) sandbox: &'a RunningSandbox,
    pub(crate) keep_owners: bool,
}

impl Preparation<'_> {
    /// Prepares the mounts of a command. `others` are sandboxes with the files of other images, in order.
    pub(crate) async fn mounts(
        &self,
        run: &Run,
        others: &[RunningSandbox],
        step: usize,
    ) -> Result<Mounted, CopyFailure> {
        let mut mounted = Mounted { caches: self.caches(run).await?, ..Mounted::default() };
        let mut others = others.iter();
        for (number, mount) in run.mounts.iter().enumerate() {
            let (source, is_file) = match &mount.kind {
                MountKind::Tmpfs { size } => (MountSource::Memory { size: *size }, false),
                MountKind::Cache { id, read_only, .. } => {
                    let path = mounted.caches[id].dir.clone();
                    (MountSource::Host { path, read_only: *read_only }, false)
                }
                MountKind::Bind { from, source, writable } => {
                    let dir = self.scratch.join(format!("mount-{step}-{number}"));
                    let (path, is_file) = self.files(from, source, &dir, &mut others).await?;
                    (MountSource::Host { path, read_only: !writable }, is_file)
                }
            };
            if is_file && self.sandbox.find(&mount.target).await.map_err(transfer::target)?.is_empty() {
                mounted.placeholders.push(mount.target.clone());
            }
            mounted.mounts.push(ExtraMount { target: mount.target.clone(), source, is_file });
        }
        Ok(mounted)
    }

    /// Copies the files of a bind mount to the host, so that a command can neither change nor outlast their origin.
    async fn files<'s>(
        &self,
        from: &Origin,
        source: &str,
        dir: &Path,
        others: &mut impl Iterator<Item = &'s RunningSandbox>,
    ) -> Result<(PathBuf, bool), CopyFailure> {
        match from {
            Origin::Context => {
                let mut selected = self.context.select(source)?;
                let selected = selected.remove(0);
                let (name, is_file) = (selected.name.clone(), !selected.is_dir);
                transfer::context_to_host(self.context, selected, dir, self.keep_owners).await?;
                Ok((if is_file { dir.join(name) } else { dir.to_owned() }, is_file))
            }
            Origin::Other(_) => {
                let other = others.next().ok_or_else(|| CopyFailure::NotFound(source.to_owned()))?;
                let found = transfer::to_host(other, source, dir, self.keep_owners).await?;
                let name = found.path.rsplit('/').next().unwrap_or_default();
                Ok((if found.is_dir { dir.to_owned() } else { dir.join(name) }, !found.is_dir))
            }
        }
    }

    /// Takes the caches of a command, each once and in the order of their names: two commands that wait for each other
    /// would wait forever.
    async fn caches(&self, run: &Run) -> Result<BTreeMap<String, Cache>, CopyFailure> {
        let mut wanted = BTreeMap::new();
        for mount in &run.mounts {
            if let MountKind::Cache { id, mode, owner, .. } = &mount.kind {
                wanted.entry(id).or_insert((*mode, *owner));
            }
        }
        let mut caches = BTreeMap::new();
        for (id, (mode, owner)) in wanted {
            caches.insert(id.clone(), self.cache(id, mode, owner).await?);
        }
        Ok(caches)
    }

    /// The directory of a cache. It is an entry of the store, like layers, and removed like them.
    async fn cache(&self, id: &str, mode: u32, (user, group): (u32, u32)) -> Result<Cache, CopyFailure> {
        let key = format!("cache-{}", hex(&Sha256::digest(id)));
        let layers = self.engine.state_dir().join(store::LAYERS);
        let lease = self.engine.core.lease(store::LAYERS, &key).await.map_err(CopyFailure::io(&layers))?;
        let slot = Slot::open(&layers, &key).map_err(CopyFailure::io(&layers))?;
        let lock = slot.lock().await.map_err(CopyFailure::io(&layers))?;
        let dir = slot.dir().join("files");
        let (made, keep_owners) = (dir.clone(), self.keep_owners);
        let make = move || {
            if made.is_dir() {
                return Ok(());
            }
            fs::create_dir_all(&made)?;
            if keep_owners {
                chown(&made, Some(user), Some(group))?;
            }
            fs::set_permissions(&made, fs::Permissions::from_mode(mode))
        };
        blocking_io(make).await.map_err(CopyFailure::io(&dir))?;
        Ok(Cache { dir, _lock: lock, _lease: lease })
    }
}
