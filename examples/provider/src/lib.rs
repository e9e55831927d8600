//! An environment provider that users can write themselves: containers by the `docker` command.
//!
//! Three things make it short. The command's builder builds each content once and keeps it, so there is no cache
//! here. The library's [`guest`] does all that trials want inside a container, over the streams of `docker run`.
//! And a container whose stream has ended removes itself, so nothing is swept up.
//!
//! The engine has to be on this machine, because the guest is mounted into containers and not copied.

mod client;
mod container;

use std::{
    collections::HashMap,
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use rollout::{
    config::EnvironmentConfig,
    environment::{
        Environment, EnvironmentError, EnvironmentSpec, Facts, ImageRequest, PreparedImage, Provider, guest,
    },
    record::{log::LogWriter, redact::Redactor},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell};

pub use client::DockerProgram;
use container::{Container, Inside, JOB_LABEL, SNAPSHOTS, USER_LABEL, new_name};

/// Makes environments by the `docker` command.
pub struct DockerCommand {
    docker: DockerProgram,
    settings: Settings,
    engine: Engine,
    /// The guest's program on this machine.
    guest: PathBuf,
    /// What was built without cache, by the directory it was built from.
    forced: Mutex<HashMap<PathBuf, Arc<OnceCell<String>>>>,
}

/// What a job may set in `provider_config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    network: String,
    pids: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { network: "bridge".to_owned(), pids: 4096 }
    }
}

/// The fields of `docker info` that are used here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Engine {
    mem_total: u64,
    memory_limit: bool,
    cpu_cfs_quota: bool,
    pids_limit: bool,
    #[serde(default)]
    cgroup_version: String,
}

impl DockerCommand {
    /// Makes sure that an engine answers. What has to be kept is kept in the state directory.
    pub async fn connect(
        docker: DockerProgram,
        config: &EnvironmentConfig,
        state_dir: &Path,
    ) -> Result<Self, EnvironmentError> {
        let start = |error: &dyn std::fmt::Display| EnvironmentError::Start(error.to_string());
        let settings = serde_json::from_value(Value::Object(config.provider_config.clone()));
        let settings = settings.map_err(|error| start(&format_args!("provider_config: {error}")))?;
        let info = docker.call(&["info", "--format", "{{json .}}"]).await.map_err(|error| start(&error))?;
        let engine = serde_json::from_str(&info).map_err(|error| start(&error))?;
        let dir = state_dir.to_owned();
        let guest = tokio::task::spawn_blocking(move || write_guest(&dir)).await;
        let guest = guest.map_err(|error| start(&error))?.map_err(|error| start(&error))?;
        Ok(Self { docker, settings, engine, guest, forced: Mutex::default() })
    }

    /// The content's identifier of an image that the engine has.
    async fn id(&self, image: &str) -> Result<String, String> {
        self.docker.call(&["image", "inspect", "--format", "{{.Id}}", image]).await
    }

    async fn fetch(&self, image: &str) -> Result<String, EnvironmentError> {
        if let Ok(id) = self.id(image).await {
            return Ok(id);
        }
        let pulled = self.docker.call(&["pull", "--quiet", image]).await;
        pulled.map_err(|error| {
            let text = format!("cannot pull {image}: {error}");
            // An answer of the registry stays the same; a registry that cannot be reached may be back soon.
            let refused = ["denied", "not found", "manifest unknown", "unauthorized", "invalid reference"];
            if refused.iter().any(|words| error.contains(words)) {
                EnvironmentError::NoImage(text)
            } else {
                EnvironmentError::Pull(text)
            }
        })?;
        self.id(image).await.map_err(EnvironmentError::Pull)
    }

    /// Builds a task's Dockerfile, by the builder's cache or without it.
    async fn build(&self, request: ImageRequest<'_>, cache: bool) -> Result<String, EnvironmentError> {
        let context = request.context;
        let dockerfile = context.join("Dockerfile");
        if !tokio::fs::try_exists(&dockerfile).await.unwrap_or(false) {
            return Err(request.no_dockerfile(&dockerfile));
        }
        let failed = |error: io::Error| EnvironmentError::Start(format!("cannot build: {error}"));
        let id = tempfile::NamedTempFile::new().map_err(failed)?.into_temp_path();
        let mut command =
            self.docker.command(&["build", "--progress", "plain", "--label", "rollout-example"]);
        if !cache {
            command.arg("--no-cache");
        }
        if self.settings.network == "host" {
            command.args(["--network", "host"]);
        }
        command.arg("--iidfile").arg(&id).arg(context);
        if let Some(dir) = request.log.parent() {
            tokio::fs::create_dir_all(dir).await.map_err(failed)?;
        }
        let file = tokio::fs::File::create(request.log).await.map_err(failed)?.into_std().await;
        let log = LogWriter::new(file, &Redactor::default());
        let (built, tail) = client::logged(command, log).await.map_err(failed)?;
        if !built {
            return Err(EnvironmentError::of_build(tail.last_lines(20)));
        }
        tokio::fs::read_to_string(&id).await.map_err(failed)
    }
}

