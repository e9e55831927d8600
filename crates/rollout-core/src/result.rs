//! Results of trials and jobs: the data of every `result.json`.

mod totals;

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::totals::{JobMetric, Totals, TrialSummary};
pub use crate::failure::{ErrorType, FailureCause, TrialError};
use crate::{
    moment,
    name::{AgentName, DatasetName, TaskName, TrialId},
    statistics::Statistics,
};

/// The minimum reward of a solved trial, if the dataset does not set one.
pub const DEFAULT_PASS_THRESHOLD: f64 = 1.0;

fn default_pass_threshold() -> f64 {
    DEFAULT_PASS_THRESHOLD
}

/// The outcome of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// The task that was attempted.
    pub task_name: TaskName,
    /// The dataset of the task.
    pub dataset_name: DatasetName,
    /// The agent.
    pub agent_name: AgentName,
    /// The attempt, counted from 1.
    pub attempt: u32,
    /// The commit of the task's repository.
    pub task_git_commit_id: Option<String>,
    /// The reward, if there is one.
    pub reward: Option<f64>,
    /// The minimum reward of a solved trial in the dataset.
    #[serde(default = "default_pass_threshold")]
    pub pass_threshold: f64,
    /// Other rewards by name, from `reward.json`.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub rewards: IndexMap<String, f64>,
    /// The steps that ran, of a task that has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepResult>,
    /// Whether the reward leaves out a step without a reward, as in Harbor. Such a trial has failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_out_step: bool,
    /// Known costs in US dollars: the sum of the next two.
    pub cost: f64,
    /// Cost of the environments of all tries; 0 on this machine.
    pub environment_cost: f64,
    /// Cost of the agent's model in all tries, if the agent reported it.
    pub model_cost: Option<f64>,
    /// Usage of the agent, if it reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<AgentUsage>,
    /// Usage that the agent reported itself, if that differs from what the gateway recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_usage: Option<AgentUsage>,
    /// The calls to the model, if they went through the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_calls: Option<ModelCalls>,
    /// The error.
    pub error: Option<TrialError>,
    /// Durations of the phases; null for a phase that did not run.
    pub durations: Durations,
    /// Times of the phases; null for a phase that did not run.
    pub timestamps: Timestamps,
    /// The environment; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentRecord>,
    /// Number of tries; more than 1 after infrastructure failures.
    pub tries: u32,
    /// Number of tries that started the agent. With more than one, the agent had more than one chance.
    #[serde(default)]
    pub agent_starts: u32,
    /// Commands of the agent that still ran when verification started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<String>,
    /// Evidence that processes of the agent touched the tests or the reward while the tests ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tampering: Vec<String>,
    /// Notes about the result beside its error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether logs were cut or left out. The notes name them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete_logs: bool,
    /// The earlier result, if only the tests were run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regraded: Option<Regraded>,
}

/// The result of a trial before its tests were run again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Regraded {
    /// What the tests were run on.
    pub on: RegradeSource,
    /// The reward before.
    pub reward: Option<f64>,
    /// The error before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TrialError>,
}

/// What tests are run on again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegradeSource {
    /// A copy of the preserved environment.
    Environment,
    /// A new environment with the collected artifacts.
    Artifacts,
    /// Nothing: the trial ended before the tests, so its result does not depend on them.
    Unchanged,
    /// Nothing was kept.
    Nothing,
}

impl TrialResult {
    /// Creates the result of a trial that has only started.
    pub fn empty(trial: &TrialId, at: Timestamp) -> Self {
        Self {
            task_name: trial.task.clone(),
            dataset_name: trial.dataset.clone(),
            agent_name: trial.agent.clone(),
            attempt: trial.attempt,
            task_git_commit_id: None,
            reward: None,
            pass_threshold: DEFAULT_PASS_THRESHOLD,
            rewards: IndexMap::new(),
            steps: Vec::new(),
            leaves_out_step: false,
            cost: 0.0,
            environment_cost: 0.0,
            model_cost: None,
            usage: None,
            reported_usage: None,
            model_calls: None,
            error: None,
            durations: Durations::default(),
            timestamps: Timestamps::empty(at),
            environment: None,
            tries: 1,
            agent_starts: 0,
            survivors: Vec::new(),
            tampering: Vec::new(),
            notes: Vec::new(),
            incomplete_logs: false,
            regraded: None,
        }
    }

    /// Whether the trial is solved; None without a reward, or if it failed.
    pub fn is_solved(&self) -> Option<bool> {
        let reward = self.reward.filter(|_| self.standing() == Standing::Completed);
        reward.map(|reward| reward >= self.pass_threshold)
    }

