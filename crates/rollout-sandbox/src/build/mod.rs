//! Builds images from Dockerfiles without a daemon.
//!
//! The Dockerfile is parsed (`parse`). The stages that the last one needs are built at the same time (`builder`). Each
//! is planned (`plan`): variables are expanded and paths made absolute. Its steps are divided into layers (`layers`).
//! The layers below, the steps and the files that they copy determine a key (`key`). The layer of a key is built once
//! (`store::slot`), by running the steps (`execute`) in a sandbox.

mod builder;
mod context;
mod download;
mod error;
mod execute;
mod expand;
mod images;
mod inspect;
mod job;
mod key;
mod layers;
mod lines;
mod log;
mod mounted;
mod outline;
mod parse;
mod plan;
mod run_mount;
mod settings;
mod stages;
mod transfer;

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use context::{ContextFile, CopyFailure, FileKind, context_files, open_regular};
pub use error::ImageBuildError;
pub use images::{BaseImageError, BaseImages, HostImages, reference_matches};
pub use inspect::{NamedImage, inspect};
pub use log::LogSink;
pub use outline::{
    Outline, OutlineAction, OutlineCommand, OutlineCopy, OutlineStep, UNKNOWN_VARIABLE, outline,
};
pub use parse::Location;

use builder::Builder;
use context::Context;
use parse::Dockerfile;

use crate::blocking::blocking;
use crate::engine::SandboxEngine;
use crate::image::Image;
use crate::limits::SandboxLimits;
use crate::spec::Network;

/// Largest Dockerfile that is read.
const MAX_DOCKERFILE: u64 = 1 << 20;

/// What to build, and how.
#[derive(Debug)]
pub struct BuildRequest<'a> {
    /// The directory that `COPY` and `ADD` take files from.
    pub context: &'a Path,
    /// The Dockerfile.
    pub dockerfile: &'a Path,
    /// Builds even if the same content was built before, and replaces the stored layers, except for these.
    pub no_cache: Option<&'a FreshLayers>,
    /// The network of `RUN`.
    pub network: Network,
    /// How much of the machine a `RUN` may use.
    pub limits: SandboxLimits,
    /// Receives the steps and their output while the build runs.
    pub log: LogSink,
}

/// The layers that builds without the cache have built.
///
/// Later builds with the same list use them. So a retry continues after the layers that the failed build finished, and
/// images with equal lines do not build them twice.
#[derive(Debug, Default)]
pub struct FreshLayers(Mutex<HashSet<PathBuf>>);

impl FreshLayers {
    fn add(&self, layer: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(layer.to_owned());
    }

    fn contains(&self, layer: &Path) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(layer)
    }
}

/// An image that was built or found in the cache.
#[derive(Debug, Clone)]
pub struct Built {
    /// The image.
    pub image: Image,
    /// All its layers were in the cache.
    pub cached: bool,
}

/// Builds the last stage of a Dockerfile, with the stages it needs.
///
/// Stages that do not need each other are built at the same time, as many as the machine has processors. Concurrent
/// builds of the same layer run once, also across processes that share the engine's state directory. Dropping the
/// future cancels the build: all its processes are killed, and only finished layers are stored.
pub async fn build(
    engine: &SandboxEngine,
    request: BuildRequest<'_>,
    images: &impl BaseImages,
) -> Result<Built, ImageBuildError> {
    let (root, path) = (request.context.to_owned(), request.dockerfile.to_owned());
    let (_, dockerfile, context) = blocking(move || read(&root, &path)).await?;
    Builder::new(engine, images, dockerfile, context, request)?.build().await
}

/// Reads the Dockerfile, which is no more trusted than the files next to it.
fn read_dockerfile(context: &Path, path: &Path) -> Result<String, ImageBuildError> {
    let refused = |what: &str| io_error("read", path)(io::Error::other(what.to_owned()));
    let resolved = path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ImageBuildError::MissingDockerfile { path: path.to_owned() },
        _ => io_error("read", path)(error),
    })?;
    let root = context.canonicalize().map_err(io_error("open", context))?;
    if path.starts_with(context) && !resolved.starts_with(root) {
        return Err(refused("it is a link to a file outside its directory"));
    }
    let mut bytes = Vec::new();
    open_regular(&resolved)
        .and_then(|file| file.take(MAX_DOCKERFILE + 1).read_to_end(&mut bytes))
        .map_err(io_error("read", path))?;
    if bytes.len() as u64 > MAX_DOCKERFILE {
        return Err(refused("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        let at = Location { line, text: String::new() };
        ImageBuildError::Syntax { at, message: "this is not UTF-8 text".to_owned() }
    })
}

/// Reads all inputs of a build.
fn read(root: &Path, path: &Path) -> Result<(String, Dockerfile, Arc<Context>), ImageBuildError> {
    let text = read_dockerfile(root, path)?;
    let dockerfile = parse::parse(&text)?;
    let context = Context::open(root, path).map_err(io_error("open", root))?;
    Ok((text, dockerfile, Arc::new(context)))
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageBuildError {
    let path: PathBuf = path.to_owned();
    move |source| ImageBuildError::Io { doing, path, source }
}
