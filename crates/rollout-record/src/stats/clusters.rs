//! Values grouped by task: the mean over all values, and its uncertainty.

use std::collections::BTreeMap;

use super::{Confidence, Moments, Sorted, distribution::t_critical, finite};
use rollout_core::statistics::{Estimate, Interval};

/// Collects values by task.
///
/// Attempts at the same task are similar, so many attempts at few tasks contain less information than independent
/// values. Each task is treated as one cluster. Only the sums of each task are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Clusters<K> {
    all: Moments,
    by_task: BTreeMap<K, Moments>,
}

impl<K> Default for Clusters<K> {
    fn default() -> Self {
        Self { all: Moments::default(), by_task: BTreeMap::new() }
    }
}

impl<K: Ord> Clusters<K> {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value of a task.
    pub fn add(&mut self, task: K, value: f64) {
        self.all.add(value);
        self.by_task.entry(task).or_default().add(value);
    }

    /// Returns the moments of all values, as if they were independent.
    pub fn all(&self) -> &Moments {
        &self.all
    }

    /// Returns the values of each task, in the order of the tasks.
    pub fn by_task(&self) -> &BTreeMap<K, Moments> {
        &self.by_task
    }

    /// The standard error of the mean over all values, clustered by task; requires two tasks.
    pub fn standard_error(&self) -> Option<f64> {
        standard_error(&self.all, self.sums())
    }

    /// The standard error and the interval by Student's distribution. The degrees of freedom are the number of tasks
    /// minus one.
    pub fn estimate(&self, confidence: Confidence) -> Option<Estimate> {
        estimate(&self.all, self.sums(), confidence)
    }

    /// The standard deviation of resampled means over all values, and the interval between their percentiles; requires
    /// two tasks.
    ///
    /// Each resample draws as many tasks as there are, with all their values. `draw` returns the index of a task, and is
    /// called once for each task of each resample. See [`seeded`](super::seeded).
    ///
    /// # Panics
    ///
    /// If `draw` returns a number that is not below its argument.
    pub fn bootstrap(
        &self,
        resamples: usize,
        confidence: Confidence,
        draw: impl FnMut(usize) -> usize,
    ) -> Option<Estimate> {
        bootstrap(self.sums(), resamples, confidence, draw)
    }

    fn sums(&self) -> impl Iterator<Item = TaskSum> + Clone {
        self.by_task.values().map(|task| TaskSum { count: task.count(), sum: task.sum() })
    }
}

/// The values of a task, in as far as a clustered mean depends on them.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskSum {
    pub(super) count: u64,
    pub(super) sum: f64,
}

impl TaskSum {
    fn mean(self) -> Option<f64> {
        finite(self.sum / self.count as f64)
    }
}

/// The standard error of the mean over all values of these tasks.
fn standard_error(all: &Moments, sums: impl Iterator<Item = TaskSum>) -> Option<f64> {
    let mean = all.mean()?;
    let (mut tasks, mut squares) = (0_u64, 0.0);
    for task in sums {
        tasks += 1;
        squares += (task.count as f64 * (task.mean().unwrap_or(f64::NAN) - mean)).powi(2);
    }
    if tasks < 2 {
        return None;
    }
    let tasks = tasks as f64;
    finite((squares * tasks / (tasks - 1.0)).sqrt() / all.count() as f64)
}

/// See [`Clusters::estimate`].
pub(super) fn estimate(
    all: &Moments,
    sums: impl Iterator<Item = TaskSum> + Clone,
    confidence: Confidence,
) -> Option<Estimate> {
    let (mean, standard_error) = (all.mean()?, standard_error(all, sums.clone())?);
    let reach = t_critical(sums.count() as u64 - 1, confidence.miss()) * standard_error;
    let interval = Interval::finite(mean - reach, mean + reach)?;
    Some(Estimate { standard_error, interval })
}

/// See [`Clusters::bootstrap`].
pub(super) fn bootstrap(
    sums: impl Iterator<Item = TaskSum>,
    resamples: usize,
    confidence: Confidence,
    mut draw: impl FnMut(usize) -> usize,
) -> Option<Estimate> {
    let tasks: Vec<(f64, f64)> = sums
        .map(|task| Some((task.count as f64, task.count as f64 * task.mean()?)))
        .collect::<Option<_>>()?;
    if tasks.len() < 2 {
        return None;
    }
    let means = Sorted::new((0..resamples).map(|_| {
        let (mut count, mut sum) = (0.0, 0.0);
        for _ in 0..tasks.len() {
            let task = tasks[draw(tasks.len())];
            count += task.0;
            sum += task.1;
        }
        sum / count
    }))?;
    let standard_error = means.values().iter().copied().collect::<Moments>().sd()?;
    let outside = confidence.miss() / 2.0;
    let interval = Interval::finite(means.quantile(outside), means.quantile(1.0 - outside))?;
    Some(Estimate { standard_error, interval })
}

