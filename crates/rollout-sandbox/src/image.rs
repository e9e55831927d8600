//! Images: the layers of a sandbox's root, and the default settings of its commands.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use rollout_guest::command::DEFAULT_PATH;
use serde::{Deserialize, Serialize};

use crate::wire::PartMount;

/// The part of an image for all files outside the other parts.
const ROOT: &str = "root";

/// The start of the identities of snapshots.
pub(crate) const SNAPSHOT_IDENTITY: &str = "snapshot-";

/// The mode of the root of a part, unless the image has another.
const USUAL_MODE: u32 = 0o755;

/// A root file system made of read-only layers, with its configuration.
///
/// Most images have one part, mounted at the root. The host image has one more part for each directory of the host
/// that it shares, because overlayfs does not include mounts below a lower directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    parts: Vec<Part>,
    config: ImageConfig,
    identity: String,
    /// Keep its layers in the store as long as the image, or one that is based on it, exists.
    #[serde(skip)]
    leases: Vec<Lease>,
}

/// One overlay of an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Part {
    name: String,
    /// Its mount point, relative to the root; empty for the root itself.
    target: String,
    /// Uppermost first.
    lower: Vec<PathBuf>,
}

impl Image {
    /// Stacks layers into an image, the lowest first. `identity` identifies the content.
    pub fn from_layers(layers: &[Layer], config: ImageConfig, identity: impl Into<String>) -> Image {
        let lower = layers.iter().rev().map(|layer| layer.part(ROOT)).collect();
        let root = Part { name: ROOT.into(), target: String::new(), lower };
        Image { parts: vec![root], config, identity: identity.into(), leases: Vec::new() }
    }

    /// The host as an image: a skeleton root and directories of the host.
    pub(crate) fn from_host(skeleton: PathBuf, directories: &[String], identity: String) -> Image {
        let root = Part { name: ROOT.into(), target: String::new(), lower: vec![skeleton] };
        let rest = directories.iter().map(|name| Part {
            // The name of one directory, also for a directory in another.
            name: name.replace('/', "-"),
            target: name.clone(),
            lower: vec![Path::new("/").join(name)],
        });
        let parts = std::iter::once(root).chain(rest).collect();
        Image { parts, config: ImageConfig::default(), identity, leases: Vec::new() }
    }

    /// The image with one more layer on top; `identity` identifies the new content.
    #[must_use]
    pub fn with_layer(&self, layer: &Layer, identity: impl Into<String>) -> Image {
        let mut image = self.clone();
        image.identity = identity.into();
        for part in &mut image.parts {
            let dir = layer.part(&part.name);
            if dir.is_dir() {
                part.lower.insert(0, dir);
            }
        }
        image
    }

    /// The image with another configuration.
    #[must_use]
    pub(crate) fn with_config(mut self, config: ImageConfig) -> Image {
        self.config = config;
        self
    }

    /// The image with another identity, for example for another configuration.
    #[must_use]
    pub(crate) fn named(mut self, identity: impl Into<String>) -> Image {
        self.identity = identity.into();
        self
    }

    /// The image, which also uses these entries of the store.
    #[must_use]
    pub(crate) fn using(mut self, leases: impl IntoIterator<Item = Lease>) -> Image {
        self.leases.extend(leases);
        self
    }

    /// The default settings of commands.
    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// Identifies the image's content: two images with the same identity have the same files and the same
    /// configuration.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whether this is a snapshot of a sandbox of another image.
    pub fn is_snapshot_of(&self, other: &Image) -> bool {
        let stacked = |(own, below): (&Part, &Part)| {
            own.lower.len() <= below.lower.len() + 1 && own.lower.ends_with(&below.lower)
        };
        self.identity.starts_with(SNAPSHOT_IDENTITY)
            && self.parts.len() == other.parts.len()
            && self.parts.iter().zip(&other.parts).all(stacked)
    }

    /// Whether this is the host, which has its own network settings.
    pub(crate) fn is_host(&self) -> bool {
        self.parts.len() > 1
    }