/// Puts the guest where containers can mount it from. Others may do so at the same time.
fn write_guest(dir: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    let path = dir.canonicalize()?.join("guest");
    if std::fs::read(&path).is_ok_and(|found| found == guest::PROGRAM) {
        return Ok(path);
    }
    // Closed before it gets its name, because a program that is open for writing cannot be run.
    let new = tempfile::NamedTempFile::new_in(dir)?.into_temp_path();
    std::fs::write(&new, guest::PROGRAM)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755))?;
    new.persist(&path)?;
    Ok(path)
}

#[async_trait]
impl Provider for DockerCommand {
    fn name(&self) -> &'static str {
        "docker-command"
    }

    fn notes(&self) -> Vec<String> {
        let Engine { memory_limit, cpu_cfs_quota, pids_limit, .. } = self.engine;
        [("memory", memory_limit), ("cpus", cpu_cfs_quota), ("pids", pids_limit)]
            .into_iter()
            .filter(|(_, enforced)| !enforced)
            .map(|(limit, _)| format!("the engine does not enforce limits on {limit}"))
            .collect()
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let reference = match request.docker_image {
            Some(image) if !request.force_build => self.fetch(image).await?,
            _ if !request.force_build => self.build(request, true).await?,
            _ => {
                // Trials of the same task wait for the first of them; the lock is held no longer than this line.
                let cell =
                    Arc::clone(self.forced.lock().await.entry(request.context.to_owned()).or_default());
                cell.get_or_try_init(|| self.build(request, false)).await?.clone()
            }
        };
        Ok(PreparedImage { reference })
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        // For the client, 0 means no limit.
        let (cpus, memory) =
            (spec.cpus.map_or(0, |cpus| cpus.millis), spec.memory.map_or(0, |memory| memory.0));
        if memory > self.engine.mem_total {
            return Err(EnvironmentError::Resources(format!(
                "{memory} bytes of memory are wanted, and the engine's machine has {}",
                self.engine.mem_total
            )));
        }
        let image = &spec.image.reference;
        let user = self.docker.call(&["image", "inspect", "--format", "{{.Config.User}}", image]).await;
        let user = user.map_err(EnvironmentError::Start)?;
        let user = if user.is_empty() { "0:0".to_owned() } else { user };
        let name = new_name();
        let cpus = format!("{}.{:03}", cpus / 1000, cpus % 1000);
        let (memory, pids) = (memory.to_string(), self.settings.pids.to_string());
        let (job, label) = (format!("{JOB_LABEL}={}", spec.origin.job), format!("{USER_LABEL}={user}"));
        let guest = self.guest.display();
        let mount = format!("type=bind,readonly,source={guest},target={}", guest::PROGRAM_PATH);
        #[rustfmt::skip]
        let arguments = [
            "--name", &name, "--label", &job, "--label", &label, "--network", &self.settings.network,
            // No swap beside the memory.
            "--cpus", &cpus, "--memory", &memory, "--memory-swap", &memory, "--pids-limit", &pids,
            "--mount", &mount, "--entrypoint", guest::PROGRAM_PATH, "--user", "0:0", "--no-healthcheck",
            "--log-driver", "none", "--pull", "never", image,
        ];
        let inside = Inside::run(&self.docker, &user, &arguments).await.map_err(|error| match error {
            EnvironmentError::Start(text) if text.contains("Range of CPUs") => {
                EnvironmentError::Resources(text)
            }
            error => error,
        })?;
        let Engine { memory_limit, cpu_cfs_quota, pids_limit, .. } = self.engine;
        let enforced =
            json!({"cpus": cpu_cfs_quota, "memory": memory_limit, "pids": pids_limit, "storage": false});
        let facts = Facts { network: self.settings.network.clone(), enforced };
        let memory_is_certain = self.engine.cgroup_version == "1";
        let (docker, inside) = (self.docker.clone(), Some(inside));
        Ok(Box::new(Container { docker, name, user, facts, memory_is_certain, inside }))
    }

    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError> {
        let found = self.docker.call(&["image", "ls", "--quiet", &format!("{SNAPSHOTS}:{key}")]).await;
        let found = found.map_err(EnvironmentError::Start)?;
        Ok((!found.is_empty()).then(|| PreparedImage { reference: format!("{SNAPSHOTS}:{key}") }))
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        let format = format!("{{{{index .Config.Labels {USER_LABEL:?}}}}}");
        let user = self.docker.call(&["container", "inspect", "--format", &format, place]).await;
        let user = user.map_err(EnvironmentError::Start)?;
        let facts = Facts { network: String::new(), enforced: Value::Null };
        let (docker, name) = (self.docker.clone(), place.to_owned());
        Ok(Box::new(Container { docker, name, user, facts, memory_is_certain: false, inside: None }))
    }
}
