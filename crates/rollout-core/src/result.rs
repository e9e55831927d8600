//! Results of trials and jobs: the data of every `result.json`.

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

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
    /// Known costs in US dollars: the sum of the next two.
    pub cost: f64,
    /// Cost of the environment; 0 on this machine.
    pub environment_cost: f64,
    /// Cost of the agent's model, if the agent reported it.
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
        }
    }

    /// Whether the trial is solved; None without a reward, or if it failed.
    pub fn is_solved(&self) -> Option<bool> {
        let reward = self.reward.filter(|_| self.standing() == Standing::Completed);
        reward.map(|reward| reward >= self.pass_threshold)
    }

    /// Whether the trial counts as completed, failed or skipped.
    pub fn standing(&self) -> Standing {
        match &self.error {
            None => Standing::Completed,
            Some(error) if error.kind.fails_scored_trials() => Standing::Failed,
            Some(_) if self.reward.is_some() => Standing::Completed,
            // With the verifier disabled there is no reward, so a teardown error does not fail the trial.
            Some(error) if error.kind == ErrorType::EnvironmentTeardownFailed => Standing::Completed,
            Some(_) => Standing::Failed,
        }
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
        let (calls, usage) = (result.model_calls.as_ref()?, result.usage.unwrap_or_default());
        Some(Self {
            calls: calls.calls,
            turns: calls.turns,
            tool_calls: calls.tool_calls,
            failed_calls: calls.errors.values().fold(0, |sum, number| sum.saturating_add(*number)),
            input_tokens: usage.input_tokens.unwrap_or_default(),
            output_tokens: usage.output_tokens.unwrap_or_default(),
            cached_tokens: usage.cached_tokens.unwrap_or_default(),
        })
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
    /// Why it stopped before all trials ran, if consecutive trials failed with the same cause.
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

/// Why a job stopped before all trials ran: the other trials would have failed the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyStop {
    /// The number of consecutive failed trials.
    pub failures: u64,
    /// The error of the last one.
    pub error: TrialError,
}

/// Counts and averages over a group of trials.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Number of planned trials.
    pub total_trials: u64,
    /// Trials with a reward, or without an error if verification is disabled.
    pub completed_trials: u64,
    /// Trials without a reward because of an error, and rollouts whose server, tool or environment failed.
    pub failed_trials: u64,
    /// Trials that a cancelled job did not finish.
    pub skipped_trials: u64,
    /// Completed trials with a reward. Without verification, there are fewer of them than completed trials.
    pub rewarded_trials: u64,
    /// Completed trials with reward 1, independent of the threshold of their dataset.
    pub passed_trials: u64,
    /// Completed trials whose reward reaches the `pass_threshold` of their dataset.
    pub solved_trials: u64,
    /// Trials that started their agent more than once.
    pub restarted_trials: u64,
    /// The sum of rewards.
    pub reward_sum: f64,
    /// The minimum reward.
    pub reward_min: Option<f64>,
    /// The maximum reward.
    pub reward_max: Option<f64>,
    /// The sum of known costs of environments and models.
    pub total_cost: f64,
    /// The sum of the costs of environments.
    pub environment_cost: f64,
    /// The sum of the known costs of models; None if no cost is known.
    pub model_cost: Option<f64>,
    /// Finished trials whose total cost is known.
    pub known_cost_trials: u64,
    /// The sum of the trials' durations in seconds.
    pub trial_seconds: f64,
    /// Failed trials by type of error.
    pub errors: IndexMap<ErrorType, u64>,
    /// Calls to models through the gateway.
    #[serde(default, skip_serializing_if = "CallTotals::is_empty")]
    pub model_calls: CallTotals,
}

/// The values of a trial that totals need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialSummary {
    /// Its standing.
    pub standing: Standing,
    /// Its reward, if there is one.
    pub reward: Option<f64>,
    /// The minimum reward of a solved trial.
    pub pass_threshold: f64,
    /// The type of its error, if there is one.
    pub error: Option<ErrorType>,
    /// The cost of its environment.
    pub environment_cost: f64,
    /// The cost of its model, if known.
    pub model_cost: Option<f64>,
    /// Its duration.
    pub seconds: f64,
    /// Whether its agent was started more than once.
    pub is_restarted: bool,
    /// Its calls to a model through the gateway, if there were any.
    pub model_calls: Option<CallTotals>,
}

