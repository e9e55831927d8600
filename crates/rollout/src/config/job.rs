//! The settings of a job file, except those of agents and datasets, which have their own modules.

use std::{iter, num::NonZeroU32, path::PathBuf, time::Duration};

use serde_json::{Value as Json, json};

use super::{
    AgentConfig, AgentKind, DatasetConfig, DatasetSource, JobGatewayConfig, ModelConfig, agent, dataset,
};
use rollout_core::{name::JobName, result::JobMetric};
use rollout_env::{EnvironmentConfig, EnvironmentKeys};
use rollout_model::client::Price;
use rollout_settings::{
    Env, Form, Section, Settings as _,
    declare::entry,
    diagnostic::{Code, quoted},
    forms::{count, env, filled, filled_list, flag, list, number, section, texts, timeout, whole, word},
    section::above_zero,
};

/// Larger factors are mistakes, and could overflow the clocks.
const MAX_MULTIPLIER: f64 = 1e6;

/// Larger budgets are mistakes.
const MAX_BUDGET_USD: f64 = 1e9;

/// One day between two tries.
const MAX_DELAY_MS: u64 = 86_400_000;

rollout_settings::settings! {
    /// A job: agents that attempt the tasks of datasets.
    ///
    /// Its numbers are in range and its names are unique.
    #[derive(Debug, Clone)]
    pub struct JobConfig {
        /// The name of the results directory in `jobs_dir`. Default: the time of the start.
        ///
        /// If the directory exists, the job is rejected.
        pub name: Option<JobName> = job_name().optional().unset("time of the start").unhashed(),
        /// The parent of job directories, relative to the working directory.
        pub jobs_dir: PathBuf = filled()
            .kind("path")
            .refine(|schema| schema["minLength"] = json!(1))
            .default("jobs".to_owned())
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .unhashed(),
        /// The base of relative paths in this file.
        ///
        /// `config.json` of a job contains it, so that the copy can be run from anywhere.
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
        /// A factor for every timeout, including those of this file.
        pub timeout_multiplier: f64 = number(above_zero(MAX_MULTIPLIER)).default(1.0),
        /// How infrastructure failures are retried. Failures of agents and verifiers are not retried.
        pub retry: RetryConfig = section::<RetryConfig>().check(delays_in_order).unset("see below"),
        /// The level of messages in rollout.log.
        ///
        /// Without a live display, they are also printed to standard error. The variable `ROLLOUT_LOG` overrides it, as
        /// in `rollout=debug`.
        pub log_level: LogLevel = word(&LOG_LEVELS).default(LogLevel::Error).unhashed(),
        /// Writes a record of each trial to `eval-log` in the job's directory, when the trial ends.
        ///
        /// See [eval logs](eval-log.md).
        pub eval_log: bool = flag(false).unhashed(),
        /// The path of the instruction in the environment.
        pub instruction_path: String = filled()
            .kind("absolute path")
            .refine(|schema| schema["pattern"] = json!("^/"))
            .check(|path, section, key| check_instruction_path(path, section, key))
            .default("/tmp/instruction.md".to_owned()),
        /// The rules for all tasks. With `harbor`, Harbor's rules also apply to tasks without `schema_version`.
        ///
        /// A dataset can have its own setting. See [tasks made for Harbor](tasks.md#tasks-made-for-harbor).
        pub compat: Option<Compat> = word(&COMPAT).optional(),
        /// Also runs tasks with settings that are not supported. Each result lists the unsupported settings.
        ///
        /// See [settings that are not supported](tasks.md#settings-that-are-not-supported).
        pub allow_unsupported: bool = flag(false).recorded_where_written(),
        /// Where trials run.
        pub environment: EnvironmentConfig = section::<EnvironmentKeys>().unset("see below"),
        /// How attempts are graded.
        pub verifier: VerifierConfig = section::<VerifierConfig>().unset("see below"),
        /// Limits on the model calls of agents with presets, over all trials.
        ///
        /// See [limits](agents.md#limits).
        pub gateway: JobGatewayConfig = section::<JobGatewayConfig>().unset("no limits").recorded_where_written(),
        /// The most that the job may cost. A trial that would exceed it is not started, and the job stops.
        ///
        /// Finished trials are kept, and `rollout resume` continues with a larger budget.
        pub budget: BudgetConfig = section::<BudgetConfig>().unset("no limit").recorded_where_written().unhashed(),
        /// Statistics of rewards, updated while the job runs.
        ///
        /// They are shown for each agent, in the display and in the job's `result.json`.
        pub metrics: Vec<JobMetric> = list(entry::<MetricKeys>, |section, key| Some(metrics(section, key)))
            .recorded(|metrics, _| metrics.iter().map(|metric| json!({ "type": metric })).collect())
            .kind("list of `type: sum|min|max|mean`")
            .unset("none"),
        /// The agents that attempt the tasks.
        pub agents: Vec<AgentConfig> = filled_list(agent::schema, |section, key| Some(agent::read(section, key)))
            .recorded(|agents, written| {
                agents.iter().zip(written.items()).map(|(config, written)| agent::record(config, written)).collect()
            })
            .required(agent::REQUIRED)
            .beside(
                "matrix",
                "Agents and models: each of these agents attempts the tasks with each of these models.\n\nThey are added to `agents`. See [agents](agents.md#in-a-job-file).",
                matrix(),
            ),
        /// The tasks to attempt.
        pub datasets: Vec<DatasetConfig> = filled_list(dataset::schema, |section, key| Some(dataset::read(section, key)))
            .recorded(|datasets, written| {
                datasets.iter().zip(written.items()).map(|(config, written)| dataset::record(config, written)).collect()
            })
            .required(dataset::REQUIRED),
    }
}

