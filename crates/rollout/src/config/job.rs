//! The settings of a job file, but for those of agents and datasets, which have modules of their own.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use serde_json::{Value as Json, json};

use super::{AgentConfig, DatasetConfig, DatasetSource, agent, dataset};
use rollout_core::{name::JobName, result::JobMetric};
use rollout_env::{EnvironmentConfig, EnvironmentKeys};
use rollout_settings::{
    Env, Form, Section, Settings as _,
    declare::entry,
    diagnostic::{Code, quoted},
    forms::{count, env, filled, filled_list, flag, list, number, section, texts, timeout, whole, word},
    section::above_zero,
};

/// Growth beyond this is a slip of the pen, and could overflow the clocks.
const MAX_MULTIPLIER: f64 = 1e6;

/// A day between two tries.
const MAX_DELAY_MS: u64 = 86_400_000;

rollout_settings::settings! {
    /// A job: agents that attempt the tasks of datasets.
    ///
    /// Its numbers are in range and its names are unique.
    #[derive(Debug, Clone)]
    pub struct JobConfig {
        /// The directory of the results in `jobs_dir`. A timestamp when absent.
        ///
        /// If it exists, the job is refused.
        pub name: Option<JobName> = job_name().optional().unset("time of the start").unhashed(),
        /// Where job directories are made, relative to the working directory.
        pub jobs_dir: PathBuf = filled()
            .kind("path")
            .refine(|schema| schema["minLength"] = json!(1))
            .default("jobs".to_owned())
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .unhashed(),
        /// The directory that relative paths of this file start from. That of the file when absent.
        ///
        /// `config.json` of a job has it, so that the copy can be run from anywhere.
        pub base_dir: Option<PathBuf> = filled()
            .kind("path")
            .refine(|schema| schema["minLength"] = json!(1))
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .optional()
            .unset("the directory of the file")
            .unhashed(),
        /// Attempts for each pair of agent and task.
        pub n_attempts: NonZeroU32 = count(1),
        /// How many trials run at the same time.
        pub n_concurrent_trials: NonZeroU32 = count(4).unhashed(),
        /// Scales every timeout, those of this file too.
        pub timeout_multiplier: f64 = number(above_zero(MAX_MULTIPLIER)).default(1.0),
        /// How failures of the infrastructure are retried; those of agents and verifiers never are.
        pub retry: RetryConfig = section::<RetryConfig>().check(delays_in_order).unset("see below"),
        /// What goes to rollout.log.
        ///
        /// It goes to standard error too where no live display is shown. The variable `ROLLOUT_LOG` replaces it, as in
        /// `rollout=debug`.
        pub log_level: LogLevel = word(&LOG_LEVELS).default(LogLevel::Error).unhashed(),
        /// Writes a record of each episode into `eval-log` of the job's directory as it ends.
        ///
        /// See [eval logs](eval-log.md).
        pub eval_log: bool = flag(false).unhashed(),
        /// Where the instruction is put in the environment.
        pub instruction_path: String = filled()
            .kind("absolute path")
            .refine(|schema| schema["pattern"] = json!("^/"))
            .check(|path, section, key| check_instruction_path(path, section, key))
            .default("/tmp/instruction.md".to_owned()),
        /// Whose rules of grading are followed: `harbor` grades after a failed agent and ignores the exit code of test.sh,
        /// unless `verifier` says otherwise.
        ///
        /// See [task sets made for Harbor](#task-sets-made-for-harbor).
        pub compat: Option<Compat> = word(&COMPAT).optional(),
        /// Where trials run.
        pub environment: EnvironmentConfig = section::<EnvironmentKeys>().unset("see below"),
        /// How attempts are graded.
        pub verifier: VerifierConfig = section::<VerifierConfig>().unset("see below"),
        /// What is computed over rewards while the job runs.
        ///
        /// They are shown by agent, in the display and in the job's `result.json`.
        pub metrics: Vec<JobMetric> = list(entry::<MetricKeys>, |section, key| Some(metrics(section, key)))
            .recorded(|metrics, _| metrics.iter().map(|metric| json!({ "type": metric })).collect())
            .kind("list of `type: sum|min|max|mean`")
            .unset("none"),
        /// Who attempts the tasks.
        pub agents: Vec<AgentConfig> = filled_list(agent::schema, |section, key| Some(agent::read(section, key)))
            .recorded(|agents, written| {
                agents.iter().zip(written.items()).map(|(config, written)| agent::record(config, written)).collect()
            })
            .required(agent::REQUIRED),
        /// What is attempted.
        pub datasets: Vec<DatasetConfig> = filled_list(dataset::schema, |section, key| Some(dataset::read(section, key)))
            .recorded(|datasets, written| {
                datasets.iter().zip(written.items()).map(|(config, written)| dataset::record(config, written)).collect()
            })
            .required(dataset::REQUIRED),
    }
}