    /// The directories of all its layers.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().flat_map(|part| &part.lower).map(PathBuf::as_path)
    }

    /// The number of layers.
    pub(crate) fn depth(&self) -> usize {
        self.parts.iter().map(|part| part.lower.len()).max().unwrap_or(0)
    }

    /// The length of the list of layers that a mount needs.
    pub(crate) fn stack_bytes(&self) -> usize {
        let bytes = |part: &Part| part.lower.iter().map(|dir| dir.as_os_str().len() + 1).sum();
        self.parts.iter().map(bytes).max().unwrap_or(0)
    }

    /// Creates the directories of a new sandbox's changes, where the root of a part has another mode or owner than
    /// usual: the root of an overlay has those of its upper directory.
    pub(crate) fn copy_roots(&self, upper: &Path, with_owners: bool) -> io::Result<()> {
        for part in &self.parts {
            let Some(lower) = part.lower.first() else { continue };
            let Ok(below) = fs::symlink_metadata(lower) else { continue };
            let (mode, owner) = (below.mode() & 0o7777, (below.uid(), below.gid()));
            if mode == USUAL_MODE && (owner == (0, 0) || !with_owners) {
                continue;
            }
            fs::DirBuilder::new().recursive(true).mode(0o700).create(upper)?;
            let dir = upper.join(&part.name);
            match fs::create_dir(&dir) {
                // A sandbox continues with its changes.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            if with_owners {
                chown(&dir, Some(owner.0), Some(owner.1))?;
            }
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    /// Whether the changes of a part add nothing to it.
    pub(crate) fn is_unchanged(&self, name: &OsStr, changes: &Path, with_owners: bool) -> io::Result<bool> {
        let Some(lower) = self.parts.iter().find(|part| name == part.name.as_str()) else { return Ok(false) };
        let Some(lower) = lower.lower.first() else { return Ok(false) };
        let attributes = |dir: &Path| {
            let found = fs::symlink_metadata(dir)?;
            let owner = (found.uid(), found.gid());
            io::Result::Ok((found.mode(), with_owners.then_some(owner)))
        };
        Ok(attributes(changes)? == attributes(lower)? && fs::read_dir(changes)?.next().is_none())
    }

    pub(crate) fn mounts(&self) -> Vec<PartMount> {
        let mount = |part: &Part| PartMount {
            name: part.name.clone(),
            target: part.target.clone(),
            lower: part.lower.clone(),
        };
        self.parts.iter().map(mount).collect()
    }
}

/// Keeps an entry of the store, such as a layer, from being removed as long as a clone of it exists.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lease(Arc<()>);

impl Lease {
    /// What shows whether the lease still exists.
    pub(crate) fn watch(&self) -> Weak<()> {
        Arc::downgrade(&self.0)
    }

    /// A lease that still exists.
    pub(crate) fn existing(watched: &Weak<()>) -> Option<Lease> {
        watched.upgrade().map(Lease)
    }
}

/// A directory with the files that one step added to an image, with one subdirectory per part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    dir: PathBuf,
}

impl Layer {
    /// Opens a layer in `dir`, which must exist.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Layer> {
        let dir = dir.into();
        if std::fs::metadata(&dir)?.is_dir() {
            Ok(Layer { dir })
        } else {
            Err(io::ErrorKind::NotADirectory.into())
        }
    }

    fn part(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// The default settings of an image for commands; the caller of exec applies them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// The environment variables.
    pub env: Vec<(String, String)>,
    /// The directory commands start in.
    pub workdir: String,
    /// The user that runs commands; root if absent.
    pub user: Option<String>,
    /// The shell that runs commands given as one string.
    pub shell: Vec<String>,
    /// Labels, which the engine ignores.
    pub labels: BTreeMap<String, String>,
    /// The program that containers of the image start, with the first of its arguments.
    #[serde(default)]
    pub entrypoint: Vec<String>,
    /// The rest of its arguments, or the program itself.
    #[serde(default)]
    pub cmd: Vec<String>,
    /// Ports, as `80/tcp`.
    #[serde(default)]
    pub exposed_ports: BTreeSet<String>,
    /// Directories that are volumes.
    #[serde(default)]
    pub volumes: BTreeSet<String>,
    /// The check of a running container.
    #[serde(default)]
    pub healthcheck: Option<DockerfileHealthcheck>,
    /// The signal that stops a container.
    #[serde(default)]
    pub stop_signal: Option<String>,
    /// Instructions for images that are built from this one.
    #[serde(default)]
    pub on_build: Vec<String>,
}

/// A `HEALTHCHECK`, with times in nanoseconds; 0 stands for the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DockerfileHealthcheck {
    /// `NONE`, `CMD` with a command, or `CMD-SHELL` with one line.
    pub test: Vec<String>,
    /// Between two checks.
    pub interval: i64,
    /// The longest time of one check.
    pub timeout: i64,
    /// Failures in this time after the start do not count.
    pub start_period: i64,
    /// The number of failures until the container is unhealthy.
    pub retries: i64,
}

impl Default for ImageConfig {
    fn default() -> ImageConfig {
        ImageConfig {
            env: vec![("PATH".into(), DEFAULT_PATH.into())],
            workdir: "/".into(),
            user: None,
            shell: vec!["/bin/sh".into(), "-c".into()],
            labels: BTreeMap::new(),
            entrypoint: Vec::new(),
            cmd: Vec::new(),
            exposed_ports: BTreeSet::new(),
            volumes: BTreeSet::new(),
            healthcheck: None,
            stop_signal: None,
            on_build: Vec::new(),
        }
    }
}

/// Why an image could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare the host as an image: {step} {path}")]
pub struct ImageError {
    pub(crate) step: &'static str,
    pub(crate) path: PathBuf,
    #[source]
    pub(crate) source: io::Error,
}
