//! Builds images from Dockerfiles without a daemon.
//!
//! The Dockerfile is parsed (`parse`). Then each stage that the last one needs is planned (`plan`): variables
//! are expanded and paths made absolute. The plan and the files that it copies determine a key. The layer of a
//! key is built once (`store::slot`) by running (`execute`) the plan in a sandbox.

mod context;
mod download;
mod error;
mod execute;
mod expand;
mod images;
mod inspect;
mod job;
mod key;
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

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use context::{ContextFile, CopyFailure, FileKind, context_files, open_regular};
pub use error::ImageBuildError;
pub use images::{BaseImageError, BaseImages, HostImages, reference_matches};
pub use inspect::{NamedImage, inspect};
pub use log::LogSink;
pub use outline::{
    Outline, OutlineAction, OutlineCommand, OutlineCopy, OutlineStep, UNKNOWN_VARIABLE, outline,
};
pub use parse::Location;

use context::Context;
use execute::Execution;
use log::Log;
use mounted::{Mounted, Preparation};
use parse::Dockerfile;
use plan::{Action, Plan, Step};
use stages::Base;

use crate::blocking::blocking;
use crate::engine::SandboxEngine;
use crate::image::{Image, Layer};
use crate::limits::SandboxLimits;
use crate::sandbox::{KeepError, RunningSandbox};
use crate::spec::{Network, SandboxSpec};
use crate::store::{self, slot::Slot};
use crate::support::Mode;

/// Largest Dockerfile that is read.
const MAX_DOCKERFILE: u64 = 1 << 20;

/// What to build, and how.
#[derive(Debug)]
pub struct BuildRequest<'a> {
    /// The directory that `COPY` and `ADD` take files from.
    pub context: &'a Path,
    /// The Dockerfile.
    pub dockerfile: &'a Path,
    /// Builds even if the same content was built before, and replaces the stored layer.
    pub no_cache: bool,
    /// The network of `RUN`.
    pub network: Network,
    /// How much of the machine a `RUN` may use.
    pub limits: SandboxLimits,
    /// Receives the steps and their output while the build runs.
    pub log: LogSink,
}

/// An image that was built or found in the cache.
#[derive(Debug, Clone)]
pub struct Built {
    /// The image.
    pub image: Image,
    /// The image was in the cache.
    pub cached: bool,
    /// Identifies the content that the image was built from.
    pub key: String,
}

