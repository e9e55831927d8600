//! A running container, controlled through its guest.

use std::{collections::HashMap, net::SocketAddr, os::fd::OwnedFd, path::Path, time::Duration};

use async_trait::async_trait;
use bollard::{
    container::LogOutput,
    errors::Error,
    models::{ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig},
    query_parameters::{AttachContainerOptions, RenameContainerOptions},
};
use futures_util::StreamExt as _;
use serde_json::json;
use tokio_util::io::StreamReader;

use super::{
    Engine, apply,
    commit::Commit,
    ending::why_ended,
    failure,
    images::{self, SNAPSHOTS},
    kept, names, network, owner,
    reaper::{self, Container},
    settings::{self, Settings},
    terminal,
};
use crate::{
    environment::{
        CommandUsers, CopyMode, CopyOut, CopyReport, Environment, EnvironmentError, EnvironmentSpec, Exec,
        Exit, Facts, FileChange, FileRead, ImageStartup, Origin,
    },
    guest::{self, Guest},
};

/// How long the guest may take to send its first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// The label with the user of commands, for opening the container again.
pub(super) const USER: &str = "rollout.user";

/// A running container.
pub(super) struct DockerEnvironment {
    /// `None` in a reopened container, which is not removed. Dropped before the engine, whose last owner waits
    /// until every container is dropped.
    container: Option<Container>,
    engine: Engine,
    name: String,
    /// `None` in a reopened container: its stream ended when it was preserved.
    guest: Option<Guest>,
    user: Option<String>,
    origin: (String, String),
    facts: Facts,
    workdir: String,
    startup: ImageStartup,
    /// The network that can be taken away.
    outside: String,
    /// The image that it was started from.
    image: String,
    /// The image that is removed with the container.
    own_image: Option<String>,
}

/// What a container starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerBase {
    /// An image with the guest.
    Image,
    /// An image of a preserved container, which this container alone uses. Its agent can have replaced the guest.
    Preserved,
}

/// How a container is created.
pub(super) struct Plan<'a> {
    pub(super) settings: &'a Settings,
    pub(super) spec: EnvironmentSpec<'a>,
    /// The user of commands.
    pub(super) user: Option<String>,
    /// The directory in which commands start.
    pub(super) workdir: &'a str,
    /// The programs that the image wants to be started. A health check is disabled, because the engine would run
    /// its command next to those of the trial.
    pub(super) startup: ImageStartup,
    /// Whether the engine limits its storage.
    pub(super) storage: bool,
    pub(super) base: ContainerBase,
}

impl Plan<'_> {
    fn body(&self, engine: &Engine) -> ContainerCreateBody {
        let (settings, spec) = (self.settings, &self.spec);
        let some = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let memory = spec.memory.filter(|_| engine.inner.limits.memory).map(|memory| signed(memory.0));
        let cpus = spec.cpus.filter(|_| engine.inner.limits.cpus);
        let gpus = (spec.gpus > 0).then(|| settings::some_gpus(spec.gpus));
        let hosts = spec.hosts.iter().map(|(name, address)| format!("{name}:{address}"));
        let host = HostConfig {
            nano_cpus: cpus.map(|cpus| signed(cpus.millis.saturating_mul(1_000_000))),
            memory,
            // No swap in addition to the memory.
            memory_swap: memory,
            pids_limit: engine.inner.limits.pids.then_some(settings.pids.cast_signed()),
            storage_opt: spec
                .storage
                .filter(|_| self.storage)
                .map(|storage| [("size".to_owned(), storage.0.to_string())].into()),
            network_mode: if spec.no_network { Some("none".to_owned()) } else { settings.network.clone() },
            runtime: settings.runtime.clone(),
            extra_hosts: some(&settings.extra_hosts.iter().cloned().chain(hosts).collect()),
            dns: some(&settings.dns),
            mounts: (!settings.mounts.is_empty()).then(|| settings.mounts.clone()),
            device_requests: settings.gpus.clone().or(gpus).map(|request| vec![request]),
            // All output goes through the guest's stream; otherwise the engine would write it to its disk as
            // well.
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            ..HostConfig::default()
        };
        let mut labels = engine.inner.owner.labels(spec.origin);
        labels.insert(USER.to_owned(), self.user.clone().unwrap_or_default());
        let mut body = ContainerCreateBody {
            image: Some(spec.image.reference.clone()),
            user: Some("0:0".to_owned()),
            entrypoint: Some(vec![guest::PROGRAM_PATH.to_owned()]),
            cmd: Some(Vec::new()),
            working_dir: spec.workdir.map(str::to_owned),
            healthcheck: self
                .startup
                .healthcheck
                .is_some()
                .then(|| HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            open_stdin: Some(true),
            stdin_once: Some(true),
            tty: Some(false),
            // The guest ignores other signals, and a stopping engine would wait for it.
            stop_signal: Some("SIGKILL".to_owned()),
            labels: Some(labels),
            host_config: Some(host),
            ..ContainerCreateBody::default()
        };
        if let Some(settings) = spec.container {
            apply::apply(settings, &mut body);
        }
        body
    }
}

