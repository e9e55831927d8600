//! The two traits that every provider implements, and their data types.

mod group;
mod offer;
mod start;

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use rollout_core::{
    quantity::{Bytes, Cpus},
    redact::Redactor,
};
pub use rollout_guest::FileChangeKind;

pub use self::{
    group::{GroupRequest, ServiceGroup},
    offer::{Demand, EnvironmentOffer, ResourceLimits},
    start::{ImageHealthcheck, ImageStartup, StartReport},
};

#[cfg(any(feature = "kubernetes", feature = "remote"))]
pub(crate) use self::start::with_reasons;
use crate::{
    compose::{BuildOptions, ContainerSettings},
    log::LogWriter,
    trouble,
};

/// Creates environments of one kind.
#[async_trait]
pub trait Provider: Send + Sync {
    /// The provider's name in job files and records.
    fn name(&self) -> &'static str;

    /// Its name with the settings of the job, for messages.
    fn description(&self) -> String {
        self.name().to_owned()
    }

    /// Notes about this provider on this machine, such as limits that it cannot enforce.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Finds reasons why an image cannot be prepared, without preparing it. Blocks.
    fn check_image(&self, context: &Path, docker_image: Option<&str>) -> Result<(), ImageProblem> {
        let _ = (context, docker_image);
        Ok(())
    }

    /// Why the provider cannot meet a demand of a task; `None` if it can.
    fn refusal(&self, demand: Demand) -> Option<String> {
        Some(format!("the {} provider does not support {demand}", self.name()))
    }

    /// The environment that the provider gives for these limits, and its price. An error says what is too large.
    fn offer(&self, limits: ResourceLimits) -> Result<EnvironmentOffer, String> {
        let _ = limits;
        Ok(EnvironmentOffer::default())
    }

    /// How long an environment lives at most if this time is needed, and what sets the limit; `None` if it lives as
    /// long as it is needed. A needed time of `None` means that it is not limited.
    fn time_limit(&self, needed: Option<Duration>) -> Option<(Duration, String)> {
        let _ = needed;
        None
    }

