//! The native provider: the embedded container engine.

mod environment;
mod images;
mod mapping;
mod mirrors;
mod output;
mod tunnel;

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use rollout_sandbox::{
    CreateError, EngineOptions, Image, Network, PreservedLock, SandboxEngine, SandboxEngineError,
    SandboxLimits, SandboxSpec, StoreLimit, StoreLimiter,
    build::{BuildRequest, FreshLayers, ImageBuildError, LogSink, build, inspect},
    check_resources,
    oci::RegistryOptions,
};

use self::{
    environment::NativeEnvironment, images::NativeImages, mapping::ImageMapping, mirrors::RegistryMirrors,
};
use crate::{
    blocking::blocking,
    config::EnvironmentConfig,
    environment::{
        Demand, Environment, EnvironmentError, EnvironmentOffer, EnvironmentSpec, ImageProblem, ImageRequest,
        PreparedImage, Provider, ResourceLimits,
    },
    host::HostPaths,
    preparations::Preparations,
    trouble::is_network_trouble,
};
use rollout_core::{
    quantity::{Bytes, Cpus},
    text::chain,
};
use rollout_settings::{
    forms::{texts, whole, word},
    read_json,
};

rollout_settings::settings! {
    /// The native part of `provider_config`.
    pub(super) struct NativeKeys {
        /// The network of environments, and of builds.
        ///
        /// `host`: this machine's network. `none`: loopback only.
        network: Network = word(&NETWORKS).default(Network::Host),
        /// What is used instead of pulling an image. `*` in a name matches any text.
        ///
        /// `host`: this machine's own system. `docker:NAME`: an image of the local Docker engine. `docker-archive:FILE`:
        /// an archive of `docker save`. `oci:DIRECTORY`: an OCI layout, with `:NAME` if it has several images.
        /// `rootfs:FILE`: a tar archive of a system. Files are absolute paths.
        images: ImageMapping = ImageMapping::form(),
        /// Registries, as `host:port`, that images are pulled from by plain HTTP.
        insecure_registries: Vec<String> = texts().or_empty(),
        /// Mirrors of registries, as `host[:port][/path]`.
        ///
        /// They are tried first, in this order. If no mirror has an image, it is pulled from the registry itself.
        mirrors: RegistryMirrors = RegistryMirrors::form(),
        /// The maximum number of processes and threads in one environment.
        ///
        /// Far more than tasks need, but few enough to stop a fork bomb.
        pids: u64 = whole(1..=u64::MAX).default(4096),
    }
}

const NETWORKS: [(&str, Network); 2] = [("host", Network::Host), ("none", Network::None)];

/// The settings of the native environments of a job.
pub(super) struct Settings {
    keys: NativeKeys,
    /// Whether the job itself sets a storage limit, so that a note reports whether it is enforced.
    wants_storage: bool,
    store_limit: StoreLimit,
}

impl Settings {
    /// Reads the settings; an error lists all invalid ones.
    pub(super) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        let keys = read_json::<NativeKeys>("provider_config", &config.provider_config)?;
        let size = config.store_size.map(|bytes| bytes.0);
        let store_limit = StoreLimit { size, free: config.free_bytes() };
        Ok(Self { keys, wants_storage: config.override_storage.is_some(), store_limit })
    }
}

/// Creates native environments.
pub(super) struct Native {
    engine: SandboxEngine,
    bases: NativeImages,
    network: Network,
    pids: u64,
    notes: Vec<String>,
    prepared: Preparations,
    /// What was built without the cache for this job.
    forced: FreshLayers,
    images: Mutex<HashMap<String, Image>>,
    limiter: Arc<Mutex<StoreLimiter>>,
}