impl Plan<'_> {
    /// The error for a compose file that names another platform than that of the images.
    fn foreign_platform(&self, engine: &Engine) -> Option<EnvironmentError> {
        let asked = self.spec.container?.platform.as_deref()?;
        let facts = engine.facts();
        let own = self.settings.platform.clone().unwrap_or_else(|| format!("{}/{}", facts.os, facts.arch));
        (!names::same_platform(asked, &own)).then(|| {
            EnvironmentError::Refused(format!(
                "the compose file names the platform {asked}, but containers have the platform {own}: remove `platform`, or \
                 use an engine of that platform"
            ))
        })
    }
}

/// Why a container was not created.
pub(super) enum NotMade {
    /// The engine cannot limit its storage.
    Storage,
    /// Its image was removed.
    NoImage,
    /// Anything else.
    Failed(EnvironmentError),
}

impl DockerEnvironment {
    /// Creates a container and waits for its guest.
    pub(super) async fn create(engine: &Engine, plan: Plan<'_>) -> Result<Self, NotMade> {
        let api = engine.api();
        let name = names::container(plan.spec.name);
        if let Some(foreign) = plan.foreign_platform(engine) {
            return Err(NotMade::Failed(foreign));
        }
        let platform = plan.settings.platform.as_deref().unwrap_or_default();
        let failed = |error: Error| NotMade::Failed(failure::start(&error));
        let created = engine.inner.reaper.create(&name, platform, plan.body(engine)).await;
        let container = created.map_err(|error| {
            if plan.storage && failure::is_storage_refusal(&error) {
                NotMade::Storage
            } else if failure::is_missing(&error) && failure::words(&error).contains("o such image") {
                NotMade::NoImage
            } else {
                failed(error)
            }
        })?;
        let more = plan.spec.container.into_iter().flat_map(|settings| settings.networks.iter().skip(1));
        for (other, names) in more {
            network::connect(engine, &name, other, names).await.map_err(failed)?;
        }
        if plan.base == ContainerBase::Preserved {
            images::upload_guest(engine, &name).await.map_err(failed)?;
        }
        let attach = AttachContainerOptions {
            stream: true,
            stdin: true,
            stdout: true,
            stderr: true,
            ..Default::default()
        };
        let stream = api.attach_container(&name, Some(attach)).await.map_err(failed)?;
        api.start_container(&name, None).await.map_err(failed)?;
        let output = StreamReader::new(Box::pin(stream.output.filter_map(async |item| match item {
            Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
            Ok(LogOutput::StdErr { message }) => {
                tracing::debug!(message = %String::from_utf8_lossy(&message).trim_end(), "the guest says");
                None
            }
            Ok(_) => None,
            Err(error) => Some(Err(std::io::Error::other(error))),
        })));
        let hello = Guest::connect(output, stream.input, plan.user.clone());
        let guest = match tokio::time::timeout(HELLO_TIMEOUT, hello).await {
            Ok(Ok(guest)) => guest,
            Ok(Err(error)) => {
                let why = why_ended(engine, &name).await.unwrap_or(error);
                return Err(NotMade::Failed(EnvironmentError::Start(format!(
                    "the container does not start: {why}"
                ))));
            }
            Err(_) => {
                return Err(NotMade::Failed(EnvironmentError::Start(format!(
                    "the container runs, but its guest does not answer within {} seconds",
                    HELLO_TIMEOUT.as_secs()
                ))));
            }
        };
        let limits = engine.inner.limits;
        let enforced = json!({
            "cpus": limits.cpus && plan.spec.cpus.is_some(),
            "memory": limits.memory && plan.spec.memory.is_some(),
            "pids": limits.pids,
            "storage": plan.storage,
        });
        let Origin { job, trial } = plan.spec.origin;
        Ok(Self {
            engine: engine.clone(),
            container: Some(container),
            name,
            guest: Some(guest),
            user: plan.user,
            origin: (job.to_owned(), trial.to_owned()),
            facts: Facts {
                network: match plan.spec.container {
                    Some(_) => "compose",
                    None if plan.spec.no_network => "none",
                    None => plan.settings.network_name(),
                }
                .to_owned(),
                enforced,
            },
            workdir: plan.workdir.to_owned(),
            startup: plan.startup,
            outside: plan.settings.network_name().to_owned(),
            image: plan.spec.image.reference.clone(),
            own_image: (plan.base == ContainerBase::Preserved).then(|| plan.spec.image.reference.clone()),
        })
    }

