//! The docker provider: containers of a Docker engine, or of Podman with the same API.
//!
//! The engine builds or pulls an image, the [guest](super::guest) is added to it once, and every trial's
//! container starts from the result. Everything that happens in a container goes through the guest's single
//! stream; the engine only creates, starts and removes containers.

mod apply;
mod build;
mod commit;
mod container;
mod context;
pub(crate) mod credentials;
mod ending;
mod endpoint;
mod engine;
mod failure;
mod group;
mod images;
mod kept;
mod names;
mod network;
mod owner;
#[cfg(any(feature = "fly", feature = "kubernetes"))]
mod push;
mod raw;
mod reaper;
mod room;
mod settings;
mod startup;
mod sweep;
mod sweep_shared;
mod terminal;
mod trace;

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

#[cfg(feature = "remote")]
pub(crate) use context::BuildContext;
#[cfg(feature = "kubernetes")]
pub(crate) use credentials::Credentials;
pub use engine::{Disk, Engine, EngineError, EngineFacts};
#[cfg(any(feature = "kubernetes", feature = "remote"))]
pub(crate) use owner::{Maker, Owner};
#[cfg(feature = "kubernetes")]
pub(crate) use push::TaskContext;
#[cfg(any(feature = "fly", feature = "kubernetes"))]
pub(crate) use push::TaskImageBuilder;
pub(super) use settings::Settings;
pub use sweep::{EngineImage, ImageKind, Leftover};
#[cfg(feature = "fly")]
pub(crate) use {
    context::archive_of,
    images::{ArchiveBuild, BuiltConfig},
};

use self::{
    container::{ContainerBase, DockerEnvironment, NotMade, Plan, snapshot_reference},
    images::Images,
    room::ImageTimes,
    settings::Builder,
};
use crate::{
    compose::ContainerSettings,
    dockerfile::check_dockerfile,
    environment::{
        Demand, Environment, EnvironmentError, EnvironmentOffer, EnvironmentSpec, GroupRequest, ImageProblem,
        ImageRequest, ImageStartup, PreparedImage, Provider, ResourceLimits, ServiceGroup,
    },
    host::HostPaths,
    preparations::Preparations,
};
use rollout_core::{
    quantity::{Bytes, Cpus},
    text::listed,
};

/// Creates containers on an engine.
pub(super) struct Docker {
    engine: Engine,
    settings: Settings,
    images: Images,
    notes: Vec<String>,
    /// Whether containers get a storage limit. Turned off when the engine rejects it for the first time.
    limits_storage: AtomicBool,
    prepared: Preparations,
    /// When images were last used.
    times: ImageTimes,
    /// Whether the warning about the build cache was shown. Locked while a trial makes room.
    room: tokio::sync::Mutex<bool>,
    /// The relevant parts of image configurations, by reference.
    configs: Mutex<HashMap<String, ImageConfig>>,
}

/// The relevant parts of an image's configuration.
#[derive(Debug, Clone)]
struct ImageConfig {
    user: Option<String>,
    workdir: String,
    startup: ImageStartup,
}

/// Why the provider does not start.
pub(crate) enum NotStarted {
    /// A setting is not valid for the engine.
    Settings(String),
    /// No engine can be used.
    Engine(EngineError),
}