    /// Whether the trial counts as completed, failed or skipped.
    pub fn standing(&self) -> Standing {
        let error = self.error.as_ref().map(|error| error.kind);
        Standing::of(self.reward.filter(|_| !self.leaves_out_step), error)
    }
}

/// The outcome of one step of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// The name of the step.
    pub name: String,
    /// The reward, if there is one.
    pub reward: Option<f64>,
    /// Other rewards by name.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub rewards: IndexMap<String, f64>,
    /// Seconds of the agent.
    pub agent_execution_sec: Option<f64>,
    /// Seconds of the tests.
    pub verifier_sec: Option<f64>,
    /// The error.
    pub error: Option<TrialError>,
}

/// How a trial counts in the job's totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It has a reward, or there was no error and verification is disabled.
    Completed,
    /// An error prevented a reward.
    Failed,
    /// A cancelled job did not finish it.
    Skipped,
}

impl Standing {
    /// The standing of a finished trial with this reward and this error. A reward that leaves out a step must not be
    /// passed.
    pub fn of(reward: Option<f64>, error: Option<ErrorType>) -> Self {
        match error {
            None => Self::Completed,
            Some(kind) if kind.fails_scored_trials() => Self::Failed,
            Some(_) if reward.is_some() => Self::Completed,
            // With the verifier disabled there is no reward, so a teardown error does not fail the trial.
            Some(ErrorType::EnvironmentTeardownFailed) => Self::Completed,
            Some(_) => Self::Failed,
        }
    }
}

/// The usage that an agent reported.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentUsage {
    /// Tokens sent to the model.
    pub input_tokens: Option<u64>,
    /// Tokens received from the model.
    pub output_tokens: Option<u64>,
    /// Tokens sent that were read from a cache.
    pub cached_tokens: Option<u64>,
    /// Cost of the model in US dollars.
    pub cost_usd: Option<f64>,
}

/// The maximum plausible cost of one trial in US dollars.
const MAX_COST_USD: f64 = 1e6;

/// The maximum plausible number of tokens of one trial.
const MAX_TOKENS: u64 = 1_000_000_000_000;

impl AgentUsage {
    /// Returns why the values are implausible.
    pub fn problem(&self) -> Option<String> {
        if let Some(cost) = self.cost_usd.filter(|cost| !(0.0..=MAX_COST_USD).contains(cost)) {
            return Some(format!("cost_usd is {cost:?}, but must be from 0 to {MAX_COST_USD}"));
        }
        let tokens = [
            ("input_tokens", self.input_tokens),
            ("output_tokens", self.output_tokens),
            ("cached_tokens", self.cached_tokens),
        ];
        let (name, tokens) = tokens
            .into_iter()
            .find_map(|(name, tokens)| Some((name, tokens.filter(|tokens| *tokens > MAX_TOKENS)?)))?;
        Some(format!("{name} is {tokens}, but must be at most {MAX_TOKENS}"))
    }
}

/// The calls of an agent to its model, as the gateway recorded them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelCalls {
    /// All calls.
    pub calls: u64,
    /// The calls that the model answered completely.
    pub turns: u64,
    /// The calls of tools in the model's answers.
    pub tool_calls: u64,
    /// The models that answered.
    pub models: Vec<String>,
    /// The number of failed calls of each kind.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub errors: IndexMap<String, u64>,
}

/// Calls to models through the gateway, summed over trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CallTotals {
    /// All calls.
    pub calls: u64,
    /// The calls that the model answered completely.
    pub turns: u64,
    /// The calls of tools in the model's answers.
    pub tool_calls: u64,
    /// The calls that failed.
    pub failed_calls: u64,
    /// Tokens sent to the model.
    pub input_tokens: u64,
    /// Tokens received from the model.
    pub output_tokens: u64,
    /// Tokens sent that were read from a cache.
    pub cached_tokens: u64,
}

impl CallTotals {
    /// Whether there was no call.
    pub fn is_empty(&self) -> bool {
        self.calls == 0
    }

    /// The calls of a trial; None if it did not use the gateway.
    pub fn of(result: &TrialResult) -> Option<Self> {
        Some(Self::new(result.model_calls.as_ref()?, result.usage.unwrap_or_default()))
    }

    /// The calls of a trial with their usage.
    pub fn new(calls: &ModelCalls, usage: AgentUsage) -> Self {
        Self {
            calls: calls.calls,
            turns: calls.turns,
            tool_calls: calls.tool_calls,
            failed_calls: calls.errors.values().fold(0, |sum, number| sum.saturating_add(*number)),
            input_tokens: usage.input_tokens.unwrap_or_default(),
            output_tokens: usage.output_tokens.unwrap_or_default(),
            cached_tokens: usage.cached_tokens.unwrap_or_default(),
        }
    }