impl Default for JobConfig {
    /// A job without a file: every setting has its default, without agents and datasets.
    fn default() -> Self {
        Self::defaults().expect("every setting of a job has a default")
    }
}

impl JobConfig {
    /// The models that agents with presets ask through the gateway.
    pub(crate) fn preset_models(&self) -> impl Iterator<Item = &ModelConfig> {
        self.agents.iter().filter_map(|agent| match &agent.kind {
            AgentKind::Preset(agent) => agent.model.as_ref(),
            _ => None,
        })
    }

    /// The price of a model at the server of an agent's model, if the settings have it. Of agents with the same model,
    /// those of this agent count first.
    pub(crate) fn price_at(&self, own: &ModelConfig, name: &str) -> Option<Price> {
        let mut models = iter::once(own).chain(self.preset_models());
        models
            .find_map(|model| model.price.filter(|_| model.name == name && model.base_urls == own.base_urls))
    }

    /// Whether a trial of the job may need an environment, and so the job needs a provider.
    pub fn needs_environment(&self) -> bool {
        self.datasets.iter().any(|dataset| match &dataset.source {
            DatasetSource::Interaction(interaction) => interaction.environment.is_some(),
            DatasetSource::Path(_)
            | DatasetSource::Git(_)
            | DatasetSource::Named { .. }
            | DatasetSource::Registry { .. } => true,
        })
    }
}

/// Agents and models that are put together in all ways. It is replaced by agents before the file is read.
fn matrix() -> Form<()> {
    let schema = || {
        let list = |items: Json| json!({ "type": "array", "minItems": 1, "items": items });
        let agents = list(json!({ "anyOf": [{ "type": "string" }, { "type": "object" }] }));
        json!({
            "type": "object",
            "properties": { "agents": agents.clone(), "models": agents },
            "required": ["agents", "models"],
            "additionalProperties": false,
        })
    };
    Form::written("`agents:` and `models:`", schema, |_, _| None)
}

fn job_name() -> Form<JobName> {
    Form::new(
        "name",
        || json!({ "type": "string" }),
        |section, key| {
            let name = section.string(key)?;
            JobName::new(name)
                .map_err(|error| {
                    let message = format!("invalid name of a job: {}: {error}", quoted(name));
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
        let message = format!("invalid path of the instruction: {}", quoted(path));
        let hint = "write the absolute path of a file in the environment, such as `/tmp/instruction.md`";
        section.invalid_with_hint(key, message, hint);
    }
}

rollout_settings::settings! {
    /// The most that a job may cost.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct BudgetConfig {
        /// US dollars, for environments and models together.
        ///
        /// The expected cost of the next trial is the average cost of the finished trials. So the first trial runs
        /// alone, and a trial that costs more than the others can exceed the budget. Each model needs a price: a known
        /// price, or `prices` in its settings.
        pub usd: Option<f64> = number(above_zero(MAX_BUDGET_USD)).optional(),
    }
}

rollout_settings::settings! {
    /// Retries of infrastructure failures. Failures of agents and verifiers are not retried.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RetryConfig {
        /// The total number of tries, including the first one.
        ///
        /// 1 means no retry.
        pub max_attempts: NonZeroU32 = count(3),
        /// Milliseconds before the second try.
        pub initial_delay_ms: u64 = whole(0..=MAX_DELAY_MS).default(1000),
        /// The longest wait between two tries, in milliseconds.
        pub max_delay_ms: u64 = whole(0..=MAX_DELAY_MS).default(30_000),
        /// The factor by which the wait grows after each try.
        pub multiplier: f64 = number(1.0..=MAX_MULTIPLIER).default(2.0),
    }
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of retries has a default")
    }
}

