//! Images of registries and archives: fetched once, unpacked into layers that all images share, and kept between runs.
//!
//! ```text
//! references/<hash>.json   the layers and the configuration of a reference
//! layers/oci-<digest>/     an unpacked layer, stored like those of builds
//! ```
//!
//! A pull that is killed leaves at most the unfinished files of one layer, which the next pull removes.

mod answer;
mod authorization;
mod backoff;
mod clients;
mod download;
mod error;
mod import;
mod manifest;
mod record;
mod registry;
pub(crate) mod unpack;

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use oci_client::Reference;
use tokio::sync::Semaphore;

pub use authorization::exchange_identity;
pub use error::{ImageRegistryError, PullError};
pub use import::ImageSource;

pub(crate) use registry::hex;

use self::{
    manifest::Descriptor,
    record::PulledImage,
    registry::{Origin, Registry, sha256},
    unpack::{Owners, unpack},
};
use crate::{
    blocking::{blocking, blocking_io},
    engine::SandboxEngine,
    image::{Image, ImageConfig, Layer, Lease},
    store::{LAYERS, slot::Slot},
    support::Mode,
};

/// Layers of one image that are downloaded and unpacked at the same time.
const PARALLEL_LAYERS: usize = 3;

/// The same, for all images.
const PARALLEL_DOWNLOADS: usize = 6;

/// A server that sends nothing for this long is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The progress of a pull is reported again when this part of the bytes has arrived.
const PART_OF_PROGRESS: u64 = 20;

/// The name of the lowest layer of every image. It changes with the content.
const SKELETON: &str = "skeleton-2";

/// The part of a layer with all of its files.
const PART: &str = "root";

/// A name and password for a registry, or a token.
#[derive(Clone)]
pub enum RegistryLogin {
    /// Nothing is sent.
    Anonymous,
    /// A user and a password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that the registry accepts.
    Token(String),
    /// A token that the registry's token service exchanges for others, as `docker login` stores it for some registries.
    Identity(String),
}

/// How registries are reached.
#[derive(Debug, Clone)]
pub struct RegistryOptions {
    /// The registries, as `host:port`, that are asked by plain HTTP.
    pub insecure: Vec<String>,
    /// What is asked before a registry: its name, and mirrors as `host:port` or `host:port/path`.
    pub mirrors: Vec<(String, Vec<String>)>,
    /// A server that sends nothing, or almost nothing, for this long is given up.
    pub patience: Duration,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self { insecure: Vec::new(), mirrors: Vec::new(), patience: PATIENCE }
    }
}

/// The progress of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullProgress {
    /// Layers that are in the store.
    pub layers: usize,
    /// All layers of the image.
    pub of: usize,
    /// The bytes that this pull has downloaded.
    pub received: u64,
    /// The bytes to download, of all layers that were not in the store.
    pub bytes: u64,
}

/// Those who want the same image, one after the other.
type Line = Arc<tokio::sync::Mutex<()>>;

/// Pulls images of registries into the store of an engine.
#[derive(Clone)]
pub struct RegistryImages {
    engine: SandboxEngine,
    registry: Arc<Registry>,
    /// One pull at a time of each name in this process: the first serves all that wait for it. Layers that several
    /// images share are pulled once because their slots have locks.
    pulling: Arc<Mutex<HashMap<String, Line>>>,
    /// Downloads at the same time.
    downloads: Arc<Semaphore>,
}

/// The full name of an image: `python` is `docker.io/library/python:latest`.
pub fn full_name(reference: &str) -> Result<String, PullError> {
    parse(reference).map(|reference| reference.whole())
}

fn parse(reference: &str) -> Result<Reference, PullError> {
    let parsed = reference.parse::<Reference>();
    parsed.map_err(|source| PullError::Reference { reference: reference.to_owned(), source })
}

impl RegistryImages {
    /// The images of an engine's store.
    pub fn new(engine: SandboxEngine, options: RegistryOptions) -> Self {
        Self {
            engine,
            registry: Arc::new(Registry::new(options)),
            pulling: Arc::default(),
            downloads: Arc::new(Semaphore::new(PARALLEL_DOWNLOADS)),
        }
    }

