//! Images: what a sandbox's root is stacked from, and the settings its commands start with.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use rollout_guest::command::DEFAULT_PATH;
use serde::{Deserialize, Serialize};

use crate::wire::PartMount;

/// The part of an image that holds everything no other part does.
const ROOT: &str = "root";

/// A root file system made of read-only layers, with its configuration.
///
/// Most images have one part, mounted at the root. The host as an image has one more for each of its
/// own directories of programs, because overlayfs does not look below a mount it stacks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    parts: Vec<Part>,
    config: ImageConfig,
    identity: String,
}

/// One overlay of an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Part {
    name: String,
    /// Where it is mounted, relative to the root; empty for the root itself.
    target: String,
    /// Uppermost first.
    lower: Vec<PathBuf>,
}

impl Image {
    /// Stacks layers, the lowest first, into an image. `identity` names the content.
    pub fn from_layers(layers: &[Layer], config: ImageConfig, identity: impl Into<String>) -> Image {
        let lower = layers.iter().rev().map(|layer| layer.part(ROOT)).collect();
        let root = Part { name: ROOT.into(), target: String::new(), lower };
        Image { parts: vec![root], config, identity: identity.into() }
    }

    /// The host as an image: a skeleton root and the host's own directories of programs.
    pub(crate) fn from_host(skeleton: PathBuf, directories: &[String], identity: String) -> Image {
        let root = Part { name: ROOT.into(), target: String::new(), lower: vec![skeleton] };
        let rest = directories.iter().map(|name| Part {
            name: name.clone(),
            target: name.clone(),
            lower: vec![Path::new("/").join(name)],
        });
        let parts = std::iter::once(root).chain(rest).collect();
        Image { parts, config: ImageConfig::default(), identity }
    }

    /// The image with one more layer on top; `identity` names the new content.
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

    /// The image under another identity, as for another configuration.
    #[must_use]
    pub(crate) fn named(mut self, identity: impl Into<String>) -> Image {
        self.identity = identity.into();
        self
    }

    /// The settings that commands start with.
    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// A name for the image's content: two images of the same identity hold the same files, and give commands the
    /// same settings.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The directories that it is stacked from.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().flat_map(|part| &part.lower).map(PathBuf::as_path)
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

/// A directory with the files that one step added to an image, one subdirectory for each part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    dir: PathBuf,
}

impl Layer {
    /// Opens a layer that lies in `dir`, which must exist.
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

/// The settings that an image gives to commands; the caller of exec applies them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// The environment variables.
    pub env: Vec<(String, String)>,
    /// The directory commands start in.
    pub workdir: String,
    /// The user commands run as; root when there is none.
    pub user: Option<String>,
    /// The shell that runs commands given as one string.
    pub shell: Vec<String>,
    /// Labels, which mean nothing to the engine.
    pub labels: BTreeMap<String, String>,
}

impl Default for ImageConfig {
    fn default() -> ImageConfig {
        ImageConfig {
            env: vec![("PATH".into(), DEFAULT_PATH.into())],
            workdir: "/".into(),
            user: None,
            shell: vec!["/bin/sh".into(), "-c".into()],
            labels: BTreeMap::new(),
        }
    }
}

/// Why an image could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare the host as an image: {step} {path}")]
pub struct ImageError {
    pub(crate) step: &'static str,
    pub(crate) path: PathBuf,
    #[source]
    pub(crate) source: io::Error,
}
