//! The statistics of a job in `result.json`. `rollout-record` computes them.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// The statistics of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// The confidence level of the intervals.
    pub confidence: f64,
    /// The parameters of the bootstrap.
    pub bootstrap: Resampling,
    /// By agent, in the order of the job.
    pub agents: IndexMap<String, AgentStatistics>,
}

/// The statistics of an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AgentStatistics {
    /// Over all its trials.
    #[serde(flatten)]
    pub figures: Figures,
    /// By dataset.
    #[serde(default)]
    pub datasets: IndexMap<String, Figures>,
    /// By the category of the tasks: only tasks with a category, and at most a thousand categories.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub categories: IndexMap<String, Figures>,
    /// By the difficulty of the tasks, with the same restrictions.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub difficulties: IndexMap<String, Figures>,
}

/// The figures of a group of trials.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Number of tasks.
    pub tasks: u64,
    /// Number of planned trials: the sum of the next three.
    pub trials: u64,
    /// Trials with a reward, or without an error if verification is disabled.
    pub completed: u64,
    /// Trials without a reward because of an error.
    pub failed: u64,
    /// Trials that a cancelled job did not finish.
    pub skipped: u64,
    /// Failed trials that are excluded from all rates, because the infrastructure or the task failed.
    #[serde(default)]
    pub excluded: u64,
    /// Completed trials without a reward. They are excluded from all rates.
    pub unscored: u64,
    /// Over trials with a reward. Trials that failed because of the agent or the tests count as 0.
    #[serde(default)]
    pub headline: Scores,
    /// Over trials with a reward only.
    pub failed_excluded: Scores,
    /// Durations of finished trials in seconds.
    pub duration_sec: Option<Spread>,
    /// Known costs of finished trials in US dollars.
    pub cost_usd: Option<Spread>,
}

/// The scores of the trials that count.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Scores {
    /// Number of trials that count.
    pub trials: u64,
    /// Trials whose reward reaches the threshold of their dataset.
    pub solved: u64,
    /// The fraction of solved trials; None without trials.
    pub pass_rate: Option<PassRate>,
    /// The mean reward; None without trials.
    pub mean_reward: Option<MeanReward>,
    /// pass@k and pass^k for every k up to the largest number of tries of a task.
    pub pass_k: Vec<PassPoint>,
}

/// A pass rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PassRate {
    /// The fraction.
    pub rate: f64,
    /// Wilson's interval.
    pub interval: Interval,
}

/// A mean reward with three estimates of its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeanReward {
    /// The mean over trials.
    pub mean: f64,
    /// As if all trials were independent; requires two trials.
    pub plain: Option<Estimate>,
    /// With the attempts at a task as a cluster; requires two tasks.
    pub clustered: Option<Estimate>,
    /// From a bootstrap over tasks; requires two tasks.
    pub bootstrap: Option<Estimate>,
}

/// The distribution of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names of percentiles are self-explanatory")]
pub struct Spread {
    /// The number of values.
    pub n: u64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation; requires two values.
    pub sd: Option<f64>,
    /// The minimum.
    pub min: f64,
    pub p25: f64,
    pub p50: f64,
    pub p75: f64,
    pub p90: f64,
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

/// The parameters of resampling. Every group starts with the same seed, so that each can be reproduced separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resampling {
    /// The number of resamples.
    pub resamples: u64,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// A confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

impl Interval {
    /// Creates an interval if both bounds are finite.
    pub fn finite(low: f64, high: f64) -> Option<Self> {
        (low.is_finite() && high.is_finite()).then_some(Self { low, high })
    }
}

/// The uncertainty of a mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Its standard error.
    pub standard_error: f64,
    /// Its interval.
    pub interval: Interval,
}

/// pass@k and pass^k for one k.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PassPoint {
    /// The number of tries.
    pub k: u64,
    /// The number of tasks with at least k tries.
    pub tasks: u64,
    /// The mean probability that at least one of k tries succeeds.
    pub at_k: f64,
    /// The mean probability that all of k tries succeed.
    pub all_k: f64,
}
