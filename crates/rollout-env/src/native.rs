//! The native provider: the embedded container engine, with the host as its image.

mod output;

use std::{
    collections::HashMap,
    fs, io,
    os::fd::OwnedFd,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rollout_guest::{GuestReply, MAX_REPLY, decode_reply, read_frame};
use rollout_sandbox::{
    CommandExit, CopyError, CopyIn, CreateError, EngineOptions, ExecError, ExitStatus, FileLookup, Image,
    ImageConfig, Network, RunningSandbox, SandboxCommand, SandboxEngine, SandboxEngineError, SandboxLimits,
    SandboxProcess, SandboxSpec, Stdio,
    build::{
        BaseImageError, BaseImages as _, BuildRequest, HostImages, ImageBuildError, LogSink, build, inspect,
    },
};
use rustix::pipe::PipeFlags;
use serde_json::json;
use tokio::sync::{RwLock, RwLockReadGuard};

use self::output::Pumps;
use crate::{
    blocking::blocking,
    config::EnvironmentConfig,
    environment::{
        CommandRole, CopyMode, CopyOut, CopyReport, Environment, EnvironmentError, EnvironmentSpec, Exec,
        Exit, Facts, FileRead, ImageProblem, ImageRequest, Outcome, PreparedImage, Provider, no_dockerfile,
    },
    host::HostPaths,
    preparations::Preparations,
    receive::{LOG_LIMITS, Receive, ReceiveError, Received},
    trouble::is_network_trouble,
};
use rollout_core::text::chain;
use rollout_settings::{
    Form,
    forms::{whole, word},
    read_json,
};

/// A command that was killed has ended long before this; what became of it matters less than going on.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Where names of hosts are looked up inside, and how much of it is kept.
const HOSTS: &str = "/etc/hosts";
const MAX_HOSTS_BYTES: u64 = 64 << 10;

/// Scripts of any user inside write their logs there.
const SHARED_DIR_MODE: u32 = 0o777;

rollout_settings::settings! {
    /// The native part of `provider_config`.
    pub(super) struct NativeKeys {
        /// The network of environments, and of builds.
        ///
        /// `host`: this machine's network. `none`: loopback only.
        network: Network = word(&NETWORKS).default(Network::Host),
        /// Which images this machine's own system stands for. `*` in a name stands for any text.
        images: Vec<String> = host_images(),
        /// Processes and threads in one environment.
        ///
        /// Far above what tasks need, and low enough to stop a fork bomb.
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

/// How native environments are made, as the job says.
pub(super) struct Settings {
    keys: NativeKeys,
    /// The job itself asks for storage, and should know what comes of it.
    wants_storage: bool,
}

impl Settings {
    /// Reads the settings; an error tells of all that are wrong.
    pub(super) fn read(config: &EnvironmentConfig) -> Result<Self, String> {
        let keys = read_json::<NativeKeys>("provider_config", &config.provider_config)?;
        Ok(Self { keys, wants_storage: config.override_storage.is_some() })
    }
}

/// Makes native environments.
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
            // Nothing was built, so there is no log; that its empty file stays would be no harm.
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
            // A task without one fails by itself, and its error says what is missing.
            None if !dockerfile.exists() => Ok(()),
            None => {
                let images = inspect(context, &dockerfile);
                let images = images.map_err(|error| ImageProblem::Dockerfile(chain(&error)))?;
                images.iter().try_for_each(|image| known(&image.reference))
            }
        }
    }

    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError> {
        self.prepared.once(request, self.image_of(request)).await
    }

    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError> {
        let image = {
            let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            images.get(&spec.image.reference).cloned()
        }
        .ok_or_else(|| EnvironmentError::Start(format!("image {} was not prepared", spec.image.reference)))?;
        let limits = SandboxLimits {
            cpus_millis: Some(spec.cpus.millis),
            memory_bytes: Some(spec.memory.0),
            pids: Some(self.pids),
        };
        let sandbox = SandboxSpec {
            name: spec.name.to_owned(),
            image,
            network: self.network,
            limits,
            private_dirs: spec.private_dirs.iter().map(|dir| (*dir).to_owned()).collect(),
        };
        let sandbox = self.engine.create(sandbox).await.map_err(|error| match error {
            CreateError::Resources { .. } => EnvironmentError::Resources(chain(&error)),
            error => EnvironmentError::Start(chain(&error)),
        })?;
        let environment = NativeEnvironment::new(sandbox);
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
        Ok(Box::new(NativeEnvironment::new(sandbox)))
    }

    async fn settle(&self) {
        self.engine.settle().await;
    }
}

/// A running native environment.
struct NativeEnvironment {
    id: String,
    facts: Facts,
    isolates_verifier: bool,
    settings: ImageConfig,
    /// A snapshot starts it anew, under the same name and on the same files.
    sandbox: RwLock<RunningSandbox>,
    pumps: Pumps,
}