impl TrialSummary {
    /// A trial that a cancelled job did not finish.
    pub const SKIPPED: Self = Self {
        standing: Standing::Skipped,
        reward: None,
        pass_threshold: DEFAULT_PASS_THRESHOLD,
        error: None,
        environment_cost: 0.0,
        model_cost: None,
        seconds: 0.0,
        is_restarted: false,
        model_calls: None,
    };

    /// Whether it did not fail, and its reward reaches the threshold.
    pub fn is_solved(&self) -> bool {
        self.standing == Standing::Completed
            && self.reward.is_some_and(|reward| reward >= self.pass_threshold)
    }

    /// The reward in the headline: its own, or 0 if it failed because of the agent or the tests. None if it does not
    /// count.
    pub fn headline_reward(&self) -> Option<f64> {
        match self.standing {
            Standing::Completed => self.reward,
            Standing::Failed => self.error.is_none_or(|kind| kind.fault().is_counted()).then_some(0.0),
            Standing::Skipped => None,
        }
    }

    /// The total cost, if known.
    pub fn known_cost(&self) -> Option<f64> {
        Some(bounded_sum(self.environment_cost, self.model_cost?))
    }
}

impl From<&TrialResult> for TrialSummary {
    fn from(result: &TrialResult) -> Self {
        Self {
            standing: result.standing(),
            reward: result.reward,
            pass_threshold: result.pass_threshold,
            error: result.error.as_ref().map(|error| error.kind),
            environment_cost: result.environment_cost,
            model_cost: result.model_cost,
            seconds: result.durations.total_sec,
            is_restarted: result.agent_starts > 1,
            model_calls: CallTotals::of(result),
        }
    }
}

impl Totals {
    /// Adds a trial.
    pub fn add(&mut self, trial: TrialSummary) {
        self.total_trials += 1;
        self.environment_cost = bounded_sum(self.environment_cost, trial.environment_cost);
        if let Some(cost) = trial.model_cost {
            self.model_cost = Some(bounded_sum(self.model_cost.unwrap_or_default(), cost));
            self.known_cost_trials += 1;
        }
        self.total_cost = bounded_sum(self.environment_cost, self.model_cost.unwrap_or_default());
        self.trial_seconds += trial.seconds;
        self.restarted_trials += u64::from(trial.is_restarted);
        self.model_calls.add(trial.model_calls.unwrap_or_default());
        match trial.standing {
            Standing::Completed => {
                self.completed_trials += 1;
                if let Some(reward) = trial.reward {
                    self.rewarded_trials += 1;
                    self.passed_trials += u64::from(reward == 1.0);
                    self.solved_trials += u64::from(trial.is_solved());
                    self.reward_sum = bounded_sum(self.reward_sum, reward);
                    self.reward_min = Some(self.reward_min.map_or(reward, |least| least.min(reward)));
                    self.reward_max = Some(self.reward_max.map_or(reward, |most| most.max(reward)));
                }
            }
            Standing::Failed => {
                self.failed_trials += 1;
                if let Some(kind) = trial.error {
                    *self.errors.entry(kind).or_default() += 1;
                }
            }
            Standing::Skipped => self.skipped_trials += 1,
        }
    }

    /// The fraction of completed trials with reward 1; 0 if no trial has a reward.
    pub fn pass_rate(&self) -> f64 {
        ratio(self.passed_trials as f64, self.rewarded_trials)
    }

    /// The average reward; 0 if no trial has a reward.
    pub fn mean_reward(&self) -> f64 {
        ratio(self.reward_sum, self.rewarded_trials)
    }

    /// Returns a metric of the job; None if no trial has a reward.
    pub fn metric(&self, metric: JobMetric) -> Option<f64> {
        if self.rewarded_trials == 0 {
            return None;
        }
        match metric {
            JobMetric::Sum => Some(self.reward_sum),
            JobMetric::Min => self.reward_min,
            JobMetric::Max => self.reward_max,
            JobMetric::Mean => Some(self.mean_reward()),
        }
    }
}

fn ratio(numerator: f64, denominator: u64) -> f64 {
    if denominator == 0 { 0.0 } else { numerator / denominator as f64 }
}

/// Adds two finite numbers. The result is limited to finite numbers, because JSON has no others.
fn bounded_sum(one: f64, other: f64) -> f64 {
    (one + other).clamp(f64::MIN, f64::MAX)
}

/// A statistic over the rewards of completed trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobMetric {
    /// The sum.
    Sum,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The average.
    Mean,
}

impl JobMetric {
    /// The name in job files and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Mean => "mean",
        }
    }
}
