//! The native provider: the embedded container engine, with the host as its image.

mod output;

use std::{
    collections::HashMap,
    io::{Seek as _, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rollout_sandbox::{
    BuildError, BuildRequest, Command, CopyError, CopyIn, CopyLimits, CreateError, Engine, EngineOptions, ExecError,
    ExitStatus, HostImages, Image, ImageConfig, Limits, Network, Process, Sandbox, SandboxSpec, Stdio, build,
};
use tokio::sync::OnceCell;

use self::output::Pumps;
use super::{
    ConnectError, CopyMode, CopyReport, Environment, EnvironmentError, EnvironmentSpec, Exec, Exit, Facts, FileRead,
    ImageRequest, Outcome, Place, PreparedImage, Provider,
};

/// Processes in one environment. Far above what tasks need, and low enough to stop a fork bomb.
const DEFAULT_PIDS: u64 = 4096;

/// What is copied out of one environment at most, so that a trial cannot fill the job's disk.
const LOG_LIMITS: CopyLimits = CopyLimits { max_bytes: 1 << 30, max_entries: 100_000, max_file_bytes: 256 << 20 };

/// Scripts of any user inside write their logs there.
const SHARED_DIR_MODE: u32 = 0o777;

/// The native part of `provider_config`.
pub(super) struct Settings {
    network: Network,
    images: HostImages,
    pids: u64,
}

impl Settings {
    /// Reads the settings; an error is a sentence about the first wrong one.
    pub(super) fn read(config: &serde_json::Map<String, serde_json::Value>) -> Result<Self, String> {
        let mut settings =
            Self { network: Network::Host, images: HostImages::default(), pids: DEFAULT_PIDS };
        for (key, value) in config {
            match key.as_str() {
                "network" => {
                    settings.network = match value.as_str() {
                        Some("host") => Network::Host,
                        Some("none") => Network::None,
                        _ => return Err(format!("network is {value}; the native environment knows host and none")),
                    };
                }
                "pids" => {
                    settings.pids = value
                        .as_u64()
                        .filter(|pids| *pids > 0)
                        .ok_or_else(|| format!("pids is {value}; expected a whole number above 0"))?;
                }
                "images" => {
                    let map = value
                        .as_object()
                        .ok_or_else(|| "images maps image names to host, as in {\"python:3.13-slim\": host}".to_owned())?;
                    for (name, target) in map {
                        if target.as_str() != Some("host") {
                            return Err(format!("images maps {name:?} to {target}; the one possible target is host"));
                        }
                        settings.images.add(name);
                    }
                }
                _ => return Err(format!("unknown key {key:?}; the native environment knows network, images and pids")),
            }
        }
        Ok(settings)
    }
}

/// Makes native environments.
pub(super) struct Native {
    engine: Engine,
    settings: Settings,
    /// What was prepared in this process, by task directory: a build that failed for good fails once.
    prepared: Mutex<HashMap<PathBuf, Arc<OnceCell<Result<PreparedImage, EnvironmentError>>>>>,
    images: Mutex<HashMap<String, Image>>,
    host: Image,
}

impl Native {
    pub(super) async fn start(mut settings: Settings, place: &Place) -> Result<Self, ConnectError> {
        let options = EngineOptions { helper: place.helper.clone(), state_dir: place.state_dir.clone() };
        let engine = Engine::start(options).await.map_err(ConnectError::Native)?;
        let host = engine.host_image().await.map_err(ConnectError::HostImage)?;
        settings.images.set_host(host.clone());
        Ok(Self { engine, settings, prepared: Mutex::default(), images: Mutex::default(), host })
    }

    async fn image_of(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let task = request.task;
        let context = task.dir.join("environment");
        let dockerfile = context.join("Dockerfile");
        if let Some(name) = &task.config.docker_image
            && !request.force_build
        {
            if !self.settings.images.maps(name) {
                return Err(EnvironmentError::NoImage(unmapped(name)));
            }
            return Ok(self.remember("host".to_owned(), self.host.clone()));
        }
        if !dockerfile.is_file() {
            return Err(EnvironmentError::Build(format!(
                "there is no {}: write one, or name an image as environment.docker_image in task.toml",
                dockerfile.display()
            )));
        }
        let build_request = BuildRequest {
            context: &context,
            dockerfile: &dockerfile,
            no_cache: request.force_build,
            network: self.settings.network,
            limits: Limits::default(),
            log: request.log,
        };
        let built = build(&self.engine, build_request, &self.settings.images).await.map_err(build_error)?;
        Ok(self.remember(format!("native:{}", built.key), built.image))
    }

    fn remember(&self, reference: String, image: Image) -> PreparedImage {
        self.images.lock().unwrap_or_else(PoisonError::into_inner).insert(reference.clone(), image);
        PreparedImage { reference }
    }

    fn wrap(&self, sandbox: Sandbox, image: ImageConfig) -> Box<dyn Environment> {
        Box::new(NativeEnvironment { sandbox, image, network: self.settings.network, pumps: Pumps::default() })
    }
}

#[async_trait]
impl Provider for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn notes(&self) -> Vec<String> {
        self.engine.support().notes.clone()
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        let cell = {
            let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(prepared.entry(request.task.dir.clone()).or_default())
        };
        let outcome = cell.get_or_try_init(|| async {
            match self.image_of(request).await {
                Err(error @ EnvironmentError::BuildNetwork(_)) => Err(error),
                outcome => Ok(outcome),
            }
        });
        outcome.await?.clone()
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        let image = {
            let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            images.get(&spec.image.reference).cloned()
        }
        .ok_or_else(|| EnvironmentError::Start(format!("image {} was not prepared", spec.image.reference)))?;
        let config = image.config().clone();
        let limits = Limits {
            cpus_millis: Some(spec.cpus.millis),
            memory_bytes: Some(spec.memory.0),
            pids: Some(self.settings.pids),
        };
        let sandbox = SandboxSpec { name: spec.name.to_owned(), image, network: self.settings.network, limits };
        let sandbox = self.engine.create(sandbox).await.map_err(|error| match error {
            CreateError::Resources { .. } => EnvironmentError::Resources(chain(&error)),
            error => EnvironmentError::Start(chain(&error)),
        })?;
        Ok(self.wrap(sandbox, config))
    }

    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError> {
        let sandbox =
            self.engine.reopen(Path::new(place)).await.map_err(|error| EnvironmentError::Start(chain(&error)))?;
        let config = sandbox.image_config().clone();
        Ok(self.wrap(sandbox, config))
    }
}

/// A running native environment.
struct NativeEnvironment {
    sandbox: Sandbox,
    image: ImageConfig,
    network: Network,
    pumps: Pumps,
}

impl NativeEnvironment {
    fn command(&self, argv: &[&str], env: &[(String, String)], stdin: Stdio, stdout: OwnedFd, stderr: OwnedFd) -> Command {
        let mut all = vec![("HOME".to_owned(), "/root".to_owned())];
        all.extend(self.image.env.iter().cloned());
        all.extend(env.iter().cloned());
        Command {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: all,
            cwd: self.image.workdir.clone(),
            user: self.image.user.clone(),
            stdin,
            stdout,
            stderr,
        }
    }
}

#[async_trait]
impl Environment for NativeEnvironment {
    fn id(&self) -> &str {
        self.sandbox.id()
    }

    fn facts(&self) -> Facts {
        let network = match self.network {
            Network::Host => "host",
            Network::None => "none",
        };
        let enforced = serde_json::to_value(self.sandbox.enforced()).unwrap_or_default();
        Facts { network: network.to_owned(), enforced }
    }

    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError> {
        let options = CopyIn { replace: mode == CopyMode::Replace };
        self.sandbox.copy_in(source, target, options).await.map_err(copy_error)
    }

    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        let lost = |error: std::io::Error| EnvironmentError::Lost(format!("cannot pass a file inside: {error}"));
        let memory = rustix::fs::memfd_create("script", rustix::fs::MemfdFlags::CLOEXEC).map_err(|error| lost(error.into()))?;
        let mut file = std::fs::File::from(memory);
        file.write_all(content).and_then(|()| file.rewind()).map_err(lost)?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(lost)?;
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.sandbox.copy_in(Path::new(&place), path, CopyIn { replace: true }).await.map_err(copy_error)
    }

    async fn copy_from(&self, source: &str, target: &Path) -> Result<CopyReport, EnvironmentError> {
        let report = self.sandbox.copy_out(source, target, LOG_LIMITS).await.map_err(copy_error)?;
        let skipped = report.skipped.into_iter().map(|skipped| format!("{}: {}", skipped.path, skipped.reason));
        Ok(CopyReport { skipped: skipped.collect() })
    }

    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        let read = self.sandbox.read_file(path, max_bytes).await.map_err(copy_error)?;
        Ok(match read {
            rollout_sandbox::FileRead::Content(bytes) => FileRead::Content(bytes),
            rollout_sandbox::FileRead::Missing => FileRead::Missing,
            rollout_sandbox::FileRead::NotRegular => FileRead::NotRegular,
            rollout_sandbox::FileRead::TooLarge(size) => FileRead::TooLarge(size),
        })
    }

    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        for path in paths {
            self.sandbox.make_dir(path, SHARED_DIR_MODE, empty).await.map_err(copy_error)?;
        }
        Ok(())
    }

    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        self.sandbox.symlink(target, link).await.map_err(copy_error)
    }

    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        let (stdout, stdout_end) = output::pipe().map_err(|error| EnvironmentError::Lost(error.to_string()))?;
        let (stderr, stderr_end) = output::pipe().map_err(|error| EnvironmentError::Lost(error.to_string()))?;
        let request = self.command(command.argv, command.env, Stdio::Null, stdout_end, stderr_end);
        let process = self.sandbox.exec(request).await.map_err(exec_error)?;
        let stdout = self.pumps.start(stdout, command.stdout);
        let stderr = self.pumps.start(stderr, command.stderr);
        let exit = wait(process, command.deadline).await;
        stdout.catch_up().await;
        stderr.catch_up().await;
        exit
    }

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| EnvironmentError::Lost(error.to_string()));
        let (stdout, stderr) = (copy(&terminal)?, copy(&terminal)?);
        let env = [("TERM".to_owned(), "xterm-256color".to_owned())];
        let request = self.command(argv, &env, Stdio::Terminal(terminal), stdout, stderr);
        let process = self.sandbox.exec(request).await.map_err(exec_error)?;
        wait(process, None).await
    }

    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        let survivors = self.sandbox.survivors().await.map_err(exec_error)?;
        Ok(survivors.into_iter().map(|survivor| survivor.command).collect())
    }

    async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.sandbox.kill_all().await.map_err(exec_error)
    }

    fn cost(&self) -> f64 {
        0.0
    }

    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
        let ended = self.sandbox.destroy().await.map_err(|error| EnvironmentError::Teardown(chain(&error)));
        self.pumps.finish().await;
        ended
    }

    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
        let place = self.sandbox.preserve().await.map_err(|error| EnvironmentError::Teardown(chain(&error)))?;
        self.pumps.finish().await;
        Ok(place.display().to_string())
    }
}

