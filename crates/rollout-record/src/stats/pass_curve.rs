//! pass@k and pass^k as functions of k.

use std::collections::BTreeMap;

use rollout_core::statistics::PassPoint;

/// Collects successes by task, and computes pass@k and pass^k for every k up to the largest number of tries of a task.
///
/// Tasks may have different numbers of tries: each k uses the tasks with at least k tries. The order of the tries does
/// not matter.
///
/// ```
/// let mut curve = rollout::stats::PassCurve::new();
/// for (task, success) in [("a", true), ("a", false), ("b", true)] {
///     curve.add(task, success);
/// }
/// let [once, twice] = curve.points()[..] else { panic!() };
/// assert_eq!((once.tasks, once.at_k, once.all_k), (2, 0.75, 0.75));
/// assert_eq!((twice.tasks, twice.at_k, twice.all_k), (1, 1.0, 0.0));
/// ```
#[derive(Debug, Clone)]
pub struct PassCurve<K> {
    tasks: BTreeMap<K, Tries>,
}

/// How often a task was tried, and how often it was solved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tries {
    pub(super) all: u64,
    pub(super) correct: u64,
}

impl<K> Default for PassCurve<K> {
    fn default() -> Self {
        Self { tasks: BTreeMap::new() }
    }
}

impl<K: Ord> PassCurve<K> {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a try at a task.
    pub fn add(&mut self, task: K, success: bool) {
        let tries = self.tasks.entry(task).or_default();
        tries.all += 1;
        tries.correct += u64::from(success);
    }

    /// Returns the probabilities for k = 1, 2, 3, … up to the largest number of tries of a task.
    pub fn points(&self) -> Vec<PassPoint> {
        points(self.tasks.values().copied())
    }
}

/// See [`PassCurve::points`].
pub(super) fn points(tasks: impl Iterator<Item = Tries>) -> Vec<PassPoint> {
    // Many tasks have the same counts, and then the same chances.
    let mut alike: BTreeMap<Tries, u64> = BTreeMap::new();
    for tries in tasks {
        *alike.entry(tries).or_default() += 1;
    }
    let most = alike.keys().next_back().map_or(0, |tries| tries.all);
    let mut points: Vec<PassPoint> =
        (1..=most).map(|k| PassPoint { k, tasks: 0, at_k: 0.0, all_k: 0.0 }).collect();
    for (Tries { all, correct }, tasks) in alike {
        let weight = tasks as f64;
        let (mut no_success, mut no_failure) = (1.0, 1.0);
        for (drawn, point) in (0..all).zip(&mut points) {
            let left = (all - drawn) as f64;
            no_success *= (all - correct).saturating_sub(drawn) as f64 / left;
            no_failure *= correct.saturating_sub(drawn) as f64 / left;
            point.tasks += tasks;
            point.at_k += weight * (1.0 - no_success);
            point.all_k += weight * no_failure;
        }
    }
    for point in &mut points {
        point.at_k /= point.tasks as f64;
        point.all_k /= point.tasks as f64;
    }
    points
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{pass_all_k, pass_at_k},
        *,
    };

    #[test]
    fn without_tries_there_is_nothing_to_tell() {
        assert_eq!(PassCurve::<u64>::new().points(), []);
    }

    #[test]
    fn a_task_with_a_hundred_thousand_tries_is_computed_quickly() {
        let mut curve = PassCurve::new();
        (0..100_000).for_each(|attempt| curve.add(0, attempt == 0));
        let points = curve.points();
        assert_eq!(points.len(), 100_000);
        assert!((points[49_999].at_k - 0.5).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn each_point_is_the_mean_over_the_tasks_that_have_it(
            tasks in prop::collection::vec((1_u64..12, 0_u64..12), 1..10)
        ) {
            let mut curve = PassCurve::new();
            let tasks: Vec<(u64, u64)> = tasks.into_iter().map(|(all, correct)| (all, correct.min(all))).collect();
            for (task, (all, correct)) in tasks.iter().enumerate() {
                (0..*all).for_each(|attempt| curve.add(task, attempt < *correct));
            }
            let points = curve.points();
            prop_assert_eq!(points.len() as u64, tasks.iter().map(|task| task.0).max().unwrap());
            for point in points {
                let counted: Vec<_> = tasks.iter().filter(|task| task.0 >= point.k).collect();
                let mean = |chance: fn(u64, u64, u64) -> f64| {
                    let sum: f64 = counted.iter().map(|(all, correct)| chance(*all, *correct, point.k)).sum();
                    sum / counted.len() as f64
                };
                prop_assert_eq!(point.tasks, counted.len() as u64);
                prop_assert!((point.at_k - mean(pass_at_k)).abs() < 1e-12);
                prop_assert!((point.all_k - mean(pass_all_k)).abs() < 1e-12);
            }
        }
    }
}