impl Native {
    pub(crate) async fn start(
        settings: Settings,
        place: &HostPaths,
        note: Option<String>,
    ) -> Result<Self, SandboxEngineError> {
        let options = EngineOptions { helper: place.helper.clone(), state_dir: place.state_dir.clone() };
        let engine = SandboxEngine::start(options).await?;
        let NativeKeys { network, images, insecure_registries, mirrors, pids } = settings.keys;
        let registries = RegistryOptions {
            insecure: insecure_registries,
            mirrors: mirrors.0,
            ..RegistryOptions::default()
        };
        let bases = NativeImages::new(&engine, images, registries, place.docker.clone());
        let mut notes: Vec<String> = note.into_iter().chain(engine.support().notes.clone()).collect();
        if settings.wants_storage {
            notes.push("override_storage is not enforced: the native environment shares the disk".to_owned());
        }
        let limiter = StoreLimiter::new(engine.state_dir(), settings.store_limit);
        Ok(Self {
            engine,
            bases,
            network,
            pids,
            notes,
            prepared: Preparations::default(),
            images: Mutex::default(),
            forced: FreshLayers::default(),
            limiter: Arc::new(Mutex::new(limiter)),
        })
    }

    /// Removes what nothing uses from the store, if it is larger than it may be.
    async fn limit_store(&self) {
        match self.engine.limit_store(&self.limiter).await {
            Ok(removed) => {
                for entry in removed {
                    tracing::info!(path = %entry.path.display(), "removed a layer that was not used for long");
                }
            }
            Err(error) => tracing::warn!(%error, "cannot make room in the image store"),
        }
    }

    async fn image_of(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        match &request.docker_image {
            Some(name) if !request.force_build => {
                let image = self.bases.image(name, request.log).await;
                Ok(self.remember(image.map_err(|error| images::failure(name, &error))?))
            }
            _ => self.build(request).await,
        }
    }

    async fn build(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let context = request.context;
        let dockerfile = context.join("Dockerfile");
        if !dockerfile.exists() {
            return Err(request.no_dockerfile(&dockerfile));
        }
        let log_error = |error: io::Error| {
            EnvironmentError::Start(format!("cannot write the build log {}: {error}", request.log.display()))
        };
        let log = request.log.to_owned();
        let sink = blocking(move || {
            fs::create_dir_all(log.parent().unwrap_or(&log))?;
            LogSink::append(&log)
        });
        let wanted = BuildRequest {
            context,
            dockerfile: &dockerfile,
            no_cache: request.force_build.then_some(&self.forced),
            network: self.network,
            limits: SandboxLimits { pids: Some(self.pids), ..SandboxLimits::default() },
            log: sink.await.map_err(log_error)?,
        };
        let images = self.bases.for_build(request.log.to_owned());
        let built = build(&self.engine, wanted, &images).await.map_err(build_error)?;
        if built.cached {
            let log = request.log.to_owned();
            let _ = blocking(move || remove_empty(&log)).await;
        }
        Ok(self.remember(built.image))
    }

    /// Starts an environment from an image. `lock` is kept as long as it runs.
    async fn start_from(
        &self,
        image: Image,
        spec: EnvironmentSpec<'_>,
        lock: Option<PreservedLock>,
    ) -> Result<Box<dyn Environment>, EnvironmentError> {
        let limits = SandboxLimits { pids: Some(self.pids), ..limits(spec.cpus, spec.memory) };
        let sandbox = SandboxSpec {
            name: spec.name.to_owned(),
            image,
            network: if spec.no_network { Network::None } else { self.network },
            limits,
            private_dirs: spec.private_dirs.iter().map(|dir| (*dir).to_owned()).collect(),
            hosts: spec.hosts.to_vec(),
        };
        let sandbox = self.engine.create(sandbox).await.map_err(|error| match error {
            CreateError::Resources { .. } => EnvironmentError::Resources(too_large(&error)),
            error => EnvironmentError::Start(chain(&error)),
        })?;
        let environment = NativeEnvironment::new(sandbox, spec.workdir, lock);
        if let Some(workdir) = spec.workdir {
            environment.make_workdir(workdir).await?;
        }
        Ok(Box::new(environment))
    }

