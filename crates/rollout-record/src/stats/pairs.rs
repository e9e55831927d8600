//! The paired comparison of two agents on the same tasks.

use serde::{Deserialize, Serialize};

use super::{Clusters, Confidence, Moments, finite};
use rollout_core::statistics::Interval;

/// A pair of values for each task, one for each of two agents.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs(Vec<(f64, f64)>);

/// The mean difference over the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeanDifference {
    /// The mean of the second minus the first value.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Its interval by Student's distribution. The degrees of freedom are the number of tasks minus one.
    pub interval: Interval,
}

/// The result of a permutation test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SignFlip {
    /// The two-sided p-value.
    pub p: f64,
    /// Whether all permutations were computed; otherwise `p` is an estimate.
    pub exact: bool,
}

impl Pairs {
    /// With at most this many tasks on which the agents differ, all permutations are computed: about a million.
    pub const EXACT: usize = 20;

    /// Creates pairs of values, that of the first agent first. All values must be finite.
    pub fn new(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let pairs: Vec<(f64, f64)> = pairs.into_iter().collect();
        pairs.iter().all(|(first, second)| first.is_finite() && second.is_finite()).then_some(Self(pairs))
    }

    /// Creates pairs of the means of common tasks, in the order of the tasks. Tasks with a value that is not finite are
    /// skipped.
    pub fn of<K: Ord>(first: &Clusters<K>, second: &Clusters<K>) -> Self {
        let both = first
            .by_task()
            .iter()
            .filter_map(|(task, sample)| Some((sample.mean()?, second.by_task().get(task)?.mean()?)));
        Self(both.collect())
    }

    /// The pairs.
    pub fn values(&self) -> &[(f64, f64)] {
        &self.0
    }

    /// Returns the mean difference; requires two tasks.
    pub fn mean_difference(&self, confidence: Confidence) -> Option<MeanDifference> {
        let sample: Moments = self.differences().collect();
        Some(MeanDifference {
            mean: sample.mean()?,
            standard_error: sample.standard_error()?,
            interval: sample.interval(confidence)?,
        })
    }

    /// Runs the permutation test of the mean difference: swaps the agents on some of the tasks, and counts how often
    /// the difference is at least as far from zero. Returns None without tasks.
    ///
    /// With at most [`EXACT`](Self::EXACT) tasks on which the agents differ, all permutations are computed, and `draw`
    /// is not called. Otherwise `resamples` permutations are drawn: for each differing task, in order, `draw(2)`
    /// returns 1 to swap it. The observed difference counts as one permutation, so the estimate is never zero.
    pub fn sign_flip(&self, resamples: usize, mut draw: impl FnMut(usize) -> usize) -> Option<SignFlip> {
        if self.0.is_empty() {
            return None;
        }
        // Swapping equal values changes nothing.
        let differences: Vec<f64> = self.differences().filter(|difference| *difference != 0.0).collect();
        // Sums of the same terms in another order may differ in the last digits.
        let rounding = 1e-12 * finite(differences.iter().map(|difference| difference.abs()).sum())?;
        let seen = differences.iter().sum::<f64>().abs() - rounding;
        if differences.len() <= Self::EXACT {
            let ways = 1_u64 << differences.len();
            return Some(SignFlip { p: as_far(&differences, 0.0, seen) as f64 / ways as f64, exact: true });
        }
        let hits = (0..resamples)
            .filter(|_| {
                let swapped = |difference: &f64| if draw(2) == 1 { -difference } else { *difference };
                differences.iter().map(swapped).sum::<f64>().abs() >= seen
            })
            .count();
        Some(SignFlip { p: (1 + hits) as f64 / (1 + resamples) as f64, exact: false })
    }

    /// Returns the total of the second agent divided by that of the first, or None if the latter is zero.
    pub fn ratio_of_totals(&self) -> Option<f64> {
        let (first, second) = self
            .0
            .iter()
            .fold((0.0, 0.0), |(firsts, seconds), (first, second)| (firsts + first, seconds + second));
        if first == 0.0 { None } else { finite(second / first) }
    }

