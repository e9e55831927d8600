//! The figures of a group of trials: counts, scores, uncertainty, durations and costs.

use super::{
    Confidence, Moments, Sorted,
    clusters::{self, TaskSum},
    pass_curve::{self, Tries},
    seeded, wilson,
};
use rollout_core::result::{Standing, TrialSummary};
use rollout_core::statistics::{Estimate, Figures, MeanReward, PassRate, Resampling, Scores, Spread};

/// The maximum k of pass@k and pass^k.
pub(super) const MOST_TRIES: usize = 1_000;

/// Returns the distribution of at least one value. All values must be finite.
///
/// ```
/// let spread = rollout::stats::spread([1.0, 3.0]).unwrap();
/// assert_eq!((spread.mean, spread.p50, spread.p75, spread.max), (2.0, 2.0, 2.5, 3.0));
/// ```
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let sorted = Sorted::new(values)?;
    let sample: Moments = sorted.values().iter().copied().collect();
    let at = |share| sorted.quantile(share);
    Some(Spread {
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

/// Collects the trials of a group by task.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    figures: Figures,
    task: Option<u32>,
    /// Those with trials that are not skipped, in the order in which they come.
    tasks: Vec<TaskTries>,
    /// All rewards.
    rewards: Moments,
    durations: Vec<f64>,
    costs: Vec<f64>,
}

/// What the trials of a task come to. There may be a million tasks.
#[derive(Debug, Clone, Copy, Default)]
struct TaskTries {
    /// The sum of the rewards.
    sum: f64,
    /// Trials with a reward.
    scored: u32,
    solved: u32,
    /// Failed trials that count as unsolved.
    failed: u32,
}

impl Gather {
    /// Adds a trial. The trials of a task must be added one after the other.
    pub(crate) fn add(&mut self, task: u32, trial: &TrialSummary) {
        self.figures.trials += 1;
        if self.task.replace(task) != Some(task) {
            self.figures.tasks += 1;
            self.tasks.push(TaskTries::default());
        }
        let tries = self.tasks.last_mut().expect("the task of a trial is there");
        match trial.standing {
            Standing::Skipped => {
                self.figures.skipped += 1;
                return;
            }
            Standing::Failed => {
                self.figures.failed += 1;
                match trial.headline_reward() {
                    Some(_) => tries.failed += 1,
                    None => self.figures.excluded += 1,
                }
            }
            Standing::Completed => {
                self.figures.completed += 1;
                match trial.reward {
                    Some(reward) => {
                        self.rewards.add(reward);
                        tries.sum += reward;
                        tries.scored += 1;
                        tries.solved += u32::from(trial.is_solved());
                    }
                    None => self.figures.unscored += 1,
                }
            }
        }
        self.durations.push(trial.seconds);
        self.costs.extend(trial.known_cost());
    }

    /// Returns the number of trials.
    pub(super) fn trials(&self) -> u64 {
        self.figures.trials
    }

    pub(crate) fn finish(mut self, confidence: Confidence, resampling: Resampling) -> Figures {
        let failed_excluded = self.scores(confidence, resampling);
        let failures: u32 = self.tasks.iter().map(|task| task.failed).sum();
        let headline = if failures == 0 {
            failed_excluded.clone()
        } else {
            // From here on they are trials with reward 0.
            self.tasks.iter_mut().for_each(|task| task.scored += std::mem::take(&mut task.failed));
            self.rewards.extend((0..failures).map(|_| 0.0));
            self.scores(confidence, resampling)
        };
        self.tasks = Vec::new();
        Figures {
            headline,
            failed_excluded,
            duration_sec: spread(self.durations),
            cost_usd: spread(self.costs),
            ..self.figures
        }
    }

    fn scores(&self, confidence: Confidence, resampling: Resampling) -> Scores {
        let all = &self.rewards;
        let trials = all.count();
        let scored = || self.tasks.iter().filter(|task| task.scored > 0);
        let sums = || scored().map(|task| TaskSum { count: u64::from(task.scored), sum: task.sum });
        let solved = scored().map(|task| u64::from(task.solved)).sum();
        let rate = |interval| PassRate { rate: solved as f64 / trials as f64, interval };
        let plain = || {
            let (standard_error, interval) = (all.standard_error()?, all.interval(confidence)?);
            Some(Estimate { standard_error, interval })
        };
        let resamples = resampling.resamples as usize;
        let mean_reward = all.mean().map(|mean| MeanReward {
            mean,
            plain: plain(),
            clustered: clusters::estimate(all, sums(), confidence),
            bootstrap: clusters::bootstrap(sums(), resamples, confidence, seeded(resampling.seed)),
        });
        let tries = |task: &TaskTries| Tries { all: task.scored.into(), correct: task.solved.into() };
        let mut pass_k = pass_curve::points(scored().map(tries));
        pass_k.truncate(MOST_TRIES);
        Scores {
            trials,
            solved,
            pass_rate: wilson(solved, trials, confidence).map(rate),
            mean_reward,
            pass_k,
        }
    }
}
