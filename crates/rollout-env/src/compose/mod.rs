//! Compose files of tasks: several containers that work together, of which `main` is the agent's environment.
//!
//! [`ComposeFile::parse`] reads a file, expands its variables, and reports all problems with their positions. A
//! key that changes what the containers do and is not supported is a problem; keys without an effect on them
//! are ignored.

mod interpolate;
mod keys;
mod order;
mod parse;
mod service;
mod values;

use std::{path::PathBuf, time::Duration};

use rollout_settings::EnvValue;

pub use parse::ComposeSource;

/// The name of the service that is the agent's environment.
pub const MAIN_SERVICE: &str = "main";

/// A compose file.
#[derive(Debug, Clone)]
pub struct ComposeFile {
    /// Its services, in an order in which they can be started: `main` is last.
    pub services: Vec<ComposeService>,
    /// Its networks.
    pub networks: Vec<ComposeNetwork>,
    /// The names of its volumes.
    pub volumes: Vec<String>,
    /// Values of variables that must not appear in any output.
    pub secrets: Vec<String>,
}

/// A network of a compose file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposeNetwork {
    /// Its name.
    pub name: String,
    /// Whether it has no connection to other networks.
    pub internal: bool,
}

/// A service of a compose file.
#[derive(Debug, Clone)]
pub struct ComposeService {
    /// Its name, by which other services reach it.
    pub name: String,
    /// The image to use, unless it is built.
    pub image: Option<String>,
    /// How its image is built.
    pub build: Option<ServiceBuild>,
    /// The program and its arguments, instead of the image's `CMD`.
    pub command: Option<Vec<String>>,
    /// The program that runs the command, instead of the image's `ENTRYPOINT`.
    pub entrypoint: Option<Vec<String>>,
    /// Its variables.
    pub environment: Vec<(String, EnvValue)>,
    /// Its networks, with its other names in each.
    pub networks: Vec<(String, Vec<String>)>,
    /// The services that must be ready before it starts.
    pub depends_on: Vec<Dependency>,
    /// How to check that it is ready.
    pub healthcheck: HealthcheckSource,
    /// Files and directories from outside of its image.
    pub mounts: Vec<ServiceMount>,
    /// What happens when its program ends.
    pub restart: RestartPolicy,
    /// Whether its program may end at once, because it waits for input on a terminal that it does not get.
    pub is_interactive: bool,
    /// Settings of its container.
    pub container: ContainerSettings,
}

/// How the image of a service is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceBuild {
    /// The directory with the files that the Dockerfile copies.
    pub context: PathBuf,
    /// Everything else.
    pub options: BuildOptions,
}

/// How a Dockerfile is built, in addition to its files.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct BuildOptions {
    /// The path of the Dockerfile in its context; `Dockerfile` if absent.
    pub dockerfile: Option<String>,
    /// The text of the Dockerfile, instead of a file.
    pub inline: Option<String>,
    /// Values of `ARG`.
    pub args: Vec<(String, String)>,
    /// The stage to build, if not the last.
    pub target: Option<String>,
}

/// A service that must be ready before another one starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// Its name.
    pub service: String,
    /// When it is ready.
    pub condition: DependencyCondition,
}

/// When a service is ready for one that depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyCondition {
    /// When its program runs.
    Started,
    /// When its health check succeeds.
    Healthy,
    /// When its program has ended with code 0.
    Completed,
}

/// Where the health check of a service comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthcheckSource {
    /// The image has one, or not.
    Image,
    /// The file disables it.
    Disabled,
    /// The file has one.
    File(ServiceHealthcheck),
}

/// The health check of a service. What is absent is the image's, or the engine's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceHealthcheck {
    /// The program and its arguments.
    pub argv: Option<Vec<String>>,
    /// The time between two runs.
    pub interval: Option<Duration>,
    /// The time that a run may take.
    pub timeout: Option<Duration>,
    /// The time after the start in which failures do not count.
    pub start_period: Option<Duration>,
    /// How many failures in a row make the service unhealthy.
    pub retries: Option<u64>,
}