    /// The registries, as `host:port`, that an image is pulled from, in the order of attempts.
    pub fn hosts(&self, reference: &str) -> Result<Vec<String>, PullError> {
        Ok(self.registry.hosts(&parse(reference)?))
    }

    /// The line of those who want an image of this name.
    fn line(&self, name: &str) -> Line {
        let mut lines = self.pulling.lock().unwrap_or_else(PoisonError::into_inner);
        lines.entry(name.to_owned()).or_default().clone()
    }

    /// Finds an image that was pulled before. No registry is asked.
    pub async fn find(&self, reference: &str) -> Result<Option<Image>, PullError> {
        self.find_named(full_name(reference)?).await
    }

    /// Finds an image of the store by its name there.
    async fn find_named(&self, name: String) -> Result<Option<Image>, PullError> {
        let (state_dir, fail) = (self.engine.state_dir().to_owned(), self.store_error());
        let read = blocking(move || PulledImage::read(&state_dir, &name)).await;
        let Some(pulled) = read else { return Ok(None) };
        let (skeleton, lease) = self.skeleton().await?;
        let engine = self.engine.clone();
        let found = blocking_io(move || {
            let (mut layers, mut leases) = (vec![skeleton], vec![lease]);
            for key in &pulled.layers {
                leases.push(engine.core.leases.take(LAYERS, key)?);
                let slot = Slot::open(&engine.state_dir().join(LAYERS), key)?;
                match slot.finished() {
                    Some(layer) => layers.push(Layer::open(layer)?),
                    None => return Ok(None),
                }
            }
            let identity = format!("image-{}", pulled.digest.trim_start_matches("sha256:"));
            Ok(Some(Image::from_layers(&layers, pulled.config, identity).using(leases)))
        });
        found.await.map_err(fail)
    }

    /// Finds an image, or pulls it. `logins` are those of the [registries](Self::hosts), by their names.
    pub async fn pull(
        &self,
        reference: &str,
        logins: &HashMap<String, RegistryLogin>,
        progress: &(dyn Fn(PullProgress) + Sync),
    ) -> Result<Image, PullError> {
        if let Some(image) = self.find(reference).await? {
            return Ok(image);
        }
        let name = parse(reference)?;
        let line = self.line(&name.whole());
        let _pulling = line.lock().await;
        // Another trial may have pulled it.
        if let Some(image) = self.find(reference).await? {
            return Ok(image);
        }
        let origins = self.registry.origins(&name, logins);
        let (manifest, origins) = self.registry.manifest(&name, &origins).await?;
        let invalid = |problem: String| PullError::Invalid { reference: name.whole(), problem };
        let config = record::config(&manifest.config).map_err(|error| invalid(error.to_string()))?;
        let mut keys = Vec::new();
        for layer in &manifest.layers {
            let hash = sha256(&layer.digest)
                .ok_or_else(|| invalid(format!("the layer {} has no SHA-256 hash", layer.digest)))?;
            keys.push(format!("oci-{hash}"));
        }
        let mut leases = Vec::new();
        for key in &keys {
            leases.push(self.lease(key).await?);
        }
        let (skeleton, lease) = self.skeleton().await?;
        leases.push(lease);
        let mut layers = vec![skeleton];
        layers.extend(self.layers(&name, origins, &manifest.layers, &keys, progress).await?);
        let identity = format!("image-{}", manifest.digest.trim_start_matches("sha256:"));
        let pulled = PulledImage {
            reference: name.whole(),
            digest: manifest.digest,
            layers: keys,
            config: config.clone(),
        };
        let (engine, fail) = (self.engine.clone(), self.store_error());
        blocking_io(move || pulled.write(engine.state_dir())).await.map_err(fail)?;
        Ok(Image::from_layers(&layers, config, identity).using(leases))
    }

    /// The image without files, `FROM scratch`.
    pub async fn scratch(&self) -> Result<Image, PullError> {
        let (skeleton, lease) = self.skeleton().await?;
        Ok(Image::from_layers(&[skeleton], ImageConfig::default(), "scratch").using([lease]))
    }