    fn remember(&self, image: Image) -> PreparedImage {
        let reference = image.identity().to_owned();
        self.images.lock().unwrap_or_else(PoisonError::into_inner).insert(reference.clone(), image);
        PreparedImage { reference }
    }
}

#[async_trait]
impl Provider for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn description(&self) -> String {
        format!("native, network {}", network_name(self.network))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn offer(&self, ResourceLimits { cpus, memory, .. }: ResourceLimits) -> Result<EnvironmentOffer, String> {
        check_resources(limits(cpus, memory)).map_err(|error| too_large(&error))?;
        Ok(EnvironmentOffer::default())
    }

    fn check_image(&self, context: &Path, docker_image: Option<&str>) -> Result<(), ImageProblem> {
        let known = |reference: &str| self.bases.check(reference).map_err(ImageProblem::Unknown);
        let dockerfile = context.join("Dockerfile");
        match docker_image {
            Some(reference) => known(reference),
            // A task without a Dockerfile fails later, with an error that says what is missing.
            None if !dockerfile.exists() => Ok(()),
            None => {
                let images = inspect(context, &dockerfile);
                let images = images.map_err(|error| ImageProblem::Dockerfile(chain(&error)))?;
                images.iter().try_for_each(|image| known(&image.reference))
            }
        }
    }

    fn refusal(&self, demand: Demand) -> Option<String> {
        let reason = match demand {
            Demand::NoNetwork | Demand::Allowlist | Demand::ImageStartup => return None,
            Demand::Gpus => "the native environment has no GPUs; use `environment.type: docker`",
            Demand::NetworkChanges => {
                "the network of a native environment cannot be changed while it runs; use `environment.type: docker`"
            }
            Demand::Compose => "several containers, or their settings, need `environment.type: docker`",
            Demand::Privileged => "privileged containers need `environment.type: docker`",
        };
        Some(reason.to_owned())
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let work = async {
            self.limit_store().await;
            self.image_of(request).await
        };
        self.prepared.once(request, work).await
    }

    async fn discard_images(&self, task_dir: &Path) {
        {
            let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            for reference in self.prepared.take_below(task_dir) {
                if let Some(image) = images.remove(&reference) {
                    images.retain(|_, other| !other.is_snapshot_of(&image));
                }
            }
        }
        self.limit_store().await;
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        let image = {
            let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            images.get(&spec.image.reference).cloned()
        }
        .ok_or_else(|| {
            EnvironmentError::Start(format!("the image {} was not prepared", spec.image.reference))
        })?;
        self.start_from(image, spec, None).await
    }

    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        let found =
            self.engine.snapshot(key).await.map_err(|error| EnvironmentError::Start(chain(&error)))?;
        Ok(found.map(|image| self.remember(image)))
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        let sandbox = self
            .engine
            .reopen(Path::new(place))
            .await
            .map_err(|error| EnvironmentError::Start(chain(&error)))?;
        Ok(Box::new(NativeEnvironment::new(sandbox, None, None)))
    }

    async fn create_from(
        &self,
        place: &str,
        spec: EnvironmentSpec<'_>,
    ) -> Result<Box<dyn Environment>, EnvironmentError> {
        let opened = self.engine.preserved_image(Path::new(place)).await;
        let (image, lock) = opened.map_err(|error| EnvironmentError::Refused(chain(&error)))?;
        self.start_from(image, spec, Some(lock)).await
    }

    async fn settle(&self) -> Vec<String> {
        let left = self.engine.settle().await.into_iter();
        left.map(|left| format!("cannot remove {left}; `rollout clean` tries again")).collect()
    }
}

