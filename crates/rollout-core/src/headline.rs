//! The headline of a job: its main rate, and the trials that it counts and excludes.

use serde::{Deserialize, Serialize};

use crate::result::{FailureCause, Totals};

/// The fraction of solved trials among those that count: trials with a reward, and trials that failed because of the
/// agent or the tests.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Headline {
    /// Solved trials divided by counted trials; None if no trial counts.
    pub pass_rate: Option<f64>,
    /// The mean reward of counted trials, where a failed trial has 0; None if no trial counts.
    pub mean_reward: Option<f64>,
    /// Trials whose reward reaches the threshold of their dataset.
    pub solved_trials: u64,
    /// The number of trials that count.
    pub counted_trials: u64,
    /// The counted trials by kind.
    pub counted: CountedTrials,
    /// The excluded trials by kind.
    pub excluded: ExcludedTrials,
}

/// The trials that a headline counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CountedTrials {
    /// Completed trials with a reward.
    pub scored: u64,
    /// Trials that failed because of the agent. They count as unsolved.
    pub failed_by_agent: u64,
    /// Trials that failed because of the tests. They count as unsolved.
    pub failed_by_verifier: u64,
}

/// The trials that a headline excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExcludedTrials {
    /// Trials that failed because of the machine, the provider or Rollout.
    pub failed_by_infrastructure: u64,
    /// Trials that failed because of the task's files.
    pub failed_by_task: u64,
    /// Completed trials without a reward.
    pub unscored: u64,
    /// Trials that a cancelled job did not finish.
    pub skipped: u64,
}

impl Totals {
    /// Returns the headline of these trials.
    pub fn headline(&self) -> Headline {
        let mut counted = CountedTrials { scored: self.rewarded_trials, ..CountedTrials::default() };
        let mut excluded = ExcludedTrials {
            unscored: self.completed_trials - self.rewarded_trials,
            skipped: self.skipped_trials,
            ..ExcludedTrials::default()
        };
        for (kind, trials) in &self.errors {
            let place = match kind.fault() {
                FailureCause::Agent => &mut counted.failed_by_agent,
                FailureCause::Verifier => &mut counted.failed_by_verifier,
                FailureCause::Infrastructure => &mut excluded.failed_by_infrastructure,
                FailureCause::Task => &mut excluded.failed_by_task,
            };
            *place += trials;
        }
        let all = counted.scored + counted.failed_by_agent + counted.failed_by_verifier;
        let share = |sum: f64| (all > 0).then(|| sum / all as f64);
        Headline {
            pass_rate: share(self.solved_trials as f64),
            mean_reward: share(self.reward_sum),
            solved_trials: self.solved_trials,
            counted_trials: all,
            counted,
            excluded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{ErrorType, Standing, TrialSummary};

    fn totals(trials: &[TrialSummary]) -> Totals {
        let mut totals = Totals::default();
        trials.iter().for_each(|trial| totals.add(*trial));
        totals
    }

    fn scored(reward: f64) -> TrialSummary {
        TrialSummary { standing: Standing::Completed, reward: Some(reward), ..TrialSummary::SKIPPED }
    }

    fn failed(kind: ErrorType) -> TrialSummary {
        TrialSummary { standing: Standing::Failed, error: Some(kind), ..TrialSummary::SKIPPED }
    }

    #[test]
    fn an_agent_that_crashes_in_nine_of_ten_trials_solves_one_of_ten() {
        let mut trials = vec![failed(ErrorType::AgentExecutionFailed); 9];
        trials.push(scored(1.0));
        let totals = totals(&trials);
        let headline = totals.headline();
        assert_eq!((headline.pass_rate, headline.mean_reward), (Some(0.1), Some(0.1)));
        assert_eq!((headline.counted.scored, headline.counted.failed_by_agent), (1, 9));
        // The specification's rate is over completed trials.
        assert_eq!(totals.pass_rate(), 1.0);
    }

    #[test]
    fn failures_of_the_infrastructure_and_the_task_are_excluded_and_counted() {
        let headline = totals(&[
            scored(1.0),
            scored(0.0),
            failed(ErrorType::VerifierTimeout),
            failed(ErrorType::EnvironmentStartFailed),
            failed(ErrorType::InternalError),
            failed(ErrorType::TaskInvalid),
            TrialSummary { standing: Standing::Completed, ..TrialSummary::SKIPPED },
            TrialSummary::SKIPPED,
        ])
        .headline();
        assert_eq!((headline.solved_trials, headline.counted_trials), (1, 3));
        assert_eq!(headline.counted.failed_by_verifier, 1);
        let excluded =
            ExcludedTrials { failed_by_infrastructure: 2, failed_by_task: 1, unscored: 1, skipped: 1 };
        assert_eq!(headline.excluded, excluded);
    }

    #[test]
    fn trials_that_were_not_scored_have_no_rate() {
        let unscored = TrialSummary { standing: Standing::Completed, ..TrialSummary::SKIPPED };
        let headline = totals(&[unscored, unscored]).headline();
        assert_eq!((headline.pass_rate, headline.mean_reward, headline.excluded.unscored), (None, None, 2));
    }

    #[test]
    fn a_trial_is_solved_from_the_threshold_of_its_dataset_on() {
        let lenient = |reward| TrialSummary { pass_threshold: 0.5, ..scored(reward) };
        let totals = totals(&[lenient(0.7), lenient(0.5), lenient(0.4), scored(0.7), scored(1.5)]);
        assert_eq!((totals.solved_trials, totals.passed_trials), (3, 0));
    }

    #[test]
    fn sums_of_the_largest_numbers_stay_numbers() {
        let huge = TrialSummary { model_cost: Some(f64::MAX), ..scored(f64::MAX) };
        let totals = totals(&[huge, huge]);
        assert!(
            [totals.total_cost, totals.reward_sum, totals.mean_reward()].iter().all(|sum| sum.is_finite())
        );
    }
}
