//! pass@k and pass^k: the probability of success in at least one, or in all, of k tries.

use std::collections::BTreeMap;

use indexmap::IndexMap;

/// The probability that at least one of `k` tries succeeds, drawn from `n` tries of which `correct` succeeded.
///
/// It is not defined for more tries than `n`, so a larger `k` is treated as `n`.
///
/// ```
/// assert_eq!(rollout::stats::pass_at_k(4, 2, 1), 0.5);
/// assert_eq!(rollout::stats::pass_at_k(4, 2, 4), 1.0);
/// ```
pub fn pass_at_k(n: u64, correct: u64, k: u64) -> f64 {
    let correct = correct.min(n);
    1.0 - all_of(n, n - correct, k)
}

/// The probability that all of `k` tries succeed, drawn from `n` tries of which `correct` succeeded.
///
/// ```
/// assert_eq!(rollout::stats::pass_all_k(4, 2, 1), 0.5);
/// assert_eq!(rollout::stats::pass_all_k(4, 2, 4), 0.0);
/// ```
pub fn pass_all_k(n: u64, correct: u64, k: u64) -> f64 {
    all_of(n, correct.min(n), k)
}

/// The probability that `k` items drawn from `n` are all among `chosen` of them: C(chosen, k) / C(n, k).
fn all_of(n: u64, chosen: u64, k: u64) -> f64 {
    let k = k.min(n);
    if chosen < k {
        return 0.0;
    }
    match (binomial(chosen, k), binomial(n, k)) {
        // One division of integers is as exact as a float can be.
        (Some(ways), Some(all)) => ways as f64 / all as f64,
        _ => (0..k).map(|drawn| (chosen - drawn) as f64 / (n - drawn) as f64).product(),
    }
}

/// C(n, k), or None on overflow.
fn binomial(n: u64, k: u64) -> Option<u128> {
    let k = k.min(n - k);
    (1..=k).try_fold(1_u128, |ways, i| Some(ways.checked_mul(u128::from(n - k + i))? / u128::from(i)))
}

/// Collects rewards, and computes pass@k and pass^k for k = 1, 2, 4, … up to the number of rollouts per example.
///
/// Only examples with exactly that many rollouts count. The result does not depend on the order of the rewards. With
/// one rollout per example the result is empty.
///
/// ```
/// let mut passes = rollout::stats::PassK::new(2, 0.5);
/// for (example, reward) in [(0, 1.0), (0, 0.0), (1, 1.0), (1, 1.0)] {
///     passes.add(example, reward);
/// }
/// assert_eq!(passes.at_k()["1"], 0.75);
/// assert_eq!(passes.all_k()["2"], 0.5);
/// ```
#[derive(Debug, Clone)]
pub struct PassK {
    rollouts: u64,
    threshold: f64,
    examples: BTreeMap<u64, Tries>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tries {
    all: u32,
    correct: u32,
}

impl PassK {
    /// The default threshold of success.
    pub const THRESHOLD: f64 = 0.5;

    /// Creates an empty collection for this many rollouts per example.
    pub fn new(rollouts_per_example: u64, threshold: f64) -> Self {
        Self { rollouts: rollouts_per_example, threshold, examples: BTreeMap::new() }
    }

    /// Adds the reward of one rollout of an example.
    pub fn add(&mut self, example_id: u64, reward: f64) {
        if self.rollouts <= 1 {
            return;
        }
        let tries = self.examples.entry(example_id).or_default();
        tries.all += 1;
        tries.correct += u32::from(reward >= self.threshold);
    }

    /// The mean probability that at least one of k rollouts succeeds, by k.
    pub fn at_k(&self) -> IndexMap<String, f64> {
        self.by_k(pass_at_k)
    }

    /// The mean probability that all of k rollouts succeed, by k.
    pub fn all_k(&self) -> IndexMap<String, f64> {
        self.by_k(pass_all_k)
    }