    /// The lowest layer of every image: where a sandbox mounts what images do not contain.
    async fn skeleton(&self) -> Result<(Layer, Lease), PullError> {
        let (lease, fail) = (self.lease(SKELETON).await?, self.store_error());
        let slot = self.slot(SKELETON)?;
        let lock = match slot.finished() {
            Some(path) => return Ok((Layer::open(path).map_err(fail)?, lease)),
            None => slot.lock().await.map_err(&fail)?,
        };
        if let Some(path) = slot.finished() {
            return Ok((Layer::open(path).map_err(fail)?, lease));
        }
        let made = blocking_io(move || {
            let unfinished = lock.begin()?;
            let root = unfinished.layer().join(PART);
            for dir in ["dev", "proc", "sys", "etc"] {
                fs::create_dir_all(root.join(dir))?;
            }
            for file in ["etc/resolv.conf", "etc/hosts"] {
                fs::write(root.join(file), "")?;
            }
            Layer::open(unfinished.finish()?)
        });
        Ok((made.await.map_err(fail)?, lease))
    }

    async fn layers(
        &self,
        reference: &Reference,
        origins: &[Origin],
        layers: &[Descriptor],
        keys: &[String],
        progress: &(dyn Fn(PullProgress) + Sync),
    ) -> Result<Vec<Layer>, PullError> {
        let mut state = PullProgress { layers: 0, of: layers.len(), received: 0, bytes: 0 };
        for (layer, key) in layers.iter().zip(keys) {
            match self.slot(key)?.finished() {
                Some(_) => state.layers += 1,
                None => state.bytes = state.bytes.saturating_add(layer.size),
            }
        }
        progress(state);
        let step = (state.bytes / PART_OF_PROGRESS).max(1);
        let state = Mutex::new(state);
        let received = |new: u64| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let before = state.received / step;
            state.received += new;
            if state.received / step > before {
                progress(*state);
            }
        };
        let pulls: Vec<_> = layers
            .iter()
            .zip(keys)
            .map(|(layer, key)| async {
                let (unpacked, is_new) = self.layer(reference, origins, layer, key, &received).await?;
                if is_new {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.layers = (state.layers + 1).min(state.of);
                    progress(*state);
                }
                Ok(unpacked)
            })
            .collect();
        stream::iter(pulls).buffered(PARALLEL_LAYERS).try_collect().await
    }

    /// Finds a layer, or downloads and unpacks it. The second value is whether it is new.
    async fn layer(
        &self,
        reference: &Reference,
        origins: &[Origin],
        layer: &Descriptor,
        key: &str,
        received: &(dyn Fn(u64) + Sync),
    ) -> Result<(Layer, bool), PullError> {
        let slot = self.slot(key)?;
        let fail = self.store_error();
        let open = |path| Layer::open(path).map_err(&fail);
        if let Some(path) = slot.finished() {
            return Ok((open(path)?, false));
        }
        let lock = slot.lock().await.map_err(&fail)?;
        // Another process, or another image, may have unpacked it.
        if let Some(path) = slot.finished() {
            return Ok((open(path)?, false));
        }
        // Only a holder of the slot waits here, so no download waits for the slot of another one.
        let _download = self.downloads.acquire().await;
        let unfinished = blocking_io(move || lock.begin()).await.map_err(&fail)?;
        let blob = unfinished.scratch().join("blob");
        let blob = self.registry.blob(reference, origins, layer, &blob, received).await?;
        let owners = match self.engine.support().mode {
            Mode::Root => Owners::Kept,
            Mode::User => Owners::User,
        };
        let unpacked = blocking(move || {
            std::fs::create_dir(unfinished.layer())?;
            unpack(blob, &unfinished.layer().join(PART), owners)?;
            unfinished.finish()
        });
        Ok((open(unpacked.await.map_err(&fail)?)?, true))
    }

    /// Uses a layer. Called before its slot is opened.
    async fn lease(&self, key: &str) -> Result<Lease, PullError> {
        self.engine.core.lease(LAYERS, key).await.map_err(self.store_error())
    }

    fn slot(&self, key: &str) -> Result<Slot, PullError> {
        Slot::open(&self.engine.state_dir().join(LAYERS), key).map_err(self.store_error())
    }

    fn store_error(&self) -> impl Fn(std::io::Error) -> PullError + use<> {
        let path = self.engine.state_dir().join(LAYERS);
        move |source| PullError::Store { path: path.clone(), source }
    }
}