    /// Builds or fetches the task's image, once per content, also for concurrent requests.
    ///
    /// Dropping the future cancels the work, unless another trial waits for the same image.
    async fn prepare(&self, request: ImageRequest<'_>) -> Result<PreparedImage, EnvironmentError>;

    /// Starts an environment.
    async fn create(&self, spec: EnvironmentSpec<'_>) -> Result<Box<dyn Environment>, EnvironmentError>;

    /// Creates the networks and volumes of an environment with several containers.
    async fn create_group(
        &self,
        request: GroupRequest<'_>,
    ) -> Result<Box<dyn ServiceGroup>, EnvironmentError> {
        let _ = request;
        let reason = format!("the {} provider does not support {}", self.name(), Demand::Compose);
        Err(EnvironmentError::Refused(reason))
    }

    /// Finds the image that [`Environment::snapshot`] stored under a key.
    async fn snapshot(&self, key: &str) -> Result<Option<PreparedImage>, EnvironmentError>;

    /// Opens an environment that [`Environment::preserve`] kept, by the place that it returned.
    async fn reopen(&self, place: &str) -> Result<Box<dyn Environment>, EnvironmentError>;

    /// Removes the images that were made for the task in a directory, except for those that another task needs.
    /// Failures are logged.
    async fn discard_images(&self, task_dir: &Path) {
        let _ = task_dir;
    }

    /// Starts an environment with the files of one that [`Environment::preserve`] kept, which stays as it is.
    ///
    /// Processes are not kept. Only the settings of the specification's image are used.
    async fn create_from(
        &self,
        place: &str,
        spec: EnvironmentSpec<'_>,
    ) -> Result<Box<dyn Environment>, EnvironmentError> {
        let _ = (place, spec);
        let reason = format!("the {} provider cannot start an environment from a preserved one", self.name());
        Err(EnvironmentError::Refused(reason))
    }

    /// Waits until background removals are finished, so that a job does not end before. Returns a warning for each
    /// that failed.
    async fn settle(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Why an image cannot be prepared, found before trying.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageProblem {
    /// The provider has no image of this name.
    #[error("{0}")]
    Unknown(String),
    /// The Dockerfile cannot be built.
    #[error("{0}")]
    Dockerfile(String),
}

/// The job and trial that request an image or an environment, for labels.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The job's name.
    pub job: &'a str,
    /// The trial, as named in events.
    pub trial: &'a str,
}

/// A request for an image.
#[derive(Debug, Clone, Copy)]
pub struct ImageRequest<'a> {
    /// The requester.
    pub origin: Origin<'a>,
    /// The directory of the Dockerfile and the files it copies. Requests with the same context share one build.
    pub context: &'a Path,
    /// A prebuilt image, used instead of the Dockerfile.
    pub docker_image: Option<&'a str>,
    /// How the Dockerfile is built, if not in the usual way.
    pub build: Option<&'a BuildOptions>,
    /// Builds from the Dockerfile without cache, even if the task names an image.
    pub force_build: bool,
    /// The path of the build log, if something is built. Its directory may not exist yet.
    pub log: &'a Path,
}

impl ImageRequest<'_> {
    /// The error for an image that must be built although there is no Dockerfile at this path.
    pub fn no_dockerfile(&self, path: &Path) -> EnvironmentError {
        let path = path.display();
        EnvironmentError::Build(match self.docker_image {
            Some(image) => format!(
                "there is no {path}, which `force_build` needs: write one, or remove `force_build` to use {image}"
            ),
            None => format!(
                "there is no {path}: write one, or name an image as environment.docker_image in task.toml"
            ),
        })
    }
}

/// The definition of a task's environments.
#[derive(Debug, Clone)]
pub struct EnvironmentTemplate {
    /// The name of the task.
    pub name: String,
    /// The directory of the Dockerfile and the files it copies.
    pub context: PathBuf,
    /// A prebuilt image, used instead of the Dockerfile.
    pub docker_image: Option<String>,
    /// The timeout for preparing the image.
    pub build_timeout: Duration,
    /// Requested CPUs; `None` means no limit.
    pub cpus: Option<Cpus>,
    /// Requested memory; `None` means no limit.
    pub memory: Option<Bytes>,
    /// Requested storage; `None` means no limit.
    pub storage: Option<Bytes>,
}

/// An image that can be started.
#[derive(Debug, Clone)]
pub struct PreparedImage {
    /// Identifies the image for [`Provider::create`] and for the record, by content where possible.
    pub reference: String,
}

/// The specification of an environment to start.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentSpec<'a> {
    /// The requester.
    pub origin: Origin<'a>,
    /// The image to start.
    pub image: &'a PreparedImage,
    /// A readable name, unique among the running environments of this process.
    pub name: &'a str,
    /// Requested CPUs; `None` means no limit.
    pub cpus: Option<Cpus>,
    /// Requested memory; `None` means no limit.
    pub memory: Option<Bytes>,
    /// Requested storage; `None` means no limit.
    pub storage: Option<Bytes>,
    /// Requested GPUs.
    pub gpus: u64,
    /// The directory in which commands start, created if it is missing; `None` means the image's.
    pub workdir: Option<&'a str>,
    /// Whether the environment has no network, whatever the settings of the provider are.
    pub no_network: bool,
    /// Names of other hosts, with their addresses, that resolve inside.
    pub hosts: &'a [(String, String)],
    /// Directories that the verifier's commands and file operations see separately, empty at first, and that
    /// the agent's processes cannot reach, if the provider supports it.
    pub private_dirs: &'a [&'a str],
    /// Settings of a container in a [group](ServiceGroup).
    pub container: Option<&'a ContainerSettings>,
    /// How long it is needed at most, from its start; `None` if that is not limited.
    pub time: Option<Duration>,
    /// Receives what the environment waits for while it starts.
    pub waits: Option<&'a dyn StartReport>,
}

impl<'a> EnvironmentSpec<'a> {
    /// An environment without limits, with the settings of its image.
    pub fn new(origin: Origin<'a>, image: &'a PreparedImage, name: &'a str) -> Self {
        Self {
            origin,
            image,
            name,
            cpus: None,
            memory: None,
            storage: None,
            gpus: 0,
            workdir: None,
            no_network: false,
            hosts: &[],
            private_dirs: &[],
            container: None,
            time: None,
            waits: None,
        }
    }
}

/// The users of commands, as `name|uid[:group|gid]`; `None` means the image's user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandUsers {
    /// The user of the agent's commands.
    pub agent: Option<String>,
    /// The user of the verifier's commands.
    pub verifier: Option<String>,
}

impl CommandUsers {
    /// The user of commands of a role.
    pub fn of(&self, role: CommandRole) -> Option<&str> {
        match role {
            CommandRole::Agent => self.agent.as_deref(),
            CommandRole::Verifier => self.verifier.as_deref(),
        }
    }
}

