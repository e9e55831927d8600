//! The statistics of a job, as `result.json` has them. How they are computed is in `rollout-record`.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// The statistics of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// How often an interval made this way holds what it is about.
    pub confidence: f64,
    /// How the bootstrap was done.
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
    /// By what the tasks say their category is: of tasks that do, and of a thousand categories at most.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub categories: IndexMap<String, Figures>,
    /// By what the tasks say their difficulty is, likewise.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub difficulties: IndexMap<String, Figures>,
}

/// What a group of trials comes to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Tasks.
    pub tasks: u64,
    /// Planned trials: the sum of the next three.
    pub trials: u64,
    /// Those with a reward, or without an error where none was asked for.
    pub completed: u64,
    /// Those that an error kept from a reward.
    pub failed: u64,
    /// Those that a cancelled job never finished.
    pub skipped: u64,
    /// Failed trials that count in no rate: the infrastructure or the task failed them.
    #[serde(default)]
    pub excluded: u64,
    /// Completed trials that were not scored. They count in no rate.
    pub unscored: u64,
    /// Over the trials with a reward, and those that the agent or the tests failed, which have 0.
    #[serde(default)]
    pub headline: Scores,
    /// Over the trials with a reward alone.
    pub failed_excluded: Scores,
    /// Seconds from start to end, of finished trials.
    pub duration_sec: Option<Spread>,
    /// US dollars, of finished trials whose cost is known.
    pub cost_usd: Option<Spread>,
}

/// How good the trials are that count.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Scores {
    /// Trials that count.
    pub trials: u64,
    /// Those whose reward reaches the threshold of their dataset.
    pub solved: u64,
    /// The share of solved trials; none without trials.
    pub pass_rate: Option<PassRate>,
    /// The mean reward; none without trials.
    pub mean_reward: Option<MeanReward>,
    /// The chances within k tries and in all of k tries, for every k that a task was tried often enough for.
    pub pass_k: Vec<PassPoint>,
}

/// A share of trials.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PassRate {
    /// The share.
    pub rate: f64,
    /// Wilson's interval.
    pub interval: Interval,
}

/// A mean reward, and three views on how certain it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeanReward {
    /// The mean over trials.
    pub mean: f64,
    /// As if no trial depended on another: of two trials or more.
    pub plain: Option<Estimate>,
    /// With the attempts at a task as a whole: of two tasks or more.
    pub clustered: Option<Estimate>,
    /// From tasks drawn again and again: of two tasks or more.
    pub bootstrap: Option<Estimate>,
}

/// How values are spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "percentiles say what they are by their names")]
pub struct Spread {
    /// How many values there are.
    pub n: u64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation: of two or more.
    pub sd: Option<f64>,
    /// The least one.
    pub min: f64,
    pub p25: f64,
    pub p50: f64,
    pub p75: f64,
    pub p90: f64,
    pub p99: f64,
    /// The greatest one.
    pub max: f64,
}

/// How figures are resampled: every group begins with the same seed, so that each can be done again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resampling {
    /// How often tasks are drawn.
    pub resamples: u64,
    /// Where the random numbers begin.
    pub seed: u64,
}

/// Two numbers between which another lies, as far as the data tells.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The smaller number.
    pub low: f64,
    /// The larger number.
    pub high: f64,
}

impl Interval {
    /// The interval, unless one of its ends is no number.
    pub fn finite(low: f64, high: f64) -> Option<Self> {
        (low.is_finite() && high.is_finite()).then_some(Self { low, high })
    }
}

/// How certain a mean is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Its standard error.
    pub standard_error: f64,
    /// Its interval.
    pub interval: Interval,
}

/// The chances with one number of tries.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PassPoint {
    /// The number of tries.
    pub k: u64,
    /// How many tasks were tried as often, and count.
    pub tasks: u64,
    /// The mean chance that at least one of k tries succeeds.
    pub at_k: f64,
    /// The mean chance that all of k tries succeed.
    pub all_k: f64,
}
