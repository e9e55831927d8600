//! Counts and averages over trials.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::{CallTotals, DEFAULT_PASS_THRESHOLD, ErrorType, Standing, TrialResult};

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
    /// Trials of which logs were cut or left out.
    #[serde(default)]
    pub incomplete_log_trials: u64,
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
    /// Whether logs of it were cut or left out.
    pub has_incomplete_logs: bool,
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
        has_incomplete_logs: false,
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
            has_incomplete_logs: result.incomplete_logs,
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
        self.incomplete_log_trials += u64::from(trial.has_incomplete_logs);
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