    fn differences(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|(first, second)| second - first)
    }
}

/// Returns for how many choices of signs the sum is at least as far from zero.
fn as_far(numbers: &[f64], sum: f64, seen: f64) -> u64 {
    match numbers {
        [] => u64::from(sum.abs() >= seen),
        [first, rest @ ..] => as_far(rest, sum + first, seen) + as_far(rest, sum - first, seen),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::seeded, *};

    fn differences(differences: &[f64]) -> Pairs {
        Pairs::new(differences.iter().map(|difference| (0.0, *difference))).unwrap()
    }

    fn p(values: &[f64]) -> f64 {
        let test = differences(values).sign_flip(0, |_| panic!("nothing is drawn")).unwrap();
        assert!(test.exact);
        test.p
    }

    #[test]
    fn tasks_that_only_one_agent_has_are_left_out() {
        let first: Clusters<&str> = [("a", 0.0), ("a", 1.0), ("b", 1.0)].into_iter().collect();
        let second: Clusters<&str> = [("a", 1.0), ("c", 1.0)].into_iter().collect();
        assert_eq!(Pairs::of(&first, &second).values(), [(0.5, 1.0)]);
    }

    #[test]
    fn a_table_by_hand() {
        let difference = differences(&[1.0, 2.0, 3.0]).mean_difference(Confidence::P95).unwrap();
        let reach = 4.302_652_729_749_464 / 3.0_f64.sqrt();
        assert_eq!((difference.mean, difference.standard_error), (2.0, 1.0 / 3.0_f64.sqrt()));
        assert!((difference.interval.low - (2.0 - reach)).abs() < 1e-10);
        assert!((difference.interval.high - (2.0 + reach)).abs() < 1e-10);
        assert_eq!(differences(&[1.0]).mean_difference(Confidence::P95), None);
    }

    #[test]
    fn all_ways_to_swap_are_counted() {
        // Three wins: of eight permutations, only all kept and all swapped are as far.
        assert_eq!(p(&[1.0, 1.0, 1.0]), 0.25);
        assert_eq!(p(&[0.1, 0.2, 0.3]), 0.25);
        assert_eq!(p(&[1.0, -1.0]), 1.0);
        assert_eq!(p(&[1.0, 1.0, -1.0]), 1.0);
        assert_eq!(p(&[0.3, 0.2, -0.1]), 0.5);
        assert_eq!(p(&[0.0, 0.0]), 1.0);
        assert_eq!(p(&[1.0; 20]), 2.0 / f64::from(1 << 20));
        assert_eq!(differences(&[]).sign_flip(10, seeded(0)), None);
    }

    #[test]
    fn many_tasks_are_resampled_and_the_observed_difference_counts() {
        let many = differences(&[1.0; 30]);
        assert_eq!(many.sign_flip(99, |_| 0), Some(SignFlip { p: 1.0, exact: false }));
        let mut drawn = 0;
        let alternate = |_| {
            drawn += 1;
            drawn % 2
        };
        assert_eq!(many.sign_flip(99, alternate), Some(SignFlip { p: 0.01, exact: false }));
        assert_eq!(drawn, 99 * 30);
    }

    #[test]
    fn a_ratio_needs_something_to_compare_with() {
        let pairs = Pairs::new([(1.0, 3.0), (3.0, 3.0)]).unwrap();
        assert_eq!(pairs.ratio_of_totals(), Some(1.5));
        assert_eq!(Pairs::new([(0.0, 3.0)]).unwrap().ratio_of_totals(), None);
        assert_eq!(Pairs::new([]).unwrap().ratio_of_totals(), None);
        assert_eq!(Pairs::new([(1.0, f64::NAN)]), None);
    }

    proptest! {
        #[test]
        fn which_agent_is_first_does_not_matter(values in prop::collection::vec(-1.0..1.0_f64, 1..12)) {
            let swapped: Vec<f64> = values.iter().map(|value| -value).collect();
            prop_assert_eq!(p(&values), p(&swapped));
            prop_assert!(p(&values) >= 2.0 / f64::from(1_u32 << values.len()));
        }
    }
}