/// Waits for a command, or for its deadline and the end of everything it started.
async fn wait(mut process: Process, deadline: Option<Duration>) -> Result<Exit, EnvironmentError> {
    let in_time = match deadline {
        Some(deadline) => tokio::time::timeout(deadline, process.wait()).await.ok(),
        None => Some(process.wait().await),
    };
    let Some(exit) = in_time else {
        process.kill_tree().await.map_err(exec_error)?;
        let exit = process.wait().await;
        return Ok(Exit { outcome: Outcome::TimedOut, oom_killed: exit.oom_killed });
    };
    let outcome = match exit.status {
        ExitStatus::Code(code) => Outcome::Code(code),
        ExitStatus::Signal(signal) => Outcome::Signal(signal),
    };
    Ok(Exit { outcome, oom_killed: exit.oom_killed })
}

fn unmapped(name: &str) -> String {
    format!(
        "the native environment has no image {name}. To run on this machine's own system instead, write\n\
         environment:\n  provider_config:\n    images: {{\"{name}\": host}}"
    )
}

fn build_error(error: BuildError) -> EnvironmentError {
    EnvironmentError::Build(chain(&error))
}

fn copy_error(error: CopyError) -> EnvironmentError {
    EnvironmentError::Lost(chain(&error))
}

fn exec_error(error: ExecError) -> EnvironmentError {
    if error.is_lost() { EnvironmentError::Lost(chain(&error)) } else { EnvironmentError::Command(chain(&error)) }
}

/// An error with its causes, as one sentence.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
