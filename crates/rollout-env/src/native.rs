//! The native provider: the embedded container engine, with the host as its image.

mod environment;
mod output;
mod tunnel;

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use rollout_sandbox::{
    CreateError, EngineOptions, Image, Network, SandboxEngine, SandboxEngineError, SandboxLimits,
    SandboxSpec,
    build::{
        BaseImageError, BaseImages as _, BuildRequest, HostImages, ImageBuildError, LogSink, build, inspect,
    },
};
use serde_json::json;

use self::environment::NativeEnvironment;
use crate::{
    blocking::blocking,
    config::EnvironmentConfig,
    environment::{
        Demand, Environment, EnvironmentError, EnvironmentSpec, ImageProblem, ImageRequest, PreparedImage,
        Provider, no_dockerfile,
    },
    host::HostPaths,
    preparations::Preparations,
    trouble::is_network_trouble,
};
use rollout_core::text::chain;
use rollout_settings::{
    Form,
    forms::{whole, word},
    read_json,
};

rollout_settings::settings! {
    /// The native part of `provider_config`.
    pub(super) struct NativeKeys {
        /// The network of environments, and of builds.
        ///
        /// `host`: this machine's network. `none`: loopback only.
        network: Network = word(&NETWORKS).default(Network::Host),
        /// The images for which this machine's own system is used. `*` in a name matches any text.
        images: Vec<String> = host_images(),
        /// The maximum number of processes and threads in one environment.
        ///
        /// Far more than tasks need, but few enough to stop a fork bomb.
        pids: u64 = whole(1..=u64::MAX).default(4096),
    }
}

const NETWORKS: [(&str, Network); 2] = [("host", Network::Host), ("none", Network::None)];

fn host_images() -> Form<Vec<String>> {
    let schema = || json!({ "type": "object", "additionalProperties": { "enum": ["host"] } });
    Form::written("mapping of name to `host`", schema, |section, key| {
        let images = section.mapping(key)?;
        let host = [("host", ())];
        Some(
            images
                .entries
                .iter()
                .filter_map(|entry| images.word(&entry.key, &host).map(|()| entry.key.clone()))
                .collect(),
        )
    })
    .or_empty()
}

/// The settings of the native environments of a job.
pub(super) struct Settings {
    keys: NativeKeys,
    /// Whether the job itself sets a storage limit, so that a note reports whether it is enforced.
    wants_storage: bool,
}

impl Settings {
    /// Reads the settings; an error lists all invalid ones.
    pub(super) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        let keys = read_json::<NativeKeys>("provider_config", &config.provider_config)?;
        Ok(Self { keys, wants_storage: config.override_storage.is_some() })
    }
}

/// Creates native environments.
pub(super) struct Native {
    engine: SandboxEngine,
    bases: HostImages,
    network: Network,
    pids: u64,
    notes: Vec<String>,
    prepared: Preparations,
    images: Mutex<HashMap<String, Image>>,
}

impl Native {
    pub(crate) async fn start(
        settings: Settings,
        place: &HostPaths,
        note: Option<String>,
    ) -> Result<Self, SandboxEngineError> {
        let options = EngineOptions { helper: place.helper.clone(), state_dir: place.state_dir.clone() };
        let engine = SandboxEngine::start(options).await?;
        let bases = HostImages::new(engine.clone(), settings.keys.images);
        let mut notes: Vec<String> = note.into_iter().chain(engine.support().notes.clone()).collect();
        if settings.wants_storage {
            notes.push("override_storage is not enforced: the native environment shares the disk".to_owned());
        }
        let (network, pids) = (settings.keys.network, settings.keys.pids);
        Ok(Self {
            engine,
            bases,
            network,
            pids,
            notes,
            prepared: Preparations::default(),
            images: Mutex::default(),
        })
    }

    async fn image_of(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        match &request.docker_image {
            Some(name) if !request.force_build => {
                let image = self.bases.resolve(name).await.map_err(|error| match error {
                    BaseImageError::Unmapped { .. } => EnvironmentError::NoImage(chain(&error)),
                    error => EnvironmentError::Pull(chain(&error)),
                })?;
                Ok(self.remember(image))
            }
            _ => self.build(request).await,
        }
    }