/// A mount of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceMount {
    /// What is mounted.
    pub source: MountSource,
    /// The path inside.
    pub target: String,
    /// Whether it cannot be written to.
    pub read_only: bool,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A volume of the file.
    Volume(String),
    /// A file or directory of the task, as an absolute path.
    Files(PathBuf),
}

/// What happens when the program of a service ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Nothing.
    Never,
    /// It is started again.
    Always,
    /// It is started again if it failed, this often at most.
    OnFailure(Option<u64>),
}

/// Settings of a container that an engine applies.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContainerSettings {
    /// Variables of its programs.
    pub env: Vec<(String, String)>,
    /// The engine's networks, with its names in each.
    pub networks: Vec<(String, Vec<String>)>,
    /// The engine's volumes, with their paths inside, and whether they are read-only.
    pub volumes: Vec<(String, String, bool)>,
    /// The user of its programs; the image's if absent.
    pub user: Option<String>,
    /// The directory in which its programs start; the image's if absent.
    pub working_dir: Option<String>,
    /// Its host name.
    pub hostname: Option<String>,
    /// Added capabilities.
    pub cap_add: Vec<String>,
    /// Removed capabilities.
    pub cap_drop: Vec<String>,
    /// The bytes of `/dev/shm`.
    pub shm_bytes: Option<u64>,
    /// Paths of file systems in memory, with their options.
    pub tmpfs: Vec<(String, String)>,
    /// Names and addresses for `/etc/hosts`.
    pub extra_hosts: Vec<String>,
    /// Name servers.
    pub dns: Vec<String>,
    /// Kernel settings.
    pub sysctls: Vec<(String, String)>,
    /// Resource limits: name, soft, hard.
    pub ulimits: Vec<(String, i64, i64)>,
    /// More groups of its user.
    pub group_add: Vec<String>,
    /// Whether its own files cannot be written to.
    pub read_only: bool,
    /// Whether it has all privileges on the engine's machine.
    pub privileged: bool,
    /// Whether its programs cannot gain privileges, for example with set-user-ID programs.
    pub no_new_privileges: bool,
    /// Its platform, as `linux/amd64`, which must be the engine's.
    pub platform: Option<String>,
    /// The bytes of its memory.
    pub memory_bytes: Option<u64>,
    /// Thousandths of a CPU.
    pub cpu_millis: Option<u64>,
    /// The maximum number of its processes.
    pub pids: Option<u64>,
}

impl ComposeFile {
    /// The service that is the agent's environment.
    pub fn main(&self) -> Option<&ComposeService> {
        self.services.iter().find(|service| service.name == MAIN_SERVICE)
    }

    /// The other services, in the order in which they can be started.
    pub fn sidecars(&self) -> impl Iterator<Item = &ComposeService> {
        self.services.iter().filter(|service| service.name != MAIN_SERVICE)
    }

    /// Whether a provider with single containers can run it: it has only `main`, with an image, variables and a
    /// directory.
    pub fn is_plain(&self) -> bool {
        let plain_build =
            |build: &ServiceBuild| build.options == BuildOptions::default() && build.context.is_dir();
        self.sidecars().next().is_none()
            && self.main().is_none_or(|main| {
                let container = ContainerSettings {
                    working_dir: main.container.working_dir.clone(),
                    ..Default::default()
                };
                main.build.as_ref().is_none_or(plain_build)
                    && main.mounts.is_empty()
                    && !matches!(main.healthcheck, HealthcheckSource::File(_))
                    && main.container == container
            })
    }

    /// A service that could take over the engine's machine.
    pub fn privileged(&self) -> Option<&str> {
        let service = self.services.iter().find(|service| service.container.is_powerful())?;
        Some(&service.name)
    }
}

/// Capabilities with which a container can take over the engine's machine.
const POWERFUL: [&str; 8] =
    ["ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "DAC_READ_SEARCH", "BPF", "MAC_ADMIN"];

impl ContainerSettings {
    /// Whether the container could take over the engine's machine.
    pub(crate) fn is_powerful(&self) -> bool {
        let is_capability = |name: &String| {
            let name = name.to_uppercase();
            POWERFUL.contains(&name.strip_prefix("CAP_").unwrap_or(&name))
        };
        self.privileged || self.cap_add.iter().any(is_capability)
    }
}
