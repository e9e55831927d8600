//! What a job file says, after validation: the plain data that the rest of Rollout works from.

use std::{num::NonZeroU32, path::PathBuf};

use indexmap::IndexMap;

use super::{InteractionConfig, ModelAgentConfig};
use rollout_core::name::{AgentName, DatasetName, JobName};
use rollout_core::result::JobMetric;
use rollout_env::EnvironmentConfig;

/// A validated job. Its numbers are in range and its names are unique.
#[derive(Debug, Clone)]
pub struct JobConfig {
    /// The directory name under `jobs_dir`; a timestamp is chosen when the job starts if it is absent.
    pub name: Option<JobName>,
    /// Where job directories are made, relative to the working directory.
    pub jobs_dir: PathBuf,
    /// Attempts for each pair of agent and task.
    pub n_attempts: NonZeroU32,
    /// How many trials run at the same time.
    pub n_concurrent_trials: NonZeroU32,
    /// Scales every timeout; finite and positive.
    pub timeout_multiplier: f64,
    /// How infrastructure failures are retried.
    pub retry: RetryConfig,
    /// What goes to `rollout.log`.
    pub log_level: LogLevel,
    /// Writes records of the experiments and of each episode into `eval-log` of the job's directory.
    pub eval_log: bool,
    /// Where the instruction is put inside the environment; absolute.
    pub instruction_path: String,
    /// Where trials run.
    pub environment: EnvironmentConfig,
    /// How attempts are graded.
    pub verifier: VerifierConfig,
    /// What is computed over rewards while the job runs.
    pub metrics: Vec<JobMetric>,
    /// Who attempts the tasks; never empty.
    pub agents: Vec<AgentConfig>,
    /// What is attempted; never empty.
    pub datasets: Vec<DatasetConfig>,
}

impl Default for JobConfig {
    /// A job without a file: every setting has its default, and there is nobody and nothing yet.
    fn default() -> Self {
        Self {
            name: None,
            jobs_dir: PathBuf::from("jobs"),
            n_attempts: NonZeroU32::MIN,
            n_concurrent_trials: NonZeroU32::new(4).expect("4 is not zero"),
            timeout_multiplier: 1.0,
            retry: RetryConfig::default(),
            log_level: LogLevel::default(),
            eval_log: false,
            instruction_path: "/tmp/instruction.md".to_owned(),
            environment: EnvironmentConfig::default(),
            verifier: VerifierConfig::default(),
            metrics: Vec::new(),
            agents: Vec::new(),
            datasets: Vec::new(),
        }
    }
}

impl JobConfig {
    /// Whether a trial of the job may need an environment, and so the job a provider.
    pub fn needs_environment(&self) -> bool {
        self.datasets.iter().any(|dataset| match &dataset.source {
            DatasetSource::Interaction(interaction) => interaction.environment.is_some(),
            DatasetSource::Path(_) | DatasetSource::Registry { .. } => true,
        })
    }
}

/// Backoff for failures of the infrastructure, never of agents or verifiers.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryConfig {
    /// Tries in all, the first one included.
    pub max_attempts: NonZeroU32,
    /// Milliseconds before the second try.
    pub initial_delay_ms: u64,
    /// The longest wait between two tries, in milliseconds.
    pub max_delay_ms: u64,
    /// Growth of the wait from one try to the next; at least 1.
    pub multiplier: f64,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            max_attempts: NonZeroU32::new(3).expect("3 is not zero"),
            initial_delay_ms: 1000,
            max_delay_ms: 30_000,
            multiplier: 2.0,
        }
    }
}

/// The least severe message that reaches `rollout.log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Only failures of Rollout itself.
    #[default]
    Error,
    /// Also what may surprise.
    Warn,
    /// Also what happens to each trial.
    Info,
    /// Also each call to an environment.
    Debug,
    /// Everything.
    Trace,
}

/// How attempts are graded: the `verifier` section, with `compat` applied.
#[derive(Debug, Clone, Default)]
pub struct VerifierConfig {
    /// Replaces the task's verifier timeout, in seconds; positive.
    pub override_timeout_sec: Option<f64>,
    /// The ceiling of verifier timeouts, in seconds; positive.
    pub max_timeout_sec: Option<f64>,
    /// Ends trials after the agent, without a reward.
    pub disable: bool,
    /// Grades also when the agent's execute script failed or timed out.
    pub after_agent_error: AfterAgentError,
    /// Reads the reward also when test.sh exits non-zero.
    pub ignore_exit_code: bool,
    /// What happens to processes the agent left behind when verification starts.
    pub agent_processes: AgentProcesses,
    /// Variables for test.sh; they win over the task's.
    pub env: Env,
}

/// Whether a failed agent is graded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterAgentError {
    /// The verifier does not run.
    #[default]
    Skip,
    /// The verifier runs; error and reward are both recorded.
    Run,
}

/// What happens to processes the agent left running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgentProcesses {
    /// They stay: a service is part of many solutions.
    #[default]
    Keep,
    /// They are ended before test.sh starts.
    Kill,
}

/// One entry of `agents`.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Names the agent in results and directories.
    pub name: AgentName,
    /// For readers.
    pub description: Option<String>,
    /// Variables of its scripts, and of nothing else.
    pub env: Env,
    /// What it does.
    pub kind: AgentKind,
}

/// What an agent does.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentKind {
    /// Runs the task's own solution.
    Oracle,
    /// Does nothing, so a task that rewards it is broken.
    Nop,
    /// Runs shell scripts.
    Script {
        /// Installs the agent; the phase is left out when absent.
        install: Option<String>,
        /// Attempts the task.
        execute: String,
    },
    /// Asks a model.
    Model(Box<ModelAgentConfig>),
}

/// Variables in the order they were written.
pub type Env = IndexMap<String, EnvValue>;

/// The value of a variable after `${VAR}` expansion.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvValue {
    /// What scripts get.
    pub value: String,
    /// Whether the value must not appear in any output.
    pub secret: bool,
}

impl std::fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.secret { "<secret>" } else { &self.value })
    }
}

/// One entry of `datasets`.
#[derive(Debug, Clone)]
pub struct DatasetConfig {
    /// Names the dataset in results and directories. For a path: its `name:`, else the directory's base name.
    pub name: DatasetName,
    /// Where its tasks come from.
    pub source: DatasetSource,
}

/// Where the tasks of a dataset come from.
#[derive(Debug, Clone, PartialEq)]
pub enum DatasetSource {
    /// A directory of tasks, or a single task.
    Path(PathBuf),
    /// An entry of a registry file.
    Registry {
        /// Where the registry lies.
        registry: RegistryLocation,
        /// The name of the dataset in the registry.
        dataset: String,
        /// The version to take; the first entry of that name when absent.
        version: Option<String>,
    },
    /// Examples that a model is led through.
    Interaction(Box<InteractionConfig>),
}

/// Where a registry file lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RegistryLocation {
    /// On this machine.
    Path(PathBuf),
    /// Behind an `http` or `https` URL.
    Url(String),
}