/// A running container.
///
/// Paths inside are absolute and resolved inside, so links inside cannot reach the host.
#[async_trait]
pub trait Environment: Send + Sync {
    /// The provider's identifier, for messages and for `attach`.
    fn id(&self) -> &str;

    /// Its network and the limits that are enforced.
    fn facts(&self) -> Facts;

    /// Whether the agent's processes can reach neither the private directories nor the verifier's processes.
    fn isolates_verifier(&self) -> bool {
        false
    }

    /// The directory in which commands start.
    fn workdir(&self) -> &str {
        "/"
    }

    /// The programs that its image wants to be started. No provider starts them by itself.
    fn startup(&self) -> ImageStartup {
        ImageStartup::default()
    }

    /// Sets the users of later commands.
    fn set_users(&self, users: CommandUsers) -> Result<(), EnvironmentError> {
        if users == CommandUsers::default() {
            return Ok(());
        }
        let reason = "this provider cannot run commands as another user than the image's";
        Err(EnvironmentError::Command(reason.to_owned()))
    }

    /// Takes the network away, or gives it back. Loopback stays.
    async fn set_network(&self, connected: bool) -> Result<(), EnvironmentError> {
        let _ = connected;
        let reason = "this provider cannot change the network of a running environment";
        Err(EnvironmentError::Command(reason.to_owned()))
    }

    /// The address for other environments of the same provider; `None` if they cannot reach it.
    async fn address(&self) -> Result<Option<String>, EnvironmentError> {
        Ok(None)
    }

    /// Copies a host file, or the content of a host directory, to a path inside.
    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError>;

    /// Writes an executable file inside, and creates its directory.
    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError>;

    /// Copies the content of a directory inside into a host directory.
    ///
    /// Existing files on the host are kept. Entries that cannot be copied safely are skipped and reported; a
    /// file that is too long loses its middle. Secrets are masked before anything is written.
    async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError>;

    /// Reads a regular file inside, without following a link as the last component.
    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError>;

    /// Creates missing directories. With `empty`, existing content is removed first.
    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError>;

    /// Creates a link inside, unless a file or directory exists there.
    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError>;

    /// Runs a command to its end or its deadline. At the deadline, or when the future is dropped, all its
    /// processes are killed.
    ///
    /// Output is streamed to the writers; processes that outlive the command keep writing to them.
    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError>;

    /// Runs a command on a terminal for the user. The descriptor is the terminal's inner side.
    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError>;

    /// Offers a TCP service of the host inside: from now on, a connection to the returned port of `127.0.0.1`
    /// inside is carried to the service, until the environment is gone. No network is needed inside.
    ///
    /// If the service refuses, the connection inside is reset. A limited number of connections is open at a
    /// time; further ones wait.
    async fn offer(&self, service: SocketAddr) -> Result<u16, EnvironmentError> {
        let _ = service;
        Err(EnvironmentError::Command(
            "this provider cannot offer services of the host inside its environments".to_owned(),
        ))
    }

    /// Stores the current files as an image that [`Provider::snapshot`] finds by the key. An existing image of
    /// the key is kept.
    async fn snapshot(&self, key: &str) -> Result<(), EnvironmentError>;

    /// The commands of the running processes; if the verifier is isolated, only those of the agent.
    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError>;

    /// Kills every process inside, or only the agent's if the verifier is isolated, also processes that keep
    /// forking.
    async fn kill_all(&self) -> Result<(), EnvironmentError>;

    /// Stops every process inside until [`watch`](Self::watch), so that files can be written unnoticed.
    ///
    /// `false` if the provider does not support it.
    async fn hold(&self) -> Result<bool, EnvironmentError> {
        Ok(false)
    }

    /// Watches the files that are in a directory now, and others that may appear, and continues processes that
    /// were [held](Self::hold).
    ///
    /// `false` if the provider does not support it: then processes that the agent left running are killed before
    /// the tests.
    async fn watch(&self, tree: &str, files: &[&str]) -> Result<bool, EnvironmentError> {
        let _ = (tree, files);
        Ok(false)
    }

    /// Returns the changes to the [watched](Self::watch) files by any process. Ends the watch.
    async fn changes(&self) -> Result<Vec<FileChange>, EnvironmentError> {
        Ok(Vec::new())
    }

    /// Its cost so far, in US dollars.
    fn cost(&self) -> f64;

