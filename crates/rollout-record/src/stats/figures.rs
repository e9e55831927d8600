//! The figures of a group of trials: counts, scores, uncertainty, durations and costs.

use super::{Clusters, Confidence, Moments, PassCurve, Sorted, seeded, wilson};
use rollout_core::result::{Standing, TrialSummary};
use rollout_core::statistics::{Estimate, Figures, MeanReward, PassRate, Resampling, Scores, Spread};

/// The maximum k of pass@k and pass^k.
pub const MOST_TRIES: usize = 1_000;

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
    rewards: Clusters<u32>,
    curve: PassCurve<u32>,
    solved: u64,
    /// The tasks of failed trials that count as unsolved.
    counted_failures: Vec<u32>,
    durations: Vec<f64>,
    costs: Vec<f64>,
}

impl Gather {
    /// Adds a trial. The trials of a task must be added one after the other.
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
                match trial.headline_reward() {
                    Some(_) => self.counted_failures.push(task),
                    None => self.figures.excluded += 1,
                }
            }
            Standing::Completed => {
                self.figures.completed += 1;
                match trial.reward {
                    Some(reward) => self.score(task, reward, trial.is_solved()),
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

    fn score(&mut self, task: u32, reward: f64, is_solved: bool) {
        self.rewards.add(task, reward);
        self.curve.add(task, is_solved);
        self.solved += u64::from(is_solved);
    }

    pub(crate) fn finish(mut self, confidence: Confidence, resampling: Resampling) -> Figures {
        let failed_excluded = self.scores(confidence, resampling);
        let headline = if self.counted_failures.is_empty() {
            failed_excluded.clone()
        } else {
            let failures = std::mem::take(&mut self.counted_failures);
            failures.into_iter().for_each(|task| self.score(task, 0.0, false));
            self.scores(confidence, resampling)
        };
        Figures {
            headline,
            failed_excluded,
            duration_sec: spread(self.durations),
            cost_usd: spread(self.costs),
            ..self.figures
        }
    }

    fn scores(&self, confidence: Confidence, resampling: Resampling) -> Scores {
        let all = self.rewards.all();
        let trials = all.count();
        let rate = |interval| PassRate { rate: self.solved as f64 / trials as f64, interval };
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
            solved: self.solved,
            pass_rate: wilson(self.solved, trials, confidence).map(rate),
            mean_reward,
            pass_k,
        }
    }
}