/// Distinguishes a `RUN` that failed because of the network from one that always fails, by the end of its
/// output.
fn build_error(error: ImageBuildError) -> EnvironmentError {
    let text = chain(&error);
    match error {
        ImageBuildError::BaseImage { reference, source, .. } => {
            let text = format!("{text}; {}", images::hint(&reference));
            match images::is_temporary(&source) {
                true => EnvironmentError::BuildNetwork(text),
                false => EnvironmentError::Build(text),
            }
        }
        ImageBuildError::RunFailed { output, .. } if is_network_trouble(&output) => {
            EnvironmentError::BuildNetwork(text)
        }
        ImageBuildError::Create(_)
        | ImageBuildError::Keep(_)
        | ImageBuildError::Io { .. }
        | ImageBuildError::Log(_) => EnvironmentError::Start(text),
        _ => EnvironmentError::Build(text),
    }
}

/// Removes the log of a build that wrote nothing, and its directory unless something else is there.
fn remove_empty(log: &Path) -> io::Result<()> {
    if fs::metadata(log)?.len() == 0 {
        fs::remove_file(log)?;
        fs::remove_dir(log.parent().unwrap_or(log))?;
    }
    Ok(())
}

fn limits(cpus: Option<Cpus>, memory: Option<Bytes>) -> SandboxLimits {
    SandboxLimits {
        cpus_millis: cpus.map(|cpus| cpus.millis),
        memory_bytes: memory.map(|memory| memory.0),
        pids: None,
    }
}

fn too_large(error: &CreateError) -> String {
    format!("{}; lower the limit in task.toml, or override it in the job", chain(error))
}

fn network_name(network: Network) -> &'static str {
    NETWORKS.iter().find(|(_, known)| *known == network).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_settings::{Settings as _, docs::check_page};
    use serde_json::json;

    #[test]
    fn the_table_in_docs_matches_the_schema() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/native.md");
        check_page(&page, &[("native", NativeKeys::keys())]).unwrap();
    }

    #[test]
    fn invalid_settings_are_reported() {
        let read = |value: serde_json::Value| {
            let config = EnvironmentConfig {
                provider_config: value.as_object().unwrap().clone(),
                ..EnvironmentConfig::default()
            };
            Settings::read(&config).err().unwrap()
        };
        let errors = [
            read(json!({"netwrok": "none"})),
            read(json!({"network": "bridge", "pids": 0})),
            read(json!({"images": {"a": "host", "b": "guest"}})),
            read(json!({"mirrors": {"docker.io": ["mirror.local/hub", "https://mirror.local"], "b": []}})),
            read(json!({"mirrors": {"b": ["mirror.local:port"], "https://docker.io": ["mirror.local"]}})),
        ];
        insta::assert_snapshot!(errors.join("\n"), @"
        unknown key `netwrok` in `provider_config`; did you mean `network`? known keys in `provider_config`: `network`, `images`, `insecure_registries`, `mirrors`, `pids`
        2 settings are invalid
          `provider_config.network` cannot be `bridge`; it can be one of `host`, `none`
          `provider_config.pids` must be at least 1, not 0
        `provider_config.images.b` cannot be `guest`; it can be `host`, `docker:NAME`, `docker-archive:FILE`, `oci:DIRECTORY[:NAME]` or `rootfs:FILE`
        `provider_config.mirrors.docker.io` cannot have `https://mirror.local`; write `host`, `host:port` or `host/path`
        2 settings are invalid
          `provider_config.mirrors.b` cannot have `mirror.local:port`; write `host`, `host:port` or `host/path`
          `provider_config.mirrors` cannot have the registry `https://docker.io`; write `docker.io`, `host` or `host:port`
        ");
    }

    #[test]
    fn mirrors_of_docker_hub_may_have_any_of_its_names() {
        for name in ["docker.io", "index.docker.io", "registry-1.docker.io"] {
            let config = EnvironmentConfig {
                provider_config: json!({"mirrors": {name: ["mirror.local"]}}).as_object().unwrap().clone(),
                ..EnvironmentConfig::default()
            };
            let mirrors = Settings::read(&config).unwrap().keys.mirrors.0;
            assert_eq!(mirrors, [("docker.io".to_owned(), vec!["mirror.local".to_owned()])]);
        }
    }
}