    /// Opens a preserved container, which is started if it has stopped.
    pub(super) async fn reopen(engine: &Engine, name: &str) -> Result<Self, EnvironmentError> {
        let gone = |error: Error| {
            EnvironmentError::Start(if failure::is_missing(&error) {
                format!("the container {name} no longer exists")
            } else {
                format!("cannot open the container {name}: {}", failure::words(&error))
            })
        };
        let found = engine.api().inspect_container(name, None).await.map_err(gone)?;
        if !found.state.and_then(|state| state.running).unwrap_or(false) {
            engine.api().start_container(name, None).await.map_err(gone)?;
        }
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        Ok(Self {
            engine: engine.clone(),
            name: name.to_owned(),
            container: None,
            guest: None,
            user: Some(label(USER)).filter(|user| !user.is_empty()),
            origin: (label(super::owner::JOB), label(super::owner::TRIAL)),
            facts: Facts { network: String::new(), enforced: serde_json::Value::Null },
            workdir: "/".to_owned(),
            startup: ImageStartup::default(),
            outside: String::new(),
            image: String::new(),
            own_image: None,
        })
    }

    fn guest(&self) -> Result<&Guest, EnvironmentError> {
        self.guest.as_ref().ok_or_else(|| {
            EnvironmentError::Lost("a preserved container can only be opened with a terminal".to_owned())
        })
    }

    /// The labels of a snapshot, with the image that it was made from.
    fn snapshot_labels(&self) -> HashMap<String, String> {
        let origin = Origin { job: &self.origin.0, trial: &self.origin.1 };
        let mut labels = self.engine.inner.owner.committed_labels("snapshot", origin);
        labels.insert(owner::IMAGE_BASE.to_owned(), self.image.clone());
        labels
    }

    /// Finds a volume whose files belong to this container alone and would be missing in an image of it.
    /// Directories below `/logs` are created again for each trial.
    async fn own_volume(&self) -> Result<Option<String>, EnvironmentError> {
        let found = self.engine.api().inspect_container(&self.name, None).await.map_err(|error| {
            EnvironmentError::Lost(failure::away("list the volumes of a container", &error))
        })?;
        let mounted =
            found.mounts.unwrap_or_default().into_iter().filter(|mount| match mount.typ.as_deref() {
                // The engine names anonymous volumes by a hash.
                Some("volume") => mount.name.as_ref().is_none_or(|name| is_hash(name)),
                Some("tmpfs") => true,
                _ => false,
            });
        let mut paths = mounted.filter_map(|mount| mount.destination);
        Ok(paths.find(|path| path != "/logs" && !path.starts_with("/logs/")))
    }

    /// Adds the cause to the error of a lost container.
    async fn explain_loss<T>(&self, answer: Result<T, EnvironmentError>) -> Result<T, EnvironmentError> {
        match answer {
            Err(EnvironmentError::Lost(text)) => {
                let why = why_ended(&self.engine, &self.name).await;
                Err(why.unwrap_or(EnvironmentError::Lost(text)))
            }
            answer => answer,
        }
    }
}