    fn by_k(&self, chance: fn(u64, u64, u64) -> f64) -> IndexMap<String, f64> {
        let is_complete = |tries: &&Tries| u64::from(tries.all) == self.rollouts;
        let complete = self.examples.values().filter(is_complete);
        let complete: Vec<u64> = complete.map(|tries| u64::from(tries.correct)).collect();
        if self.rollouts <= 1 || complete.is_empty() {
            return IndexMap::new();
        }
        let powers =
            std::iter::successors(Some(1_u64), |k| k.checked_mul(2)).take_while(|&k| k <= self.rollouts);
        powers
            .map(|k| {
                let sum: f64 = complete.iter().map(|&correct| chance(self.rollouts, correct, k)).sum();
                (k.to_string(), sum / complete.len() as f64)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn passes(n: u64, examples: &[&[f64]]) -> PassK {
        let mut passes = PassK::new(n, PassK::THRESHOLD);
        for (example, rewards) in (0..).zip(examples) {
            rewards.iter().for_each(|&reward| passes.add(example, reward));
        }
        passes
    }

    fn values(by_k: &IndexMap<String, f64>) -> Vec<(&str, f64)> {
        by_k.iter().map(|(k, value)| (k.as_str(), *value)).collect()
    }

    #[test]
    fn chances_are_means_over_examples() {
        let passes = passes(4, &[&[1.0, 1.0, 0.0, 0.0], &[0.0; 4], &[1.0; 4]]);
        assert_eq!(
            values(&passes.at_k()),
            [("1", 0.5), ("2", 0.611_111_111_111_111_2), ("4", 0.666_666_666_666_666_6)]
        );
        assert_eq!(
            values(&passes.all_k()),
            [("1", 0.5), ("2", 0.388_888_888_888_888_9), ("4", 0.333_333_333_333_333_3)]
        );
    }

    #[test]
    fn a_reward_at_the_threshold_is_a_success() {
        let at_k = passes(4, &[&[0.5, 0.49, 1.0, 0.0]]).at_k();
        assert_eq!((at_k["1"], at_k["4"]), (0.5, 1.0));
        assert!((at_k["2"] - 5.0 / 6.0).abs() < 1e-15);
    }

    #[test]
    fn only_examples_with_all_their_rollouts_count() {
        let passes = passes(2, &[&[1.0, 0.0], &[1.0], &[1.0, 1.0, 1.0]]);
        assert_eq!(values(&passes.at_k()), [("1", 0.5), ("2", 1.0)]);
    }

    #[test]
    fn powers_of_two_go_up_to_the_number_of_rollouts_in_order() {
        let passes = passes(12, &[&[1.0; 12]]);
        assert_eq!(passes.at_k().keys().collect::<Vec<_>>(), ["1", "2", "4", "8"]);
    }

    #[test]
    fn single_rollouts_and_incomplete_examples_have_no_estimate() {
        assert!(passes(1, &[&[1.0]]).at_k().is_empty());
        assert!(passes(0, &[]).all_k().is_empty());
        assert!(passes(4, &[&[1.0]]).at_k().is_empty());
    }

    #[test]
    fn chances_of_many_rollouts_stay_chances() {
        for k in [1, 2, 1024, 5_000, 10_000] {
            let chance = pass_at_k(10_000, 1, k);
            assert!((chance - k as f64 / 10_000.0).abs() < 1e-9, "{k}: {chance}");
        }
    }

    /// Draws every set of `k` tries.
    fn enumerated(n: u64, correct: u64, k: u64) -> (f64, f64) {
        let (mut any, mut all, mut sets) = (0_u32, 0_u32, 0_u32);
        let successes = (1_u32 << correct) - 1;
        for set in (0..1_u32 << n).filter(|set| u64::from(set.count_ones()) == k) {
            sets += 1;
            any += u32::from(set & successes != 0);
            all += u32::from(set & !successes == 0);
        }
        (f64::from(any) / f64::from(sets), f64::from(all) / f64::from(sets))
    }

    proptest! {
        #[test]
        fn chances_are_those_of_drawing_every_set(n in 1_u64..=12, correct in 0_u64..=12, k in 1_u64..=12) {
            let (correct, k) = (correct.min(n), k.min(n));
            let (any, all) = enumerated(n, correct, k);
            prop_assert!((pass_at_k(n, correct, k) - any).abs() < 1e-12);
            prop_assert!((pass_all_k(n, correct, k) - all).abs() < 1e-12);
        }

        #[test]
        fn any_numbers_give_a_chance(n: u32, correct: u32, k in 0_u64..2_000) {
            for chance in [pass_at_k(n.into(), correct.into(), k), pass_all_k(n.into(), correct.into(), k)] {
                prop_assert!((0.0..=1.0).contains(&chance));
            }
        }

        #[test]
        fn order_does_not_matter(mut rewards in prop::collection::vec((0_u64..20, 0.0..1.0_f64), 0..100)) {
            let gather = |rewards: &[(u64, f64)]| {
                let mut passes = PassK::new(4, 0.5);
                rewards.iter().for_each(|&(example, reward)| passes.add(example, reward));
                (passes.at_k(), passes.all_k())
            };
            let forward = gather(&rewards);
            rewards.reverse();
            prop_assert_eq!(forward, gather(&rewards));
        }
    }
}
