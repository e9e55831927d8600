//! Imports images that are in no registry: OCI layouts, archives of `docker save`, and root file systems.
//!
//! An archive is not trusted: blobs are checked by their hashes, and no path in it leads out of it.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use rollout_guest::remove::remove_tree;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{
    PART, PullError, RegistryImages,
    manifest::{Descriptor, Document, architecture},
    record::{self, PulledImage},
    registry::{hex, sha256},
    unpack::{Owners, unpack},
};
use crate::{
    blocking::blocking_io,
    image::{Image, ImageConfig, Layer, Lease},
    support::Mode,
    tar_stream::invalid,
};

/// The largest manifest, index or configuration that is read.
const MAX_JSON: u64 = 8 << 20;

/// The most indexes inside each other.
const MAX_INDEXES: usize = 4;

/// The most layers of an image.
const MAX_LAYERS: usize = 256;

/// An image outside of registries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageSource {
    /// A directory with an OCI layout, and the name of one of its images if it has several.
    Layout(PathBuf, Option<String>),
    /// A tar archive of `docker save`, or of an OCI layout.
    Archive(PathBuf),
    /// A tar archive of a root file system.
    Rootfs(PathBuf),
}

impl ImageSource {
    fn path(&self) -> &Path {
        match self {
            Self::Layout(path, _) | Self::Archive(path) | Self::Rootfs(path) => path,
        }
    }

    /// A name that changes with the content. Blocks.
    fn name(&self) -> io::Result<String> {
        let (kind, file) = match self {
            Self::Layout(path, _) => ("oci", path.join("index.json")),
            Self::Archive(path) => ("archive", path.clone()),
            Self::Rootfs(path) => ("rootfs", path.clone()),
        };
        let tag = match self {
            Self::Layout(_, Some(tag)) => tag.as_str(),
            _ => "",
        };
        let metadata = fs::metadata(&file)?;
        let (path, seconds, part) = (file.canonicalize()?, metadata.mtime(), metadata.mtime_nsec());
        Ok(format!("{kind}:{}:{tag}?{}-{}-{seconds}.{part}", path.display(), metadata.len(), metadata.ino()))
    }
}

/// What an import found: files with layers, the lowest first.
struct Found {
    config: ImageConfig,
    layers: Vec<PathBuf>,
    /// The hashes of the layers, where they are known.
    hashes: Vec<Option<String>>,
}

impl RegistryImages {
    /// Imports an image, once for the same content.
    pub async fn import(&self, source: &ImageSource) -> Result<Image, PullError> {
        let shown = source.path().display().to_string();
        let failed = |problem: io::Error| PullError::Import { path: shown.clone().into(), source: problem };
        let owned = source.clone();
        let name = blocking_io(move || owned.name()).await.map_err(failed)?;
        let line = self.line(&name);
        let _pulling = line.lock().await;
        if let Some(image) = self.find_named(name.clone()).await? {
            return Ok(image);
        }
        let scratch = self.engine.core.run_dir.join(self.engine.core.next_id());
        let imported = self.import_to(source, &scratch, name).await;
        let removed = blocking_io(move || remove_tree(&scratch)).await;
        let image = imported.map_err(|error| match error {
            Failure::Import(error) => failed(error),
            Failure::Store(error) => error,
        })?;
        removed.map_err(failed)?;
        Ok(image)
    }

    async fn import_to(&self, source: &ImageSource, scratch: &Path, name: String) -> Result<Image, Failure> {
        let (owned, dir) = (source.clone(), scratch.to_owned());
        let found = blocking_io(move || find(&owned, &dir)).await.map_err(Failure::Import)?;
        if found.layers.len() > MAX_LAYERS {
            return Err(Failure::Import(io::Error::other(format!("it has {} layers", found.layers.len()))));
        }
        let (skeleton, lease) = self.skeleton().await.map_err(Failure::Store)?;
        let (mut layers, mut leases, mut keys) = (vec![skeleton], vec![lease], Vec::new());
        for (path, expected) in found.layers.iter().zip(&found.hashes) {
            let (key, layer, lease) = self.import_layer(path.clone(), expected.clone()).await?;
            keys.push(key);
            layers.push(layer);
            leases.push(lease);
        }
        let config = found.config;
        let digest = hex(&Sha256::digest(format!("{keys:?} {config:?}")));
        let pulled =
            PulledImage { reference: name, digest: digest.clone(), layers: keys, config: config.clone() };
        let (engine, fail) = (self.engine.clone(), self.store_error());
        blocking_io(move || pulled.write(engine.state_dir()))
            .await
            .map_err(|error| Failure::Store(fail(error)))?;
        Ok(Image::from_layers(&layers, config, format!("image-{digest}")).using(leases))
    }

    /// Unpacks a file with a layer, unless the store has it.
    async fn import_layer(
        &self,
        path: PathBuf,
        expected: Option<String>,
    ) -> Result<(String, Layer, Lease), Failure> {
        let opened = path.clone();
        let hash = blocking_io(move || hash_file(&opened)).await.map_err(Failure::Import)?;
        if expected.is_some_and(|expected| expected != hash) {
            return Err(Failure::Import(invalid("a layer without the hash of its manifest")));
        }
        let key = format!("oci-{hash}");
        let lease = self.lease(&key).await.map_err(Failure::Store)?;
        let slot = self.slot(&key).map_err(Failure::Store)?;
        let fail = self.store_error();
        let open = |path| Layer::open(path).map_err(|error| Failure::Store(fail(error)));
        if let Some(layer) = slot.finished() {
            return Ok((key, open(layer)?, lease));
        }
        let lock = slot.lock().await.map_err(|error| Failure::Store(fail(error)))?;
        // Another process may have unpacked it.
        if let Some(layer) = slot.finished() {
            return Ok((key, open(layer)?, lease));
        }
        let owners = if self.engine.support().mode == Mode::Root { Owners::Kept } else { Owners::User };
        let unpacked = blocking_io(move || {
            let unfinished = lock.begin()?;
            fs::create_dir(unfinished.layer())?;
            unpack(File::open(path)?, &unfinished.layer().join(PART), owners)?;
            unfinished.finish()
        });
        Ok((key, open(unpacked.await.map_err(Failure::Import)?)?, lease))
    }
}