fn is_hash(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[async_trait]
impl Environment for DockerEnvironment {
    fn id(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn workdir(&self) -> &str {
        &self.workdir
    }

    fn startup(&self) -> ImageStartup {
        self.startup.clone()
    }

    fn set_users(&self, users: CommandUsers) -> Result<(), EnvironmentError> {
        self.guest()?.set_users(users);
        Ok(())
    }

    async fn set_network(&self, connected: bool) -> Result<(), EnvironmentError> {
        network::set(&self.engine, &self.name, &self.outside, connected).await
    }

    async fn address(&self) -> Result<Option<String>, EnvironmentError> {
        let found = self.engine.api().inspect_container(&self.name, None).await.map_err(|error| {
            EnvironmentError::Lost(failure::away("read the address of a container", &error))
        })?;
        let networks = found.network_settings.and_then(|settings| settings.networks).unwrap_or_default();
        Ok(networks
            .into_values()
            .filter_map(|network| network.ip_address)
            .find(|address| !address.is_empty()))
    }

    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.copy_to(source, target, mode).await).await
    }

    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.write_file(path, content).await).await
    }

    async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
        self.explain_loss(self.guest()?.copy_from(copy).await).await
    }

    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        self.explain_loss(self.guest()?.read_file(path, max_bytes).await).await
    }

    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.make_dirs(paths, empty).await).await
    }

    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.link(target, link).await).await
    }

    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        self.explain_loss(self.guest()?.exec(command).await).await
    }

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        terminal::exec(self.engine.api(), &self.name, self.user.as_deref(), argv, terminal).await
    }

    async fn offer(&self, service: SocketAddr) -> Result<u16, EnvironmentError> {
        self.explain_loss(self.guest()?.offer(service).await).await
    }

    async fn snapshot(&self, key: &str) -> Result<(), EnvironmentError> {
        let reference = snapshot_reference(key);
        match self.engine.api().inspect_image(&reference).await {
            Ok(_) => return Ok(()),
            Err(error) if failure::is_missing(&error) => {}
            Err(error) => return Err(EnvironmentError::Lost(failure::away("look for a snapshot", &error))),
        }
        if let Some(volume) = self.own_volume().await? {
            return Err(EnvironmentError::Command(format!(
                "{volume} is an anonymous volume, which a snapshot does not include; it is declared by VOLUME in the Dockerfile, or by a mount in provider_config"
            )));
        }
        // An install script can change it, and it is the first process of every container of the snapshot.
        self.explain_loss(self.guest()?.restore_program().await).await?;
        let (repository, tag) = reference.split_once(':').unwrap_or((SNAPSHOTS, key));
        let commit = Commit {
            container: &self.name,
            repository,
            tag,
            // The container itself runs as root, for the guest.
            user: self.user.as_deref(),
            labels: self.snapshot_labels(),
            pause: true,
        };
        self.engine.commit(commit).await.map_err(|error| {
            EnvironmentError::Lost(format!("cannot keep a snapshot: {}", failure::words(&error)))
        })
    }

    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        self.explain_loss(self.guest()?.survivors().await).await
    }

    async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.kill_all().await).await
    }

    async fn hold(&self) -> Result<bool, EnvironmentError> {
        self.explain_loss(self.guest()?.hold().await).await.map(|()| true)
    }

    async fn watch(&self, tree: &str, files: &[&str]) -> Result<bool, EnvironmentError> {
        self.explain_loss(self.guest()?.watch(tree, files).await).await.map(|()| true)
    }

    async fn changes(&self) -> Result<Vec<FileChange>, EnvironmentError> {
        self.explain_loss(self.guest()?.changes().await).await
    }

    fn cost(&self) -> f64 {
        0.0
    }

    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
        let Self { engine, container, guest, name, own_image, .. } = *self;
        let removed = match container {
            Some(container) => container.remove().await,
            None => reaper::remove(engine.api(), &name).await,
        };
        removed.map_err(|error| {
            EnvironmentError::Teardown(format!(
                "cannot remove the container {name}: {}",
                failure::words(&error)
            ))
        })?;
        if let Some(guest) = guest {
            guest.finish().await;
        }
        if let Some(image) = own_image {
            kept::remove(&engine, &image).await;
        }
        Ok(())
    }

    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
        let Self { engine, container, guest, name, .. } = *self;
        let (Some(container), Some(guest)) = (container, guest) else { return Ok(name) };
        guest.stay().await.map_err(|error| EnvironmentError::Teardown(error.to_string()))?;
        let kept = names::kept(&name);
        let options = RenameContainerOptions { name: kept.clone() };
        engine.api().rename_container(&name, options).await.map_err(|error| {
            EnvironmentError::Teardown(format!(
                "cannot preserve the container {name}: {}",
                failure::words(&error)
            ))
        })?;
        container.release();
        guest.finish().await;
        Ok(kept)
    }
}

/// The image of a snapshot. A key that is not a valid tag is hashed.
pub(super) fn snapshot_reference(key: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let plain = !key.is_empty()
        && key.len() <= 64
        && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if plain {
        format!("{SNAPSHOTS}:{key}")
    } else {
        format!("{SNAPSHOTS}:{}", &rollout_core::text::hex(&Sha256::digest(key))[..32])
    }
}
