//! Mean and standard deviation of a stream of values.

use super::{Confidence, distribution::t_critical, finite};
use rollout_core::statistics::Interval;

/// Collects values one by one, and computes their mean and standard deviation.
///
/// ```
/// let sample: rollout::stats::Moments = [2.0, 4.0, 6.0].into_iter().collect();
/// assert_eq!((sample.mean(), sample.sd()), (Some(4.0), Some(2.0)));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    count: u64,
    sum: f64,
    /// The current mean, from which the deviation of the next value is computed.
    mean: f64,
    /// The sum of squared deviations from the mean. It does not lose digits if the values are far from zero.
    squares: f64,
}

impl Moments {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The mean; requires one value. It is exactly the sum divided by the number of values.
    pub fn mean(&self) -> Option<f64> {
        if self.count == 0 { None } else { finite(self.sum / self.count as f64) }
    }

    /// The sample standard deviation with divisor n − 1; requires two values.
    pub fn sd(&self) -> Option<f64> {
        if self.count < 2 { None } else { finite((self.squares / (self.count - 1) as f64).sqrt()) }
    }

    /// The standard error of the mean; requires two independent values.
    pub fn standard_error(&self) -> Option<f64> {
        Some(self.sd()? / (self.count as f64).sqrt())
    }

    /// The interval of the mean by Student's distribution; requires two independent values.
    pub fn interval(&self, confidence: Confidence) -> Option<Interval> {
        let (mean, error) = (self.mean()?, self.standard_error()?);
        let reach = t_critical(self.count - 1, confidence.miss()) * error;
        Interval::finite(mean - reach, mean + reach)
    }
}

impl Extend<f64> for Moments {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.add(value));
    }
}

impl FromIterator<f64> for Moments {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut sample = Self::default();
        sample.extend(values);
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Moments {
        values.iter().copied().collect()
    }

    #[test]
    fn one_value_has_a_mean_and_no_spread() {
        assert_eq!(sample(&[]).mean(), None);
        let one = sample(&[0.5]);
        assert_eq!((one.mean(), one.sd(), one.standard_error()), (Some(0.5), None, None));
        assert_eq!(one.interval(Confidence::P95), None);
        assert_eq!(sample(&[]).interval(Confidence::P95), None);
    }

    #[test]
    fn the_mean_is_the_sum_divided_by_the_count_to_the_last_bit() {
        let ones = sample(&[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
        assert_eq!(ones.mean(), Some(0.8));
        let tenths = [0.1, 0.2, 0.3, 0.7];
        assert_eq!(sample(&tenths).mean(), Some(tenths.iter().sum::<f64>() / 4.0));
    }

    #[test]
    fn spread_is_divided_by_one_less_than_the_count() {
        let four = sample(&[1.0, 1.0, 0.0, 0.0]);
        assert_eq!(four.sd(), Some((1.0_f64 / 3.0).sqrt()));
        assert_eq!(four.standard_error(), Some((1.0_f64 / 3.0).sqrt() / 2.0));
    }

    #[test]
    fn the_interval_is_as_wide_as_students_table_says() {
        let interval = sample(&[1.0, 2.0, 3.0]).interval(Confidence::P95).unwrap();
        let reach = 4.302_652_729_749_464 / 3.0_f64.sqrt();
        assert!(
            (interval.low - (2.0 - reach)).abs() < 1e-10 && (interval.high - (2.0 + reach)).abs() < 1e-10
        );
    }

    #[test]
    fn values_far_from_zero_keep_their_spread() {
        let far = sample(&[1e9 + 4.0, 1e9 + 7.0, 1e9 + 13.0, 1e9 + 16.0]);
        assert_eq!((far.mean(), far.sd()), (Some(1e9 + 10.0), Some(30.0_f64.sqrt())));
    }

    #[test]
    fn values_that_are_not_finite_have_no_result() {
        for values in [[f64::NAN, 1.0], [f64::INFINITY, 1.0], [f64::MAX, f64::MIN]] {
            let sample = sample(&values);
            assert_eq!((sample.sd(), sample.interval(Confidence::P95)), (None, None), "{values:?}");
        }
    }
}