/// Builds the last stage of a Dockerfile, with the stages it needs.
///
/// Concurrent builds of the same content run once, also across processes that share the engine's state
/// directory. Dropping the future cancels the build: all its processes are killed, and nothing is stored.
pub async fn build(
    engine: &SandboxEngine,
    request: BuildRequest<'_>,
    images: &impl BaseImages,
) -> Result<Built, ImageBuildError> {
    let (root, path) = (request.context.to_owned(), request.dockerfile.to_owned());
    let (text, dockerfile, context) = blocking(move || read(&root, &path)).await?;
    let bases = stages::bases(&dockerfile)?;
    let mut builder = Builder {
        engine,
        images,
        context,
        text,
        no_cache: request.no_cache,
        network: request.network,
        limits: request.limits,
        log: Log::new(request.log),
        built: BTreeMap::new(),
        args: BTreeMap::new(),
    };
    let mut last = None;
    for index in stages::needed_stages(&dockerfile, &bases) {
        let built = builder.stage(&dockerfile, index, &bases[index]).await?;
        builder.built.insert(index, built.image.clone());
        last = Some(built);
    }
    Ok(last.expect("a Dockerfile without a stage does not parse, and its last stage is needed"))
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

/// Identifies the content of a key's layer: a later build of the same key without the cache may produce
/// another.
fn identity(key: &str, layer: &Path) -> String {
    match layer.file_name().map(|generation| generation.to_string_lossy()) {
        Some(generation) if generation != "1" => format!("{key}-{generation}"),
        _ => key.to_owned(),
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageBuildError {
    let path: PathBuf = path.to_owned();
    move |source| ImageBuildError::Io { doing, path, source }
}

/// The stages built so far, and what is needed to build another.
struct Builder<'a, I> {
    engine: &'a SandboxEngine,
    images: &'a I,
    context: Arc<Context>,
    text: String,
    no_cache: bool,
    network: Network,
    limits: SandboxLimits,
    log: Log,
    built: BTreeMap<usize, Image>,
    /// The arguments at the ends of the stages.
    args: BTreeMap<usize, Vec<(String, String)>>,
}

impl<I: BaseImages> Builder<'_, I> {
    async fn stage(
        &mut self,
        dockerfile: &Dockerfile,
        index: usize,
        base: &Base,
    ) -> Result<Built, ImageBuildError> {
        let inherited = match base {
            Base::Stage(earlier) => self.args.get(earlier).cloned().unwrap_or_default(),
            Base::Image(_) => Vec::new(),
        };
        let base = self.image(&dockerfile.stages[index].at, base).await?;
        let plan = plan::plan(dockerfile, index, base.config(), &inherited)?;
        self.args.insert(index, plan.args.clone());
        let mut others = Vec::new();
        for step in &plan.steps {
            let mut images = Vec::new();
            for origin in step.action.origins() {
                images.push(self.image(&step.at, origin).await?);
            }
            others.push(images);
        }
        let inputs = key::Inputs {
            dockerfile: self.text.clone(),
            stage: index,
            base: base.identity().to_owned(),
            others: others.iter().flatten().map(|image| image.identity().to_owned()).collect(),
        };
        let (key, plan) = self.key(inputs, plan).await?;
        let config = plan.config.clone();
        if plan.steps.iter().all(|step| step.action == Action::Nothing) {
            let unchanged = *base.config() == config;
            let image = if unchanged { base } else { base.with_config(config).named(key.as_str()) };
            return Ok(Built { image, cached: true, key });
        }
        let layers = self.engine.state_dir().join(store::LAYERS);
        self.engine.core.lease(store::LAYERS, &key).await.map_err(io_error("use", &layers))?;
        let slot = Slot::open(&layers, &key).map_err(io_error("use", &layers))?;
        let (layer, cached) = self.layer(&slot, &base, &plan, &others).await?;
        if cached {
            let line = format!("Using layer {key}, built before\n");
            self.log.write(line.as_bytes()).await.map_err(ImageBuildError::Log)?;
        }
        let identity = identity(&key, &layer);
        let layer = Layer::open(&layer).map_err(io_error("open", &layer))?;
        Ok(Built { image: base.with_layer(&layer, identity).with_config(config), cached, key })
    }

    async fn image(&self, at: &Location, base: &Base) -> Result<Image, ImageBuildError> {
        match base {
            // Stages are built in order, and a stage can only name earlier ones. A trigger of the base image may name
            // one that no instruction needs.
            Base::Stage(index) => self.built.get(index).cloned().ok_or_else(|| ImageBuildError::Syntax {
                at: at.clone(),
                message: "a trigger of the base image uses another stage".to_owned(),
            }),
            Base::Image(reference) => self.images.resolve(reference).await.map_err(|source| {
                ImageBuildError::BaseImage { at: at.clone(), reference: reference.clone(), source }
            }),
        }
    }

    async fn key(&self, inputs: key::Inputs, plan: Plan) -> Result<(String, Plan), ImageBuildError> {
        let context = self.context.clone();
        blocking(move || key::key(&inputs, &plan, &context).map(|key| (key, plan))).await
    }

    /// Finds the layer of a plan, or builds it. The second value is whether the layer existed.
    async fn layer(
        &mut self,
        slot: &Slot,
        base: &Image,
        plan: &Plan,
        others: &[Vec<Image>],
    ) -> Result<(PathBuf, bool), ImageBuildError> {
        if !self.no_cache
            && let Some(layer) = slot.finished()
        {
            return Ok((layer, true));
        }
        if !self.engine.support().changes_on_disk {
            let state_dir = self.engine.state_dir().to_owned();
            return Err(KeepError::InMemory { state_dir }.into());
        }
        let lock = slot.lock().await.map_err(io_error("lock", slot.dir()))?;
        // The previous holder of the lock may have built it.
        if !self.no_cache
            && let Some(layer) = slot.finished()
        {
            return Ok((layer, true));
        }
        let unfinished = blocking(move || lock.begin()).await.map_err(io_error("prepare", slot.dir()))?;
        let sandbox = self.sandbox(base, self.network).await?;
        let scratch = unfinished.scratch();
        let sandbox = self.execute(sandbox, &scratch, &plan.steps, others).await?;
        sandbox.commit(&unfinished.layer()).await?;
        let layer = blocking(move || unfinished.finish()).await.map_err(io_error("finish", slot.dir()))?;
        Ok((layer, false))
    }

    /// Runs the steps. Returns the sandbox, which is another one after a command with mounts.
    async fn execute(
        &mut self,
        mut sandbox: RunningSandbox,
        scratch: &Path,
        steps: &[Step],
        others: &[Vec<Image>],
    ) -> Result<RunningSandbox, ImageBuildError> {
        let keep_owners = self.engine.support().mode == Mode::Root;
        for (number, (step, images)) in steps.iter().zip(others).enumerate() {
            let line = format!("Step {}/{} : {}\n", number + 1, steps.len(), step.at.text);
            self.log.write(line.as_bytes()).await.map_err(ImageBuildError::Log)?;
            let mut others = Vec::new();
            for image in images {
                others.push(self.sandbox(image, Network::None).await?);
            }
            let mut mounted = Mounted::default();
            if let Action::Run(run) = &step.action
                && !run.mounts.is_empty()
            {
                let (engine, context) = (self.engine, &self.context);
                let preparation = Preparation { engine, context, scratch, sandbox: &sandbox, keep_owners };
                let prepared = preparation.mounts(run, &others, number).await;
                mounted = prepared
                    .map_err(|source| ImageBuildError::FilesFailed { at: step.at.clone(), source })?;
                sandbox = self.engine.restart(sandbox, &mounted.mounts).await?;
            }
            let mut execution = Execution {
                sandbox: &sandbox,
                context: &self.context,
                scratch,
                network: self.network,
                log: &mut self.log,
                keep_owners,
            };
            execution.step(step, others.first()).await?;
            if !mounted.mounts.is_empty() {
                sandbox = self.engine.restart(sandbox, &[]).await?;
                for path in &mounted.placeholders {
                    let removed = sandbox.remove(path).await.map_err(transfer::target);
                    removed.map_err(|source| ImageBuildError::FilesFailed { at: step.at.clone(), source })?;
                }
            }
        }
        Ok(sandbox)
    }

    async fn sandbox(&self, image: &Image, network: Network) -> Result<RunningSandbox, ImageBuildError> {
        let spec = SandboxSpec {
            name: "build".to_owned(),
            image: image.clone(),
            network,
            limits: self.limits,
            private_dirs: Vec::new(),
        };
        Ok(self.engine.create(spec).await?)
    }
}
