//! What a group of trials comes to: how many, how good, how certain, how long, how dear.

use serde::{Deserialize, Serialize};

use super::{Clusters, Confidence, Estimate, Interval, PassCurve, PassPoint, Sample, Sorted, seeded, wilson};
use crate::result::{Standing, TrialSummary, is_pass};

/// The most tries for which chances are told: the curve of a task that was tried more often is cut there.
pub const MOST_TRIES: usize = 1_000;

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
    /// Completed trials that nobody scored. They count in no rate.
    pub unscored: u64,
    /// Over the trials with a reward.
    pub failed_excluded: Scores,
    /// The same with a reward of zero for each failed trial.
    pub failed_as_zero: Scores,
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
    /// Those with reward 1.
    pub passed: u64,
    /// Their share; none without trials.
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

impl Spread {
    /// The spread of one value or more; none of them may be infinite or no number.
    ///
    /// ```
    /// let spread = rollout::stats::Spread::new([1.0, 3.0]).unwrap();
    /// assert_eq!((spread.mean, spread.p50, spread.p75, spread.max), (2.0, 2.0, 2.5, 3.0));
    /// ```
    pub fn new(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = Sorted::new(values)?;
        let sample: Sample = sorted.values().iter().copied().collect();
        let at = |share| sorted.quantile(share);
        Some(Self {
            n: sample.count(),
            mean: sample.mean()?,
            sd: sample.sd(),
            min: at(0.0),
            p25: at(0.25),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        })
    }
}

/// How figures are resampled: every group begins with the same seed, so that each can be done again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resampling {
    /// How often tasks are drawn.
    pub resamples: u64,
    /// Where the numbers come from: see [`seeded`].
    pub seed: u64,
}

/// Gathers the trials of a group, task by task.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    figures: Figures,
    task: Option<u32>,
    rewards: Clusters<u32>,
    curve: PassCurve<u32>,
    passed: u64,
    failed: Vec<u32>,
    durations: Vec<f64>,
    costs: Vec<f64>,
}

impl Gather {
    /// Adds a trial. Those of one task come one after the other.
    pub(crate) fn add(&mut self, task: u32, trial: &TrialSummary) {
        self.figures.trials += 1;
        if self.task.replace(task) != Some(task) {
            self.figures.tasks += 1;
        }
        match trial.standing {
            Standing::Skipped => {
                self.figures.skipped += 1;
                return;
            }
            Standing::Failed => {
                self.figures.failed += 1;
                self.failed.push(task);
            }
            Standing::Completed => {
                self.figures.completed += 1;
                match trial.reward {
                    Some(reward) => self.score(task, reward),
                    None => self.figures.unscored += 1,
                }
            }
        }
        self.durations.push(trial.seconds);
        self.costs.extend(trial.known_cost);
    }

    /// How many trials were added.
    pub(super) fn trials(&self) -> u64 {
        self.figures.trials
    }

    fn score(&mut self, task: u32, reward: f64) {
        let passes = is_pass(reward);
        self.rewards.add(task, reward);
        self.curve.add(task, passes);
        self.passed += u64::from(passes);
    }

    pub(crate) fn finish(mut self, confidence: Confidence, resampling: Resampling) -> Figures {
        let failed_excluded = self.scores(confidence, resampling);
        let failed_as_zero = if self.failed.is_empty() {
            failed_excluded.clone()
        } else {
            std::mem::take(&mut self.failed).into_iter().for_each(|task| self.score(task, 0.0));
            self.scores(confidence, resampling)
        };
        Figures {
            failed_excluded,
            failed_as_zero,
            duration_sec: Spread::new(self.durations),
            cost_usd: Spread::new(self.costs),
            ..self.figures
        }
    }

    fn scores(&self, confidence: Confidence, resampling: Resampling) -> Scores {
        let all = self.rewards.all();
        let trials = all.count();
        let rate = |interval| PassRate { rate: self.passed as f64 / trials as f64, interval };
        let plain = || {
            let (standard_error, interval) = (all.standard_error()?, all.interval(confidence)?);
            Some(Estimate { standard_error, interval })
        };
        let mean_reward = all.mean().map(|mean| MeanReward {
            mean,
            plain: plain(),
            clustered: self.rewards.estimate(confidence),
            bootstrap: self.rewards.bootstrap(
                resampling.resamples as usize,
                confidence,
                seeded(resampling.seed),
            ),
        });
        let mut pass_k = self.curve.points();
        pass_k.truncate(MOST_TRIES);
        Scores {
            trials,
            passed: self.passed,
            pass_rate: wilson(self.passed, trials, confidence).map(rate),
            mean_reward,
            pass_k,
        }
    }
}