impl From<EngineError> for NotStarted {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl Docker {
    /// Finds the engine, checks the settings against it, and removes leftovers of dead runs.
    pub(crate) async fn start(settings: Settings, place: &HostPaths) -> Result<Self, NotStarted> {
        let engine = Engine::connect(&place.docker).await?;
        check_network(&engine, &settings).await?;
        check_runtime(&engine, &settings)?;
        match engine.sweep(false).await {
            Ok(swept) if !swept.is_empty() => {
                tracing::info!(containers = swept.len(), "removed leftovers of dead runs");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot remove leftovers of dead runs"),
        }
        if let Err(error) = engine.sweep_shared(false).await {
            tracing::warn!(%error, "cannot remove networks and volumes of dead runs");
        }
        let limits_storage = can_limit_storage(engine.facts());
        let notes = notes(&engine, &settings, limits_storage);
        Ok(Self {
            images: Images::new(engine.clone(), &place.state_dir),
            engine,
            settings,
            notes,
            limits_storage: AtomicBool::new(limits_storage),
            prepared: Preparations::default(),
            times: ImageTimes::new(&place.state_dir),
            room: tokio::sync::Mutex::default(),
            configs: Mutex::default(),
        })
    }

    async fn image_config(&self, reference: &str) -> Result<ImageConfig, EnvironmentError> {
        let known = self.configs.lock().unwrap_or_else(PoisonError::into_inner).get(reference).cloned();
        if let Some(config) = known {
            return Ok(config);
        }
        let found = self.images.inspect(reference).await.map_err(|error| failure::start(&error))?;
        let Some(found) = found else { return Err(self.image_is_gone(reference)) };
        let found = found.config.unwrap_or_default();
        let config = ImageConfig {
            user: found.user.filter(|user| !user.is_empty()),
            workdir: found.working_dir.filter(|dir| !dir.is_empty()).unwrap_or_else(|| "/".to_owned()),
            startup: startup::of_image(found.healthcheck, found.labels.as_ref()),
        };
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        configs.insert(reference.to_owned(), config.clone());
        Ok(config)
    }

    /// Forgets an image that was removed from the engine, so that the next attempt creates it again.
    fn image_is_gone(&self, reference: &str) -> EnvironmentError {
        self.prepared.forget(reference);
        EnvironmentError::Start(format!("the image {reference} was removed from the engine during the job"))
    }

    /// What of these limits is more than the engine has.
    fn check_resources(&self, cpus: Option<Cpus>, memory: Option<Bytes>) -> Result<(), String> {
        let facts = self.engine.facts();
        let refuse = |asked: String, what: &str, available: String| {
            format!(
                "the environment needs {asked} {what}, but the engine has {available}; lower the limit in \
                 task.toml, or override it in the job"
            )
        };
        let processors = Cpus { millis: facts.cpus.saturating_mul(1000) };
        if let Some(cpus) = cpus.filter(|cpus| facts.cpus > 0 && cpus.millis > processors.millis) {
            return Err(refuse(cpus.to_string(), "CPUs", processors.to_string()));
        }
        if let Some(memory) = memory.filter(|memory| facts.memory > 0 && memory.0 > facts.memory) {
            let mebibytes = |bytes: u64| Bytes(bytes >> 20 << 20).to_string();
            return Err(refuse(mebibytes(memory.0), "of memory", mebibytes(facts.memory)));
        }
        Ok(())
    }
}

#[async_trait]
impl Provider for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn description(&self) -> String {
        let facts = self.engine.facts();
        format!("{} {}, network {}", facts.name, facts.version, self.settings.network_name())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn offer(&self, ResourceLimits { cpus, memory, .. }: ResourceLimits) -> Result<EnvironmentOffer, String> {
        self.check_resources(cpus, memory)?;
        Ok(EnvironmentOffer::default())
    }

    fn check_image(&self, context: &Path, docker_image: Option<&str>) -> Result<(), ImageProblem> {
        if docker_image.is_some() { Ok(()) } else { check_dockerfile(context) }
    }

    fn refusal(&self, demand: Demand) -> Option<String> {
        match demand {
            Demand::Gpus | Demand::NoNetwork | Demand::Allowlist | Demand::ImageStartup => None,
            Demand::NetworkChanges => match self.settings.network.as_deref() {
                Some(network) if network == "host" || network.starts_with("container:") => Some(format!(
                    "the network of a running container cannot be changed with `network: {network}`"
                )),
                _ => None,
            },
            Demand::Compose => match self.settings.network.as_deref() {
                Some(network) if network == "host" || network.starts_with("container:") => {
                    Some(format!("its services need networks of their own, which `network: {network}` excludes"))
                }
                _ => None,
            },
            Demand::Privileged if self.settings.allow_privileged => None,
            Demand::Privileged => {
                Some("a privileged container controls the engine's machine; `provider_config.allow_privileged: true` allows it".to_owned())
            }
        }
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let work = async {
            if let Some(wanted) = self.settings.free_disk {
                let mut warned = self.room.lock().await;
                let prune_after = self.settings.prune_build_cache_after_sec.map(Duration::from_secs);
                self.engine.make_room(wanted, prune_after, &self.times, &mut warned).await;
            }
            let reference = self.images.prepare(request, &self.settings).await?;
            Ok(PreparedImage { reference })
        };
        let image = self.prepared.once(request, work).await?;
        if self.settings.free_disk.is_some() {
            for reference in self.images.chain(&image.reference) {
                self.times.touch(&reference).await;
            }
        }
        Ok(image)
    }