    /// The command that removes it if it is left behind.
    fn clean_command(&self) -> String {
        "rollout clean".to_owned()
    }

    /// Stops it and removes everything it used.
    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError>;

    /// Keeps it for the user, and returns its place.
    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError>;
}

/// The facts about an environment that a result records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its network.
    pub network: String,
    /// The limits that are enforced.
    pub enforced: serde_json::Value,
}

/// Whether a copy adds to existing files or replaces them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMode {
    /// Adds to existing files.
    Merge,
    /// Removes existing files first.
    Replace,
}

/// A copy out of an environment.
#[derive(Debug, Clone, Copy)]
pub struct CopyOut<'a> {
    /// The directory inside.
    pub source: &'a str,
    /// The directory of the host.
    pub target: &'a Path,
    /// A direct subdirectory of `source` that is copied before the rest, with its own limits, so that other
    /// files cannot use them up.
    pub first: Option<&'a str>,
    /// Masks secrets, also in names.
    pub redactor: &'a Redactor,
}

/// The entries that a copy out of an environment skipped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopyReport {
    /// Skipped paths, each with the reason.
    pub skipped: Vec<String>,
}

/// What was found at the path of a file to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRead {
    /// The content of a regular file.
    Content(Vec<u8>),
    /// The path does not exist.
    Missing,
    /// A link, directory, pipe or device.
    NotRegular,
    /// A regular file that is larger than allowed, with its size.
    TooLarge(u64),
}

/// A change to a watched file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The file.
    pub path: String,
    /// The kind of change.
    pub kind: FileChangeKind,
    /// How often it happened.
    pub count: u32,
}

/// A command to run inside an environment.
pub struct Exec<'a> {
    /// Whether the agent or the verifier runs the command.
    pub role: CommandRole,
    /// The program and its arguments.
    pub argv: &'a [&'a str],
    /// Variables in addition to those of the image.
    pub env: &'a [(String, String)],
    /// The time after which the command and all its processes are killed; `None` means no deadline.
    pub deadline: Option<Duration>,
    /// Receives its standard output.
    pub stdout: LogWriter,
    /// Receives its standard error.
    pub stderr: LogWriter,
}

/// Who runs a command. A provider with nesting separates the agent's processes from the verifier's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandRole {
    /// The agent, or a tool that it uses.
    Agent,
    /// The verifier.
    Verifier,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The outcome.
    pub outcome: Outcome,
    /// Whether the memory limit killed a process of the environment meanwhile.
    pub oom_killed: bool,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The command exited with this code.
    Code(i32),
    /// The command was killed by this signal.
    Signal(i32),
    /// The deadline passed.
    TimedOut,
}

/// Errors of environments, classified by their meaning for a trial.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EnvironmentError {
    /// The image cannot be built; a retry would fail the same way.
    #[error("{0}")]
    Build(String),
    /// The build failed because of the network.
    #[error("{0}")]
    BuildNetwork(String),
    /// The image cannot be fetched.
    #[error("{0}")]
    Pull(String),
    /// The image is not available; a retry would fail the same way.
    #[error("{0}")]
    NoImage(String),
    /// The environment does not start.
    #[error("{0}")]
    Start(String),
    /// The environment cannot start with these settings; a retry would fail the same way.
    #[error("{0}")]
    Refused(String),
    /// The machine does not have the requested resources.
    #[error("{0}")]
    Resources(String),
    /// The disk of the environment is full. Space is freed when other environments end.
    #[error("{0}")]
    DiskFull(String),
    /// A command could not be started: a program, directory or user is missing inside.
    #[error("{0}")]
    Command(String),
    /// A transfer or call to a running environment failed, or the environment disappeared.
    #[error("{0}")]
    Lost(String),
    /// Processes inside ended the environment, for example by using up its memory. A retry would give the trial
    /// a second attempt.
    #[error("{0}")]
    Ended(String),
    /// The environment has lived for as long as it may. A retry would take as long, and cost as much.
    #[error("{0}")]
    TimeOver(String),
    /// It cannot be stopped or removed.
    #[error("{0}")]
    Teardown(String),
}

impl EnvironmentError {
    /// The error for a build that failed with this output: [`BuildNetwork`](Self::BuildNetwork) if the output
    /// shows a network failure, otherwise [`Build`](Self::Build).
    pub fn of_build(output: String) -> Self {
        if trouble::is_network_trouble(&output) { Self::BuildNetwork(output) } else { Self::Build(output) }
    }
}