impl NativeEnvironment {
    fn new(sandbox: RunningSandbox) -> Self {
        let network = network_name(sandbox.spec().network);
        let mut enforced = serde_json::to_value(sandbox.enforced()).unwrap_or_default();
        enforced["storage"] = false.into();
        Self {
            id: sandbox.id().to_owned(),
            facts: Facts { network: network.to_owned(), enforced },
            isolates_verifier: !sandbox.spec().private_dirs.is_empty(),
            settings: sandbox.spec().image.config().clone(),
            sandbox: RwLock::new(sandbox),
            pumps: Pumps::default(),
        }
    }

    async fn add_hosts(&self, hosts: &[(String, String)]) -> Result<(), EnvironmentError> {
        let mut file = match self.read_file(HOSTS, MAX_HOSTS_BYTES).await? {
            FileRead::Content(content) => content,
            FileRead::Missing | FileRead::NotRegular | FileRead::TooLarge(_) => Vec::new(),
        };
        for (name, address) in hosts {
            file.extend(format!("\n{address} {name}\n").into_bytes());
        }
        self.sandbox().await.write_file(HOSTS, &file, 0o644).await.map_err(copy_error)
    }

    async fn sandbox(&self) -> RwLockReadGuard<'_, RunningSandbox> {
        self.sandbox.read().await
    }

    fn command(&self, argv: &[&str], env: &[(String, String)], stdio: [OwnedFd; 2]) -> SandboxCommand {
        let image = &self.settings;
        let [stdout, stderr] = stdio;
        SandboxCommand {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: image.env.iter().chain(env).cloned().collect(),
            cwd: image.workdir.clone(),
            user: image.user.clone(),
            stdin: Stdio::Null,
            stdout,
            stderr,
            tty: false,
            nested: false,
        }
    }
}

#[async_trait]
impl Environment for NativeEnvironment {
    fn id(&self) -> &str {
        &self.id
    }

    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn isolates_verifier(&self) -> bool {
        self.isolates_verifier
    }

    async fn address(&self) -> Result<Option<String>, EnvironmentError> {
        // On the host's network every environment is at the same address.
        let sandbox = self.sandbox().await;
        Ok((sandbox.spec().network == Network::Host).then(|| "127.0.0.1".to_owned()))
    }

    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError> {
        let options = CopyIn { replace: mode == CopyMode::Replace };
        self.sandbox().await.copy_in(source, target, options).await.map_err(copy_error)
    }

    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        self.sandbox().await.write_file(path, content, 0o755).await.map_err(copy_error)
    }

    async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
        let lost = |error: io::Error| EnvironmentError::Lost(error.to_string());
        let (stream, sent) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| lost(error.into()))?;
        let receive = Receive::new(&copy, LOG_LIMITS);
        let received = tokio::task::spawn_blocking(move || {
            let mut stream = io::BufReader::new(fs::File::from(stream));
            // What cut the stream off is told by the sandbox.
            receive.all(|| {
                let frame = read_frame(&mut stream, MAX_REPLY).ok().flatten();
                let reply = frame.map(|frame| decode_reply(&frame).map(|(_, reply)| reply));
                reply.unwrap_or(Ok(GuestReply::Done)).ok()
            })
        });
        let sandbox = self.sandbox().await;
        let copied = sandbox.copy_out(copy.source, copy.first, LOG_LIMITS, sent).await;
        let received = received.await.map_err(|error| lost(io::Error::other(error)))?;
        match received {
            Err(error @ ReceiveError::Host { .. }) => Err(EnvironmentError::Lost(chain(&error))),
            Ok(Received::Whole(skipped)) => {
                copied.map_err(copy_error)?;
                Ok(CopyReport { skipped })
            }
            Err(ReceiveError::Nonsense) | Ok(Received::Failed(_) | Received::Lost) => {
                copied.map_err(copy_error)?;
                Err(EnvironmentError::Lost("the sandbox sent files in a way that none does".to_owned()))
            }
        }
    }

    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        let read = self.sandbox().await.read_file(path, max_bytes).await.map_err(copy_error)?;
        Ok(match read {
            FileLookup::File(bytes) => FileRead::Content(bytes),
            FileLookup::Missing => FileRead::Missing,
            FileLookup::NotRegular => FileRead::NotRegular,
            FileLookup::TooLarge(size) => FileRead::TooLarge(size),
        })
    }

    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        for path in paths {
            self.sandbox().await.make_dir(path, SHARED_DIR_MODE, empty).await.map_err(copy_error)?;
        }
        Ok(())
    }

    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        self.sandbox().await.symlink(target, link).await.map_err(copy_error)
    }

    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        let (stdout, stdout_end) =
            output::pipe().map_err(|error| EnvironmentError::Lost(error.to_string()))?;
        let (stderr, stderr_end) =
            output::pipe().map_err(|error| EnvironmentError::Lost(error.to_string()))?;
        let request = SandboxCommand {
            nested: command.role == CommandRole::Agent,
            ..self.command(command.argv, command.env, [stdout_end, stderr_end])
        };
        let process = self.sandbox().await.exec(request).await.map_err(exec_error)?;
        let stdout = self.pumps.start(stdout, command.stdout);
        let stderr = self.pumps.start(stderr, command.stderr);
        let exit = wait(process, command.deadline).await;
        stdout.catch_up().await;
        stderr.catch_up().await;
        exit
    }

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| EnvironmentError::Lost(error.to_string()));
        let stdio = [copy(&terminal)?, copy(&terminal)?];
        let env = [("TERM".to_owned(), "xterm-256color".to_owned())];
        let request =
            SandboxCommand { stdin: Stdio::Fd(terminal), tty: true, ..self.command(argv, &env, stdio) };
        let process = self.sandbox().await.exec(request).await.map_err(exec_error)?;
        wait(process, None).await
    }

    async fn snapshot(&self, key: &str) -> Result<(), EnvironmentError> {
        let mut sandbox = self.sandbox.write().await;
        sandbox.snapshot(key).await.map_err(|error| EnvironmentError::Lost(chain(&error)))
    }

    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        let survivors = self.sandbox().await.survivors().await.map_err(exec_error)?;
        Ok(survivors.into_iter().map(|survivor| survivor.command).collect())
    }

    async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.sandbox().await.kill_all().await.map_err(exec_error)
    }

    fn cost(&self) -> f64 {
        0.0
    }

    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
        let ended = self
            .sandbox
            .into_inner()
            .destroy()
            .await
            .map_err(|error| EnvironmentError::Teardown(chain(&error)));
        self.pumps.finish().await;
        ended
    }

    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
        let place = self
            .sandbox
            .into_inner()
            .preserve()
            .await
            .map_err(|error| EnvironmentError::Teardown(chain(&error)))?;
        self.pumps.finish().await;
        Ok(place.display().to_string())
    }
}