impl RetryConfig {
    /// How long to wait after a failed try, counted from 1; none after the last one.
    pub(crate) fn delay_after(&self, failed_try: u32) -> Option<Duration> {
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

/// The lowest level of messages in `rollout.log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Only failures of Rollout itself.
    #[default]
    Error,
    /// Also warnings.
    Warn,
    /// Also the events of each trial.
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

/// The rules of grading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compat {
    /// Those of Harbor.
    Harbor,
}

pub(super) const COMPAT: [(&str, Compat); 1] = [("harbor", Compat::Harbor)];

rollout_settings::settings! {
    /// How attempts are graded: the `verifier` section, with `compat` applied.
    #[derive(Debug, Clone)]
    pub struct VerifierConfig {
        /// Replaces the verifier timeout of every task; 0 means unset.
        pub override_timeout_sec: Option<f64> = timeout().optional().shown_default(0.0).unset("the task's"),
        /// The maximum of verifier timeouts; 0 means unset.
        pub max_timeout_sec: Option<f64> = timeout().optional().shown_default(0.0).unset("none"),
        /// Ends trials after the agent, without a reward.
        pub disable: bool = flag(false),
        /// Whether an attempt is graded if the agent failed or timed out.
        ///
        /// With `run`, error and reward are both recorded.
        pub after_agent_error: Option<AfterAgentError> = word(&AFTER_AGENT_ERROR)
            .optional()
            .recorded(|policy, _| match policy {
                Some(AfterAgentError::Run) => json!("run"),
                Some(AfterAgentError::Skip) | None => json!("skip"),
            })
            .unset("`skip`; `run` for Harbor"),
        /// Reads the reward even if test.sh exits non-zero.
        ///
        /// A timeout remains an error.
        pub ignore_exit_code: Option<bool> = flag(false)
            .optional()
            .recorded(|ignored, _| json!(ignored.unwrap_or(false)))
            .unset("false; true for Harbor"),
        /// What happens to processes that the agent left running.
        ///
        /// They are kept or killed when verification starts.
        pub agent_processes: AgentProcesses = word(&AGENT_PROCESSES).default(AgentProcesses::Keep),
        /// Where test.sh runs.
        ///
        /// `shared`: in the agent's environment. `separate`: in a fresh environment, with the artifacts copied in.
        pub environment: Option<VerifierEnvironment> =
            word(&VERIFIER_ENVIRONMENTS).optional().recorded_where_written().unset("the task's, else `shared`"),
        /// The image of a separate environment for test.sh.
        pub image: Option<String> = filled().optional().recorded_where_written().unset("the task's"),
        /// Files and directories to copy from the agent's environment to a separate one, in addition to the task's.
        pub artifacts: Vec<String> = absolute_paths().recorded_where_written(),
        /// Variables for test.sh; they override the task's.
        pub env: Env = env(),
    }
}

impl Default for VerifierConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of the verifier has a default")
    }
}

impl VerifierConfig {
    /// Sets the defaults of Harbor where the file sets nothing.
    pub(super) fn follow_harbor(&mut self, written: &Section<'_>) {
        if written.node("after_agent_error").is_none() {
            self.after_agent_error = Some(AfterAgentError::Run);
        }
        if written.node("ignore_exit_code").is_none() {
            self.ignore_exit_code = Some(true);
        }
    }

    /// Whether an attempt is graded if the agent failed, by the rules of a task.
    pub fn after_agent_error(&self, is_harbor: bool) -> AfterAgentError {
        let usual = if is_harbor { AfterAgentError::Run } else { AfterAgentError::Skip };
        self.after_agent_error.unwrap_or(usual)
    }

    /// Whether the reward is read even if test.sh exits non-zero, by the rules of a task.
    pub fn ignores_exit_code(&self, is_harbor: bool) -> bool {
        self.ignore_exit_code.unwrap_or(is_harbor)
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

/// Rejects a path that is not absolute, or contains `.` or `..`.
pub(super) fn check_absolute(path: &str, section: &Section<'_>, key: &str) {
    let plain = path.split('/').skip(1).all(|name| !matches!(name, "" | "." | ".."));
    if !path.starts_with('/') || !plain || path.chars().any(char::is_control) {
        let message = format!("{} is not an absolute path inside the environment", quoted(path));
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
    /// In the agent's environment.
    Shared,
    /// In a fresh environment, with the artifacts copied in.
    Separate,
}

/// Whether an attempt is graded if the agent failed.
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
    /// They are killed before test.sh starts.
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
