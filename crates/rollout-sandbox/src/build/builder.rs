//! Builds the stages of a Dockerfile: those that do not need each other at the same time, each layer once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::{BoxFuture, try_join_all};
use tokio::sync::{OnceCell, Semaphore};

use super::context::Context;
use super::execute::Execution;
use super::log::{Log, StageLog};
use super::mounted::{Mounted, Preparation};
use super::parse::{Dockerfile, Location};
use super::plan::{Action, Plan, Step, plan};
use super::stages::{Base, bases, needed_stages};
use super::{BaseImages, BuildRequest, Built, FreshLayers, ImageBuildError, io_error, key, layers, transfer};
use crate::blocking::blocking;
use crate::engine::SandboxEngine;
use crate::image::{Image, Layer, Lease};
use crate::limits::SandboxLimits;
use crate::sandbox::{KeepError, RunningSandbox};
use crate::spec::{Network, SandboxSpec};
use crate::store::{self, slot::Slot};
use crate::support::Mode;

/// A build, with the stages that are ready.
pub(super) struct Builder<'a, I> {
    engine: &'a SandboxEngine,
    images: &'a I,
    dockerfile: Dockerfile,
    /// The base of each stage.
    bases: Vec<Base>,
    /// The last stage and those that it needs.
    needed: Vec<usize>,
    context: Arc<Context>,
    no_cache: Option<&'a FreshLayers>,
    network: Network,
    limits: SandboxLimits,
    log: Log,
    stages: Vec<OnceCell<BuiltStage>>,
    /// Limits the layers that are built at the same time.
    processors: Semaphore,
}

/// A stage that is ready.
struct BuiltStage {
    image: Image,
    /// All its layers were in the cache.
    cached: bool,
    /// The arguments at its end.
    args: Vec<(String, String)>,
}

/// A layer in the store.
struct StoredLayer {
    path: PathBuf,
    /// The layer was in the cache.
    cached: bool,
}

/// The steps that one layer is built from.
struct LayerSteps<'a> {
    steps: &'a [Step],
    /// The number of the first step in its stage, and the number of steps of the stage.
    numbers: (usize, usize),
    /// The images whose files each step uses.
    others: Vec<Vec<Image>>,
}

impl LayerSteps<'_> {
    /// The line of the log for a step.
    fn line(&self, index: usize) -> String {
        let (first, all) = self.numbers;
        format!("Step {}/{all} : {}\n", first + index + 1, self.steps[index].at.text)
    }

    fn lines(&self) -> String {
        (0..self.steps.len()).map(|index| self.line(index)).collect()
    }
}