impl Default for JobConfig {
    /// A job without a file: every setting has its default, and there is nobody and nothing yet.
    fn default() -> Self {
        Self::defaults().expect("every setting of a job has a default")
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

fn job_name() -> Form<JobName> {
    Form::new(
        "name",
        || json!({ "type": "string" }),
        |section, key| {
            let name = section.string(key)?;
            JobName::new(name)
                .map_err(|error| {
                    let message = format!("{} cannot be the name of a job: {error}", quoted(name));
                    section.reader.error(section.value_span(key), Code::InvalidName, message);
                })
                .ok()
        },
    )
}

fn check_instruction_path(path: &str, section: &Section<'_>, key: &str) {
    let plain = path.starts_with('/')
        && path.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."))
        && !path.contains(char::is_control);
    if !plain {
        let message = format!("{} cannot hold the instruction", quoted(path));
        let hint = "write the absolute path of a file in the environment, such as `/tmp/instruction.md`";
        section.invalid_with_hint(key, message, hint);
    }
}

rollout_settings::settings! {
    /// Backoff for failures of the infrastructure, never of agents or verifiers.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RetryConfig {
        /// Tries in all, the first one included.
        ///
        /// 1 means no retry.
        pub max_attempts: NonZeroU32 = count(3),
        /// Milliseconds before the second try.
        pub initial_delay_ms: u64 = whole(0..=MAX_DELAY_MS).default(1000),
        /// The longest wait between two tries.
        pub max_delay_ms: u64 = whole(0..=MAX_DELAY_MS).default(30_000),
        /// Growth of the wait from one try to the next.
        pub multiplier: f64 = number(1.0..=MAX_MULTIPLIER).default(2.0),
    }
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of retries has a default")
    }
}

impl RetryConfig {
    /// How long to wait after a failed try, counted from 1; none when it was the last one.
    pub fn delay_after(&self, failed_try: u32) -> Option<Duration> {
        if failed_try >= self.max_attempts.get() {
            return None;
        }
        let factor = self.multiplier.powi(failed_try as i32 - 1);
        let millis = (self.initial_delay_ms as f64 * factor).min(self.max_delay_ms as f64);
        Some(Duration::from_millis(millis as u64))
    }
}

fn delays_in_order(retry: &mut RetryConfig, section: &Section<'_>, key: &str) {
    let RetryConfig { initial_delay_ms, max_delay_ms, .. } = *retry;
    if max_delay_ms < initial_delay_ms {
        let inside = section.inside(key);
        let key = if inside.node("max_delay_ms").is_some() { "max_delay_ms" } else { "initial_delay_ms" };
        let message =
            format!("`max_delay_ms` ({max_delay_ms}) is less than `initial_delay_ms` ({initial_delay_ms})");
        inside.invalid(key, message);
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

const LOG_LEVELS: [(&str, LogLevel); 6] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("warning", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

/// Whose rules of grading a job follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compat {
    /// Those of Harbor.
    Harbor,
}

const COMPAT: [(&str, Compat); 1] = [("harbor", Compat::Harbor)];

rollout_settings::settings! {
    /// How attempts are graded: the `verifier` section, with `compat` applied.
    #[derive(Debug, Clone)]
    pub struct VerifierConfig {
        /// Replaces the verifier timeout of every task; 0 means unset.
        pub override_timeout_sec: Option<f64> = timeout().optional().shown_default(0.0).unset("the task's"),
        /// The ceiling of verifier timeouts; 0 means unset.
        pub max_timeout_sec: Option<f64> = timeout().optional().shown_default(0.0).unset("none"),
        /// Ends trials after the agent, without a reward.
        pub disable: bool = flag(false),
        /// Whether an attempt is graded when the agent failed or timed out.
        ///
        /// With `run`, error and reward are both recorded.
        pub after_agent_error: AfterAgentError = word(&AFTER_AGENT_ERROR).default(AfterAgentError::Skip),
        /// Reads the reward also when test.sh exits non-zero.
        ///
        /// A timeout remains an error.
        pub ignore_exit_code: bool = flag(false),
        /// What happens to processes that the agent left running.
        ///
        /// That happens when verification starts.
        pub agent_processes: AgentProcesses = word(&AGENT_PROCESSES).default(AgentProcesses::Keep),
        /// Where test.sh runs.
        ///
        /// `shared`: where the agent worked. `separate`: in a fresh environment, with the artifacts copied in.
        pub environment: Option<VerifierEnvironment> =
            word(&VERIFIER_ENVIRONMENTS).optional().recorded_where_written().unset("the task's, else `shared`"),
        /// The image that test.sh runs in, in an environment of its own.
        pub image: Option<String> = filled().optional().recorded_where_written().unset("the task's"),
        /// Files and directories that are copied from the agent's environment to a separate one, beside the task's.
        pub artifacts: Vec<String> = absolute_paths().recorded_where_written(),
        /// Variables for test.sh; they win over the task's.
        pub env: Env = env(),
    }
}

impl Default for VerifierConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of the verifier has a default")
    }
}