    async fn discard_images(&self, task_dir: &Path) {
        for reference in self.prepared.take_below(task_dir) {
            self.configs.lock().unwrap_or_else(PoisonError::into_inner).remove(&reference);
            let removed = async {
                let snapshots = self.engine.snapshots_of(&reference).await?;
                self.engine.remove_images(snapshots).await?;
                // An image with dependent images cannot be removed, so the environment is first.
                self.engine.remove_images(self.images.chain(&reference)).await
            };
            if let Err(error) = removed.await {
                tracing::warn!(image = reference, %error, "cannot remove the images of a task");
            }
            self.images.forget(&reference);
        }
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        let config = self.image_config(&spec.image.reference).await?;
        self.start_from(spec, config, ContainerBase::Image).await
    }

    async fn create_group(
        &self,
        request: GroupRequest<'_>,
    ) -> Result<Box<dyn ServiceGroup>, EnvironmentError> {
        // With a network of the job, containers are connected to that one as well.
        let internal = request.internal || self.settings.network.is_some();
        Ok(Box::new(group::DockerGroup::create(&self.engine, request, internal).await?))
    }

    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        let reference = snapshot_reference(key);
        let found = self.images.inspect(&reference).await.map_err(|error| failure::start(&error))?;
        Ok(found.map(|_| PreparedImage { reference }))
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        Ok(Box::new(DockerEnvironment::reopen(&self.engine, place).await?))
    }