    async fn build(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let context = request.context;
        let dockerfile = context.join("Dockerfile");
        if !dockerfile.exists() {
            return Err(EnvironmentError::Build(no_dockerfile(&dockerfile, request.docker_image)));
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
            no_cache: request.force_build,
            network: self.network,
            limits: SandboxLimits { pids: Some(self.pids), ..SandboxLimits::default() },
            log: sink.await.map_err(log_error)?,
        };
        let built = build(&self.engine, wanted, &self.bases).await.map_err(build_error)?;
        if built.cached {
            // Nothing was built, so the log is removed; an empty file that remains is harmless.
            let log = request.log.to_owned();
            let _ = blocking(move || fs::remove_dir_all(log.parent().unwrap_or(&log))).await;
        }
        Ok(self.remember(built.image))
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

    fn check_image(&self, context: &Path, docker_image: Option<&str>) -> Result<(), ImageProblem> {
        let known = |reference: &str| match self.bases.is_mapped(reference) {
            true => Ok(()),
            false => {
                let error = BaseImageError::Unmapped { reference: reference.to_owned() };
                Err(ImageProblem::Unknown(error.to_string()))
            }
        };
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
            Demand::NoNetwork => return None,
            Demand::Gpus => "the native environment has no GPUs; use `environment.type: docker`",
            Demand::NetworkChanges => {
                "the network of a native environment cannot be changed while it runs; use `environment.type: docker`"
            }
            Demand::ImageStartup => {
                "the native environment does not start them; use `environment.type: docker`"
            }
            Demand::Compose => "compose files need `environment.type: docker`",
        };
        Some(reason.to_owned())
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        self.prepared.once(request, self.image_of(request)).await
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        let image = {
            let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            images.get(&spec.image.reference).cloned()
        }
        .ok_or_else(|| {
            EnvironmentError::Start(format!("the image {} was not prepared", spec.image.reference))
        })?;
        let limits = SandboxLimits {
            cpus_millis: spec.cpus.map(|cpus| cpus.millis),
            memory_bytes: spec.memory.map(|memory| memory.0),
            pids: Some(self.pids),
        };
        let sandbox = SandboxSpec {
            name: spec.name.to_owned(),
            image,
            network: if spec.no_network { Network::None } else { self.network },
            limits,
            private_dirs: spec.private_dirs.iter().map(|dir| (*dir).to_owned()).collect(),
        };
        let sandbox = self.engine.create(sandbox).await.map_err(|error| match error {
            CreateError::Resources { .. } => EnvironmentError::Resources(format!(
                "{}; lower the limit in task.toml, or override it in the job",
                chain(&error)
            )),
            error => EnvironmentError::Start(chain(&error)),
        })?;
        let environment = NativeEnvironment::new(sandbox, spec.workdir);
        if let Some(workdir) = spec.workdir {
            environment.make_workdir(workdir).await?;
        }
        if !spec.hosts.is_empty() {
            environment.add_hosts(spec.hosts).await?;
        }
        Ok(Box::new(environment))
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
        Ok(Box::new(NativeEnvironment::new(sandbox, None)))
    }

    async fn settle(&self) {
        self.engine.settle().await;
    }
}

/// Distinguishes a `RUN` that failed because of the network from one that always fails, by the end of its
/// output.
fn build_error(error: ImageBuildError) -> EnvironmentError {
    let text = chain(&error);
    match error {
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

fn network_name(network: Network) -> &'static str {
    NETWORKS.iter().find(|(_, known)| *known == network).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_settings::{Settings as _, docs::check_page};

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
        ];
        insta::assert_snapshot!(errors.join("\n"), @"
        unknown key `netwrok` in `provider_config`; did you mean `network`? known keys in `provider_config`: `network`, `images`, `pids`
        2 settings are invalid
          `provider_config.network` cannot be `bridge`; it can be one of `host`, `none`
          `provider_config.pids` must be at least 1, not 0
        `provider_config.images.b` cannot be `guest`; it can only be `host`
        ");
    }
}