/// Whose fault a failure is.
enum Failure {
    Import(io::Error),
    Store(PullError),
}

/// Finds the layers of an image. Archives are unpacked to `scratch`. Blocks.
fn find(source: &ImageSource, scratch: &Path) -> io::Result<Found> {
    match source {
        ImageSource::Rootfs(path) => {
            Ok(Found { config: ImageConfig::default(), layers: vec![path.clone()], hashes: vec![None] })
        }
        ImageSource::Layout(dir, tag) => layout(dir, tag.as_deref()),
        ImageSource::Archive(path) => {
            unpack(File::open(path)?, scratch, Owners::User)?;
            if scratch.join("manifest.json").exists() {
                docker_archive(scratch)
            } else if scratch.join("index.json").exists() {
                layout(scratch, None)
            } else {
                Err(io::Error::other("it is neither an archive of `docker save` nor of an OCI layout"))
            }
        }
    }
}

/// One image of an archive of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Rootfs {
    rootfs: Option<DiffIds>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DiffIds {
    diff_ids: Vec<String>,
}

fn docker_archive(dir: &Path) -> io::Result<Found> {
    let mut images: Vec<Saved> = serde_json::from_str(&text(dir, "manifest.json")?)?;
    if images.len() != 1 {
        return Err(io::Error::other(format!("it has {} images instead of one", images.len())));
    }
    let Saved { config, layers } = images.remove(0);
    let json = text(dir, &config)?;
    // The hashes are those of uncompressed layers, as archives have them.
    let known = serde_json::from_str::<Rootfs>(&json)?.rootfs.unwrap_or_default().diff_ids;
    let layers = layers.iter().map(|layer| inside(dir, layer)).collect::<io::Result<Vec<_>>>()?;
    let mut hashes = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let mut magic = [0; 2];
        let is_compressed = File::open(layer)?.read(&mut magic)? == 2 && magic == [0x1f, 0x8b];
        let hash = known.get(number).and_then(|id| sha256(id)).filter(|_| !is_compressed);
        hashes.push(hash.map(str::to_owned));
    }
    Ok(Found { config: record::config(&json)?, layers, hashes })
}

fn layout(dir: &Path, tag: Option<&str>) -> io::Result<Found> {
    let mut document: Document = serde_json::from_str(&text(dir, "index.json")?)?;
    let mut tag = tag;
    for _ in 0..MAX_INDEXES {
        let Some(manifests) = document.manifests.take() else { break };
        let chosen = choose(manifests, tag.take())?;
        document = serde_json::from_str(&blob_text(dir, &chosen.digest)?)?;
    }
    let (Some(config), Some(layers)) = (document.config, document.layers) else {
        return Err(io::Error::other("it has no manifest of an image"));
    };
    let config = record::config(&blob_text(dir, &config.digest)?)?;
    let mut found = Found { config, layers: Vec::new(), hashes: Vec::new() };
    for layer in layers {
        found.layers.push(blob(dir, &layer.digest)?);
        found.hashes.push(sha256(&layer.digest).map(str::to_owned));
    }
    Ok(found)
}

/// The image of this name, or the only one for this machine.
fn choose(manifests: Vec<Descriptor>, tag: Option<&str>) -> io::Result<Descriptor> {
    let arch = architecture();
    let mut fitting: Vec<Descriptor> = match tag {
        Some(tag) => manifests.into_iter().filter(|one| one.name() == Some(tag)).collect(),
        None => manifests,
    };
    fitting.retain(Descriptor::runs_here);
    match (fitting.len(), tag) {
        (1, _) => Ok(fitting.remove(0)),
        (0, Some(tag)) => Err(io::Error::other(format!("it has no image named {tag} for linux/{arch}"))),
        (0, None) => Err(io::Error::other(format!("it has no image for linux/{arch}"))),
        (count, _) => Err(io::Error::other(format!("it has {count} images; add `:` and the name of one"))),
    }
}

/// The path of a blob.
fn blob(dir: &Path, digest: &str) -> io::Result<PathBuf> {
    let hash = sha256(digest).ok_or_else(|| invalid("a blob without a SHA-256 hash"))?;
    inside(dir, &format!("blobs/sha256/{hash}"))
}

/// A small blob whose hash is right.
fn blob_text(dir: &Path, digest: &str) -> io::Result<String> {
    let path = blob(dir, digest)?;
    let mut text = String::new();
    File::open(path)?.take(MAX_JSON).read_to_string(&mut text)?;
    match sha256(digest) == Some(hex(&Sha256::digest(&text)).as_str()) {
        true => Ok(text),
        false => Err(invalid("a blob without the hash of its name")),
    }
}

fn text(dir: &Path, name: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(inside(dir, name)?)?.take(MAX_JSON).read_to_string(&mut text)?;
    Ok(text)
}

/// A regular file of a directory. Links are followed only if they stay inside: `docker save` writes such links.
fn inside(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let plain =
        Path::new(name).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let path = dir.join(name).canonicalize()?;
    if !plain || !path.starts_with(dir.canonicalize()?) {
        return Err(invalid("a path that leaves the image"));
    }
    if fs::metadata(&path)?.is_file() { Ok(path) } else { Err(invalid("a blob that is not a file")) }
}

fn hash_file(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}