    async fn create_from(
        &self,
        place: &str,
        spec: EnvironmentSpec<'_>,
    ) -> Result<Box<dyn Environment>, EnvironmentError> {
        let image = PreparedImage { reference: kept::commit(&self.engine, place, spec.origin).await? };
        let started = async {
            // A container does not have the health check of its image.
            let config = match self.image_config(&spec.image.reference).await {
                Ok(config) => config,
                Err(_) => self.image_config(&image.reference).await?,
            };
            self.start_from(EnvironmentSpec { image: &image, ..spec }, config, ContainerBase::Preserved).await
        };
        let started = started.await;
        if started.is_err() {
            kept::remove(&self.engine, &image.reference).await;
        }
        started
    }
}

impl Docker {
    async fn start_from(
        &self,
        spec: EnvironmentSpec<'_>,
        config: ImageConfig,
        base: ContainerBase,
    ) -> Result<Box<dyn Environment>, EnvironmentError> {
        self.check_resources(spec.cpus, spec.memory).map_err(EnvironmentError::Resources)?;
        if spec.container.is_some_and(ContainerSettings::is_powerful) && !self.settings.allow_privileged {
            let reason =
                "privileged containers are not allowed; `provider_config.allow_privileged: true` allows them";
            return Err(EnvironmentError::Refused(reason.to_owned()));
        }
        let own_user = spec.container.and_then(|container| container.user.clone());
        let user = self.settings.user.clone().or(own_user).or(config.user);
        loop {
            let storage = spec.storage.is_some() && self.limits_storage.load(Ordering::Relaxed);
            let plan = Plan {
                settings: &self.settings,
                spec,
                user: user.clone(),
                workdir: spec.workdir.unwrap_or(&config.workdir),
                startup: config.startup.clone(),
                storage,
                base,
            };
            match DockerEnvironment::create(&self.engine, plan).await {
                Ok(environment) => return Ok(Box::new(environment)),
                Err(NotMade::Storage) => {
                    tracing::warn!("the engine does not support storage limits; containers share its disk");
                    self.limits_storage.store(false, Ordering::Relaxed);
                }
                Err(NotMade::NoImage) => return Err(self.image_is_gone(&spec.image.reference)),
                Err(NotMade::Failed(error)) => return Err(error),
            }
        }
    }
}

/// Checks the network, because a missing one would fail every trial.
async fn check_network(engine: &Engine, settings: &Settings) -> Result<(), NotStarted> {
    let Some(network) = &settings.network else { return Ok(()) };
    if ["host", "none", "bridge", "default"].contains(&network.as_str()) {
        return Ok(());
    }
    if let Some(container) = network.strip_prefix("container:") {
        return match engine.api().inspect_container(container, None).await {
            Ok(_) => Ok(()),
            Err(error) if failure::is_missing(&error) => Err(NotStarted::Settings(format!(
                "network is {network:?}, but the engine has no such container"
            ))),
            Err(error) => Err(EngineError::call("look for a container")(error).into()),
        };
    }
    match engine.api().inspect_network(network, None).await {
        Ok(_) => Ok(()),
        Err(error) if failure::is_missing(&error) => {
            let networks = engine.api().list_networks(None).await.unwrap_or_default();
            let mut names: Vec<String> = networks.into_iter().filter_map(|network| network.name).collect();
            names.sort();
            Err(NotStarted::Settings(format!(
                "network is {network:?}, which the engine does not have; it has {}. Create it with \
                 `docker network create`, or change provider_config.network",
                listed(names)
            )))
        }
        Err(error) => Err(EngineError::call("look for a network")(error).into()),
    }
}

/// Checks the runtime, because an unknown one would fail every trial. Runtimes with a dot are programs that the
/// engine looks up when they are needed.
fn check_runtime(engine: &Engine, settings: &Settings) -> Result<(), NotStarted> {
    let known = &engine.inner.runtimes;
    match &settings.runtime {
        Some(runtime)
            if !engine.is_podman()
                && !known.is_empty()
                && !runtime.contains(['.', '/'])
                && !known.contains(runtime) =>
        {
            let mut known: Vec<&str> = known.iter().map(String::as_str).collect();
            known.sort_unstable();
            Err(NotStarted::Settings(format!(
                "runtime is {runtime:?}, which the engine does not have; it has {}",
                listed(known)
            )))
        }
        _ => Ok(()),
    }
}

/// Whether a storage driver may support limits. Overlay drivers support them on XFS, depending on its mount
/// options.
fn can_limit_storage(facts: &EngineFacts) -> bool {
    match facts.storage_driver.as_str() {
        "btrfs" | "zfs" => facts.name == "docker",
        "overlay2" => facts.backing_filesystem.as_deref() == Some("xfs"),
        _ => false,
    }
}

fn notes(engine: &Engine, settings: &Settings, limits_storage: bool) -> Vec<String> {
    let facts = engine.facts();
    let limits = engine.inner.limits;
    let mut notes = Vec::new();
    let missing: Vec<&str> = [("cpus", limits.cpus), ("memory", limits.memory), ("pids", limits.pids)]
        .into_iter()
        .filter_map(|(name, enforced)| (!enforced).then_some(name))
        .collect();
    if !missing.is_empty() {
        notes.push(format!("the engine does not enforce limits on {}", listed(missing)));
    }
    if settings.wants_storage && !limits_storage {
        let file_system = facts.backing_filesystem.as_deref();
        let below = file_system.map(|name| format!(" on {name}")).unwrap_or_default();
        notes.push(format!(
            "override_storage is not enforced: the engine's storage driver {}{below} does not support limits",
            facts.storage_driver
        ));
    } else if settings.wants_storage && facts.backing_filesystem.as_deref() == Some("xfs") {
        // The first container shows whether the limit works.
        notes.push(
            "override_storage is enforced only if the engine's XFS was mounted with pquota; \
             see environment.enforced in each result"
                .to_owned(),
        );
    }
    if let Some(disk) = facts.disk.filter(|disk| disk.is_low()) {
        notes.push(format!(
            "the engine's disk at {} has {} MiB left; `rollout clean --images` removes the images made by Rollout",
            facts.root_dir.display(),
            disk.free >> 20
        ));
    }
    if engine.is_podman() && settings.builder == Some(Builder::BuildKit) {
        notes.push("provider_config.builder is ignored: Podman has only one builder".to_owned());
    }
    notes
}