    /// Adds other calls.
    pub fn add(&mut self, other: Self) {
        for (sum, number) in [
            (&mut self.calls, other.calls),
            (&mut self.turns, other.turns),
            (&mut self.tool_calls, other.tool_calls),
            (&mut self.failed_calls, other.failed_calls),
            (&mut self.input_tokens, other.input_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
        ] {
            *sum = sum.saturating_add(number);
        }
    }
}

/// The environment of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentRecord {
    /// The provider.
    pub provider: String,
    /// The id of the environment at its provider.
    pub id: String,
    /// The image of the environment.
    pub image: String,
    /// The snapshot of the agent's install that was used instead of running the install script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_snapshot: Option<String>,
    /// The network of the environment.
    pub network: String,
    /// The enforced limits.
    pub enforced: serde_json::Value,
    /// The location of the environment, if it was preserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preserved: Option<String>,
    /// The locations of the other services of its compose file, if they were preserved. Their programs do not run.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub preserved_services: IndexMap<String, String>,
}

/// Seconds spent in each phase.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Durations {
    /// Total duration.
    pub total_sec: f64,
    /// Image, start and first copies.
    pub environment_setup_sec: Option<f64>,
    /// The install script.
    pub agent_setup_sec: Option<f64>,
    /// The execute script.
    pub agent_execution_sec: Option<f64>,
    /// The tests.
    pub verifier_sec: Option<f64>,
}

/// Start and end times of the phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timestamps {
    /// When the trial started.
    #[serde(with = "moment")]
    pub started_at: Timestamp,
    /// Start of the environment setup.
    #[serde(default, with = "moment::optional")]
    pub environment_setup_started_at: Option<Timestamp>,
    /// End of the environment setup, successful or not.
    #[serde(default, with = "moment::optional")]
    pub environment_setup_ended_at: Option<Timestamp>,
    /// Start of the install script.
    #[serde(default, with = "moment::optional")]
    pub agent_setup_started_at: Option<Timestamp>,
    /// End of the install script.
    #[serde(default, with = "moment::optional")]
    pub agent_setup_ended_at: Option<Timestamp>,
    /// Start of the execute script.
    #[serde(default, with = "moment::optional")]
    pub agent_execution_started_at: Option<Timestamp>,
    /// End of the execute script.
    #[serde(default, with = "moment::optional")]
    pub agent_execution_ended_at: Option<Timestamp>,
    /// Start of verification.
    #[serde(default, with = "moment::optional")]
    pub verifier_started_at: Option<Timestamp>,
    /// End of verification.
    #[serde(default, with = "moment::optional")]
    pub verifier_ended_at: Option<Timestamp>,
    /// When the trial ended.
    #[serde(with = "moment")]
    pub ended_at: Timestamp,
}

impl Timestamps {
    /// Creates the times of a trial without any phase.
    pub fn empty(at: Timestamp) -> Self {
        Self {
            started_at: at,
            environment_setup_started_at: None,
            environment_setup_ended_at: None,
            agent_setup_started_at: None,
            agent_setup_ended_at: None,
            agent_execution_started_at: None,
            agent_execution_ended_at: None,
            verifier_started_at: None,
            verifier_ended_at: None,
            ended_at: at,
        }
    }
}

/// The aggregate of a job without its rows: `result.json` contains these fields, then `results`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// The job.
    pub job_name: String,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// Why it stopped before all trials ran, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<EarlyStop>,
    /// Totals over all trials.
    pub totals: Totals,
    /// Duration from the first start to the end, without pauses between a stop and its resume.
    pub total_duration_sec: f64,
    /// When the job first started.
    #[serde(with = "moment")]
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(with = "moment")]
    pub ended_at: Timestamp,
    /// Totals by agent, in the order of the job file.
    pub agents: IndexMap<AgentName, Totals>,
    /// Totals by agent and dataset, in the order of the job file.
    pub groups: Vec<(AgentName, DatasetName, Totals)>,
    /// The statistics, by agent, dataset, category and difficulty.
    #[serde(default)]
    pub statistics: Statistics,
}

/// Why a job stopped before all trials ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EarlyStop {
    /// The other trials would have failed the same way.
    Failures {
        /// The number of consecutive failed trials.
        failures: u64,
        /// The error of the last one.
        error: TrialError,
    },
    /// Another trial would have cost more than the budget.
    Budget {
        /// The budget in US dollars.
        budget_usd: f64,
        /// The cost of the trials that ran, in this run and before.
        spent_usd: f64,
    },
}