impl<'a, I: BaseImages> Builder<'a, I> {
    pub(super) fn new(
        engine: &'a SandboxEngine,
        images: &'a I,
        dockerfile: Dockerfile,
        context: Arc<Context>,
        request: BuildRequest<'a>,
    ) -> Result<Self, ImageBuildError> {
        let bases = bases(&dockerfile)?;
        Ok(Builder {
            engine,
            images,
            context,
            no_cache: request.no_cache,
            network: request.network,
            limits: request.limits,
            log: Log::new(request.log),
            stages: bases.iter().map(|_| OnceCell::new()).collect(),
            processors: Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)),
            needed: needed_stages(&dockerfile, &bases),
            dockerfile,
            bases,
        })
    }

    /// Builds the last stage and those that it needs. Each starts at once, and waits for the stages that it needs.
    pub(super) async fn build(self) -> Result<Built, ImageBuildError> {
        let built = try_join_all(self.needed.iter().map(|index| self.stage(*index))).await?;
        let cached = built.iter().all(|stage| stage.cached);
        let last = built.last().expect("a Dockerfile without a stage does not parse, and its last is needed");
        let (image, engine) = (last.image.clone(), self.engine.clone());
        blocking(move || engine.core.leases.touch_image(&image)).await;
        Ok(Built { image: last.image.clone(), cached })
    }

    fn stage(&self, index: usize) -> BoxFuture<'_, Result<&BuiltStage, ImageBuildError>> {
        let build = move || self.build_stage(index);
        Box::pin(self.stages[index].get_or_try_init(build))
    }

    async fn build_stage(&self, index: usize) -> Result<BuiltStage, ImageBuildError> {
        let stage = &self.dockerfile.stages[index];
        let inherited = match &self.bases[index] {
            Base::Stage(earlier) => self.stage(*earlier).await?.args.as_slice(),
            Base::Image(_) => &[],
        };
        let base = self.image(&stage.at, &self.bases[index]).await?;
        let plan = Arc::new(plan(&self.dockerfile, index, base.config(), inherited)?);
        // Lines of a single stage need no label.
        let name = || stage.name.clone().unwrap_or_else(|| format!("stage {index}"));
        let mut log = self.log.stage((self.needed.len() > 1).then(name));
        let state_dir = self.engine.state_dir();
        let release = rustix::system::uname();
        let room = layers::room(&base, state_dir, &release.release().to_string_lossy());
        let (mut image, mut cached, mut done) = (base.clone(), true, 0);
        for range in layers::divide(&plan.steps, room) {
            done = range.end;
            let steps = &plan.steps[range.clone()];
            let mut others = Vec::new();
            for step in steps {
                let mut images = Vec::new();
                for origin in step.action.origins() {
                    images.push(self.image(&step.at, origin).await?);
                }
                others.push(images);
            }
            let numbers = (range.start, plan.steps.len());
            let steps = LayerSteps { steps, numbers, others };
            let (key, lease) = self.key(&image, &plan, range.clone(), &steps.others).await?;
            let layer = self.layer(&key, &image, &steps, &mut log).await?;
            cached &= layer.cached;
            let layer = Layer::open(&layer.path).map_err(io_error("open", &layer.path))?;
            image = image.with_layer(&layer, key).using([lease]);
        }
        let rest =
            LayerSteps { steps: &plan.steps[done..], numbers: (done, plan.steps.len()), others: Vec::new() };
        log.write(rest.lines().as_bytes()).await.map_err(ImageBuildError::Log)?;
        let image = image.with_config(plan.config.clone());
        let unchanged = image.directories().eq(base.directories()) && image.config() == base.config();
        let identity =
            if unchanged { base.identity().to_owned() } else { key::image_identity(state_dir, &image) };
        Ok(BuiltStage { image: image.named(identity), cached, args: plan.args.clone() })
    }

    async fn image(&self, at: &Location, base: &Base) -> Result<Image, ImageBuildError> {
        match base {
            Base::Stage(index) => Ok(self.stage(*index).await?.image.clone()),
            Base::Image(reference) => self.images.resolve(reference).await.map_err(|source| {
                ImageBuildError::BaseImage { at: at.clone(), reference: reference.clone(), source }
            }),
        }
    }

    /// The key of a layer, and the use of it.
    async fn key(
        &self,
        base: &Image,
        plan: &Arc<Plan>,
        steps: std::ops::Range<usize>,
        others: &[Vec<Image>],
    ) -> Result<(String, Lease), ImageBuildError> {
        let (engine, context) = (self.engine.clone(), self.context.clone());
        let (base, plan, others) = (base.clone(), plan.clone(), others.to_vec());
        blocking(move || {
            let state_dir = engine.state_dir();
            let inputs = key::Inputs { state_dir, context: &context, base: &base, others: &others };
            let key = key::layer_key(&inputs, &plan.steps[steps])?;
            let taken = engine.core.leases.take(store::LAYERS, &key);
            let lease = taken.map_err(io_error("use", &state_dir.join(store::LAYERS)))?;
            Ok((key, lease))
        })
        .await
    }

    /// Finds the layer of a key, or builds it.
    async fn layer(
        &self,
        key: &str,
        base: &Image,
        steps: &LayerSteps<'_>,
        log: &mut StageLog<'_>,
    ) -> Result<StoredLayer, ImageBuildError> {
        let layers = self.engine.state_dir().join(store::LAYERS);
        let slot = Slot::open(&layers, key).map_err(io_error("use", &layers))?;
        if let Some(found) = self.find(&slot, steps, log).await? {
            return Ok(found);
        }
        if !self.engine.support().changes_on_disk {
            let state_dir = self.engine.state_dir().to_owned();
            return Err(KeepError::InMemory { state_dir }.into());
        }
        let lock = slot.lock().await.map_err(io_error("lock", slot.dir()))?;
        // The previous holder of the lock may have built it.
        if let Some(found) = self.find(&slot, steps, log).await? {
            return Ok(found);
        }
        let _processor = self.processors.acquire().await;
        let unfinished = blocking(move || lock.begin()).await.map_err(io_error("prepare", slot.dir()))?;
        let runs = steps.steps.iter().any(|step| matches!(step.action, Action::Run(_)));
        let sandbox = self.sandbox(base, runs).await?;
        let sandbox = self.execute(sandbox, &unfinished.scratch(), steps, log).await?;
        sandbox.commit(&unfinished.layer()).await?;
        let path = blocking(move || unfinished.finish()).await.map_err(io_error("finish", slot.dir()))?;
        if let Some(fresh) = self.no_cache {
            fresh.add(&path);
        }
        Ok(StoredLayer { path, cached: false })
    }

    /// Finds the layer of a slot, if it may be used.
    async fn find(
        &self,
        slot: &Slot,
        steps: &LayerSteps<'_>,
        log: &mut StageLog<'_>,
    ) -> Result<Option<StoredLayer>, ImageBuildError> {
        let is_usable = |layer: &PathBuf| self.no_cache.is_none_or(|fresh| fresh.contains(layer));
        let Some(path) = slot.finished().filter(is_usable) else { return Ok(None) };
        let lines = steps.lines() + "Using the layer that was built before\n";
        log.write(lines.as_bytes()).await.map_err(ImageBuildError::Log)?;
        Ok(Some(StoredLayer { path, cached: true }))
    }

    /// Runs the steps of a layer. Returns the sandbox, which is another one after a command with mounts.
    async fn execute(
        &self,
        mut sandbox: RunningSandbox,
        scratch: &Path,
        steps: &LayerSteps<'_>,
        log: &mut StageLog<'_>,
    ) -> Result<RunningSandbox, ImageBuildError> {
        let keep_owners = self.engine.support().mode == Mode::Root;
        for (number, (step, images)) in steps.steps.iter().zip(&steps.others).enumerate() {
            log.write(steps.line(number).as_bytes()).await.map_err(ImageBuildError::Log)?;
            let mut others = Vec::new();
            for image in images {
                others.push(self.sandbox(image, false).await?);
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
                log,
                keep_owners,
            };
            execution.step(step, others.first()).await?;
            log.end_line().await.map_err(ImageBuildError::Log)?;
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

    /// Creates a sandbox; `runs` is whether commands run in it.
    async fn sandbox(&self, image: &Image, runs: bool) -> Result<RunningSandbox, ImageBuildError> {
        let spec = SandboxSpec {
            name: "build".to_owned(),
            image: image.clone(),
            // Also if nothing runs in it: a network of its own takes time, and rights that a container may lack.
            network: self.network,
            limits: self.limits,
            private_dirs: Vec::new(),
            hosts: Vec::new(),
        };
        Ok(match runs {
            true => self.engine.create(spec).await?,
            false => self.engine.create_for_files(spec).await?,
        })
    }
}