impl VerifierConfig {
    /// Gives what the file does not say the defaults of Harbor.
    pub(super) fn follow_harbor(&mut self, written: &Section<'_>) {
        if written.node("after_agent_error").is_none() {
            self.after_agent_error = AfterAgentError::Run;
        }
        if written.node("ignore_exit_code").is_none() {
            self.ignore_exit_code = true;
        }
    }
}

const AFTER_AGENT_ERROR: [(&str, AfterAgentError); 2] =
    [("skip", AfterAgentError::Skip), ("run", AfterAgentError::Run)];

const AGENT_PROCESSES: [(&str, AgentProcesses); 2] =
    [("keep", AgentProcesses::Keep), ("kill", AgentProcesses::Kill)];

pub(super) const VERIFIER_ENVIRONMENTS: [(&str, VerifierEnvironment); 2] =
    [("shared", VerifierEnvironment::Shared), ("separate", VerifierEnvironment::Separate)];

/// Absolute paths inside an environment.
pub(super) fn absolute_paths() -> Form<Vec<String>> {
    texts().check(|paths, section, key| {
        for path in paths {
            check_absolute(path, section, key);
        }
    })
}

/// Refuses a path that is not absolute, or that leads somewhere else than it seems to.
pub(super) fn check_absolute(path: &str, section: &Section<'_>, key: &str) {
    let plain = path.split('/').skip(1).all(|name| !matches!(name, "" | "." | ".."));
    if !path.starts_with('/') || !plain || path.chars().any(char::is_control) {
        let message = format!("{} is no absolute path inside the environment", quoted(path));
        section.invalid_with_hint(
            key,
            message,
            "write it as `/app/result.txt`, without `.`, `..` or a `/` at its end",
        );
    }
}

/// Where test.sh runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifierEnvironment {
    /// Where the agent worked.
    Shared,
    /// In a fresh environment, with the artifacts copied in.
    Separate,
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

const METRICS: [(&str, JobMetric); 4] =
    [("sum", JobMetric::Sum), ("min", JobMetric::Min), ("max", JobMetric::Max), ("mean", JobMetric::Mean)];

rollout_settings::settings! {
    /// A statistic over the rewards of completed trials.
    struct MetricKeys {
        /// Which statistic.
        kind as "type": JobMetric = word(&METRICS).required("write `type: mean`, or `sum`, `min`, `max`"),
    }
}

fn metrics(section: &Section<'_>, key: &str) -> Vec<JobMetric> {
    let mut metrics = Vec::new();
    for MetricKeys { kind } in section.sections::<MetricKeys>(key).iter().filter_map(MetricKeys::read) {
        if !metrics.contains(&kind) {
            metrics.push(kind);
        }
    }
    metrics
}

/// The JSON Schema of job.yaml and job.json.
pub fn job_schema() -> Json {
    rollout_settings::titled::<JobConfig>("Rollout job")
}