impl<K: Ord> Extend<(K, f64)> for Clusters<K> {
    fn extend<I: IntoIterator<Item = (K, f64)>>(&mut self, values: I) {
        values.into_iter().for_each(|(task, value)| self.add(task, value));
    }
}

impl<K: Ord> FromIterator<(K, f64)> for Clusters<K> {
    fn from_iter<I: IntoIterator<Item = (K, f64)>>(values: I) -> Self {
        let mut clusters = Self::new();
        clusters.extend(values);
        clusters
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clusters(values: &[(u64, f64)]) -> Clusters<u64> {
        values.iter().copied().collect()
    }

    #[test]
    fn attempts_with_equal_results_count_as_one() {
        let once = clusters(&[(0, 1.0), (1, 0.0), (2, 1.0)]);
        let thrice: Clusters<u64> = (0..3).flat_map(|_| [(0, 1.0), (1, 0.0), (2, 1.0)]).collect();
        assert!((once.standard_error().unwrap() - once.all().standard_error().unwrap()).abs() < 1e-15);
        assert!((once.standard_error().unwrap() - thrice.standard_error().unwrap()).abs() < 1e-15);
        assert!(thrice.all().standard_error() < thrice.standard_error());
    }

    #[test]
    fn a_table_by_hand() {
        // The means are 0.5 and 1 about 0.75: each task deviates by half a point in sum, so sqrt((0.25 + 0.25) · 2 / 1)
        // / 4.
        let two = clusters(&[(0, 1.0), (0, 0.0), (1, 1.0), (1, 1.0)]);
        assert_eq!(two.standard_error(), Some(0.25));
        // Tasks with many attempts have more weight: the deviations are 1.5 − 3 · 0.75 and 1.5 − 1 · 0.75.
        let uneven = clusters(&[(0, 1.0), (0, 1.0), (0, 0.0), (1, 1.0)]);
        assert!(
            (uneven.standard_error().unwrap() - (0.25_f64.powi(2) * 2.0 * 2.0).sqrt() / 4.0).abs() < 1e-15
        );
    }

    #[test]
    fn a_single_task_has_no_interval() {
        let one = clusters(&[(0, 1.0), (0, 0.0)]);
        assert_eq!((one.standard_error(), one.bootstrap(10, Confidence::P95, |_| 0)), (None, None));
        assert_eq!(Clusters::<u64>::new().standard_error(), None);
    }

    #[test]
    fn resamples_draw_whole_tasks() {
        let two = clusters(&[(0, 0.0), (0, 0.0), (0, 0.0), (1, 1.0)]);
        let mut drawn = [0, 0, 0, 1, 1, 1].into_iter();
        let estimate = two.bootstrap(3, Confidence::new(0.5).unwrap(), |_| drawn.next().unwrap()).unwrap();
        // The means are 0, 1/4 and 1, so the quartiles are halfway to the middle one.
        assert_eq!(estimate.interval, Interval { low: 0.125, high: 0.625 });
        assert!((estimate.standard_error - (13.0_f64 / 48.0).sqrt()).abs() < 1e-15);
        assert_eq!(drawn.next(), None);
    }

    #[test]
    fn values_that_are_not_finite_have_no_result() {
        for value in [f64::NAN, f64::INFINITY] {
            let broken = clusters(&[(0, value), (1, 1.0)]);
            assert_eq!(broken.standard_error(), None);
            assert_eq!(broken.bootstrap(10, Confidence::P95, super::super::seeded(0)), None);
        }
        let fine = clusters(&[(0, 0.0), (1, 1.0)]);
        assert_eq!(fine.bootstrap(0, Confidence::P95, super::super::seeded(0)), None);
    }

    proptest! {
        #[test]
        fn the_interval_lies_within_the_values(values in prop::collection::vec((0_u64..8, 0.0..1.0_f64), 1..60), seed: u64) {
            let clusters = clusters(&values);
            let estimate = clusters.bootstrap(50, Confidence::P95, super::super::seeded(seed));
            prop_assert_eq!(estimate.is_some(), clusters.by_task().len() > 1);
            prop_assert_eq!(clusters.estimate(Confidence::P95).is_some(), clusters.by_task().len() > 1);
            if let Some(Estimate { interval, .. }) = estimate {
                prop_assert!(-1e-9 <= interval.low && interval.low <= interval.high && interval.high <= 1.0 + 1e-9);
            }
        }
    }
}
