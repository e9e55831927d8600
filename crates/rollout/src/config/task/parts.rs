//! The parts of a task.toml that several sections have.

use super::{CPUS, MEMORY, VerifierEnvironment};
use rollout_core::{
    hosts::HostList,
    quantity::{Bytes, Cpus},
};
use rollout_env::DEFAULT_STORAGE;

/// The word for the network of an environment, or of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum NetworkMode {
    /// That of the job.
    Public,
    /// Loopback only.
    NoNetwork,
    /// Some hosts only.
    Allowlist,
}

pub(super) const NETWORK_MODES: [(&str, NetworkMode); 3] = [
    ("public", NetworkMode::Public),
    ("no-network", NetworkMode::NoNetwork),
    ("allowlist", NetworkMode::Allowlist),
];

/// The network of an environment, or of a phase, with the hosts of an allow-list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkPolicy {
    /// That of the job.
    Public,
    /// Loopback only.
    NoNetwork,
    /// These hosts only.
    Allowlist(HostList),
}

/// The network that a section asks for, by its keys.
pub(super) fn network(
    mode: Option<NetworkMode>,
    allowed_hosts: &[String],
    allow_internet: bool,
) -> Option<NetworkPolicy> {
    let listed = (!allowed_hosts.is_empty()).then_some(NetworkMode::Allowlist);
    let mode = mode.or(listed).or((!allow_internet).then_some(NetworkMode::NoNetwork));
    Some(match mode? {
        NetworkMode::Public => NetworkPolicy::Public,
        NetworkMode::NoNetwork => NetworkPolicy::NoNetwork,
        // Entries that are none were reported when they were read.
        NetworkMode::Allowlist => {
            NetworkPolicy::Allowlist(HostList::new(allowed_hosts.iter().filter_map(|host| host.parse().ok())))
        }
    })
}

/// An amount of memory or storage, as Rollout and as Harbor read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskAmount {
    /// `2G` is a power of ten.
    pub bytes: Bytes,
    /// `2G` is a power of 1024.
    pub binary: Bytes,
}

/// The limits of an environment. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceBounds {
    /// CPUs.
    pub cpus: Option<Cpus>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// Storage.
    pub storage: Option<Bytes>,
}

impl ResourceBounds {
    /// The limits that a section sets, by the rules of Harbor or by those of Rollout.
    pub(super) fn new(
        cpus: Option<Cpus>,
        memory: Option<TaskAmount>,
        storage: Option<TaskAmount>,
        is_harbor: bool,
    ) -> Self {
        if is_harbor {
            let binary = |amount: TaskAmount| amount.binary;
            Self { cpus, memory: memory.map(binary), storage: storage.map(binary) }
        } else {
            Self {
                cpus: Some(cpus.unwrap_or(CPUS)),
                memory: Some(memory.map_or(MEMORY, |memory| memory.bytes)),
                storage: Some(storage.map_or(DEFAULT_STORAGE, |storage| storage.bytes)),
            }
        }
    }
}

/// A separate environment for the tests, with settings of its own. Those of the task's environment do not apply to it.
#[derive(Debug, Clone, PartialEq)]
pub struct TestsEnvironment {
    /// An image that has the tests in it.
    pub docker_image: Option<String>,
    /// CPUs, if they are set.
    pub cpus: Option<Cpus>,
    /// Memory, if it is set.
    pub memory: Option<TaskAmount>,
    /// Storage, if it is set.
    pub storage: Option<TaskAmount>,
    /// Variables for test.sh, as written.
    pub env: Vec<(String, String)>,
    /// The directory in which test.sh starts.
    pub workdir: Option<String>,
    /// The network.
    pub network: Option<NetworkPolicy>,
    /// Keys that are not supported.
    pub unsupported: Vec<String>,
}

impl TestsEnvironment {
    /// Its limits, by the rules of Harbor or by those of Rollout.
    pub fn bounds(&self, is_harbor: bool) -> ResourceBounds {
        ResourceBounds::new(self.cpus, self.memory, self.storage, is_harbor)
    }
}

/// A file or directory that the agent leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactConfig {
    /// Its path in the environment.
    pub source: String,
    /// Its path below `artifacts/` of the trial; that of the source when absent.
    pub destination: Option<String>,
    /// Names and patterns that are not copied.
    pub exclude: Vec<String>,
    /// The service of a compose file that contains the artifact.
    pub service: Option<String>,
}

impl ArtifactConfig {
    /// A path without any options.
    pub fn path(source: &str) -> Self {
        Self { source: source.to_owned(), destination: None, exclude: Vec::new(), service: None }
    }
}

/// A command that prepares artifacts.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectConfig {
    /// The command, for `bash -c`.
    pub command: String,
    /// The service of a compose file.
    pub service: Option<String>,
    /// Seconds that the command may take.
    pub timeout_sec: f64,
    /// The user that runs the command.
    pub user: Option<String>,
}

/// A command that must succeed before the agent starts.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthcheckConfig {
    /// The command, for `bash -c`.
    pub command: String,
    /// Seconds between two runs.
    pub interval_sec: f64,
    /// Seconds that the command may take.
    pub timeout_sec: f64,
    /// Seconds after the start in which failures do not count.
    pub start_period_sec: f64,
    /// Seconds between two runs in the start period.
    pub start_interval_sec: f64,
    /// How many failures in a row make the environment unusable.
    pub retries: u64,
}

/// How the rewards of steps become the reward of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepRewards {
    /// The mean over the steps that were attempted.
    Mean,
    /// That of the last step.
    Final,
}

pub(super) const STEP_REWARDS: [(&str, StepRewards); 2] =
    [("mean", StepRewards::Mean), ("final", StepRewards::Final)];

/// A step of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct StepConfig {
    /// The name of its directory below `steps/`.
    pub name: String,
    /// The lowest rewards, by name, with which the next step starts.
    pub min_reward: Vec<(String, f64)>,
    /// More artifacts.
    pub artifacts: Vec<ArtifactConfig>,
    /// Seconds that the agent may take.
    pub agent_timeout_sec: Option<f64>,
    /// The user that runs the agent.
    pub agent_user: Option<String>,
    /// The network while the agent works.
    pub agent_network: Option<NetworkPolicy>,
    /// Seconds that test.sh may take.
    pub verifier_timeout_sec: f64,
    /// Where test.sh runs.
    pub verifier_environment: Option<VerifierEnvironment>,
    /// The separate environment of test.sh.
    pub verifier_own_environment: Option<TestsEnvironment>,
    /// More variables for test.sh, as written.
    pub verifier_env: Vec<(String, String)>,
    /// The user that runs test.sh.
    pub verifier_user: Option<String>,
    /// The network while test.sh runs.
    pub verifier_network: Option<NetworkPolicy>,
    /// More commands that prepare artifacts.
    pub collect: Vec<CollectConfig>,
    /// A command that must succeed before the agent starts.
    pub healthcheck: Option<HealthcheckConfig>,
}