/// Waits for a command, or for its deadline and the end of everything it started.
async fn wait(process: SandboxProcess, deadline: Option<Duration>) -> Result<Exit, EnvironmentError> {
    let mut awaited = Awaited(Some(process));
    let in_time = match deadline {
        Some(deadline) => tokio::time::timeout(deadline, awaited.wait()).await.ok(),
        None => Some(awaited.wait().await),
    };
    let Some(exit) = in_time else {
        awaited.kill().await?;
        let exit = match tokio::time::timeout(KILL_TIMEOUT, awaited.wait()).await {
            Ok(exit) => Some(exit?),
            Err(_) => None,
        };
        let oom_killed = exit.is_some_and(|exit| exit.oom_killed);
        return Ok(Exit { outcome: Outcome::TimedOut, oom_killed });
    };
    let exit = exit?;
    let outcome = match exit.status {
        ExitStatus::Code(code) => Outcome::Code(code),
        ExitStatus::Signal(signal) => Outcome::Signal(signal),
    };
    Ok(Exit { outcome, oom_killed: exit.oom_killed })
}

/// A command that is killed, with all that it started, when nobody waits for it any more.
struct Awaited(Option<SandboxProcess>);

impl Awaited {
    async fn wait(&mut self) -> Result<CommandExit, EnvironmentError> {
        let Some(process) = &mut self.0 else { return std::future::pending().await };
        let exit = process.wait().await;
        self.0 = None;
        exit.map_err(exec_error)
    }

    async fn kill(&self) -> Result<(), EnvironmentError> {
        match &self.0 {
            Some(process) => process.kill_tree().await.map_err(exec_error),
            None => Ok(()),
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let Some(process) = self.0.take() else { return };
        // Without a runtime everything ends with the engine.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { process.kill_tree().await });
        }
    }
}

/// Tells a `RUN` that the network failed from one that fails every time, by what it printed last.
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

/// A path that the agent has spoilt is a matter of the phase that needs it, not of the infrastructure.
fn copy_error(error: CopyError) -> EnvironmentError {
    match error {
        CopyError::Gone(_) | CopyError::Host { .. } => EnvironmentError::Lost(chain(&error)),
        CopyError::Inside { ref source, .. } if is_full(source) => EnvironmentError::DiskFull(chain(&error)),
        _ => EnvironmentError::Command(chain(&error)),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn exec_error(error: ExecError) -> EnvironmentError {
    match error {
        ExecError::Gone(_) => EnvironmentError::Lost(chain(&error)),
        _ => EnvironmentError::Command(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_settings::{Settings as _, docs::check_page};

    #[test]
    fn the_table_in_docs_has_what_the_schema_has() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/native.md");
        check_page(&page, &[("native", NativeKeys::keys())]).unwrap();
    }

    #[test]
    fn a_full_disk_is_told_from_a_path_that_was_spoilt() {
        let inside = |kind: io::ErrorKind| {
            copy_error(CopyError::Inside { step: "making".into(), path: "/logs".into(), source: kind.into() })
        };
        assert!(matches!(inside(io::ErrorKind::StorageFull), EnvironmentError::DiskFull(_)));
        assert!(matches!(inside(io::ErrorKind::QuotaExceeded), EnvironmentError::DiskFull(_)));
        assert!(matches!(inside(io::ErrorKind::NotADirectory), EnvironmentError::Command(_)));
    }

    #[test]
    fn wrong_settings_are_named() {
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
        2 settings are wrong
          `provider_config.network` cannot be `bridge`; it can be one of `host`, `none`
          `provider_config.pids` must be at least 1, not 0
        `provider_config.images.b` cannot be `guest`; it can be one of `host`
        ");
    }
}
