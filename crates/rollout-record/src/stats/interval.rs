//! Confidence levels, and Wilson's interval of a rate.

use std::sync::LazyLock;

use rollout_core::statistics::Interval;

use super::distribution::normal_critical;

/// A confidence level: the probability that an interval contains the true value, between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Confidence(f64);

impl Confidence {
    /// 95 %.
    pub const P95: Self = Self(0.95);

    /// Creates a level between 0 and 1, both excluded.
    ///
    /// ```
    /// use rollout::stats::Confidence;
    ///
    /// assert_eq!(Confidence::new(0.95), Some(Confidence::P95));
    /// assert_eq!(Confidence::new(95.0), None);
    /// ```
    pub fn new(level: f64) -> Option<Self> {
        (level > 0.0 && level < 1.0).then_some(Self(level))
    }

    /// The level.
    pub fn level(self) -> f64 {
        self.0
    }

    /// The probability that the interval does not contain the true value.
    pub(super) fn miss(self) -> f64 {
        1.0 - self.0
    }

    /// The z that the absolute value of a standard normal variable exceeds with this probability.
    fn normal_critical(self) -> f64 {
        // It is computed in steps, and a job with many tasks needs the usual one for each of them.
        static P95: LazyLock<f64> = LazyLock::new(|| normal_critical(Confidence::P95.miss()));
        if self == Self::P95 { *P95 } else { normal_critical(self.miss()) }
    }
}

/// Wilson's interval of a success rate. It is within 0 to 1, and accurate for few trials and for rates near 0 or 1.
///
/// Returns None without trials. More successes than trials count as all trials.
///
/// ```
/// use rollout::stats::{Confidence, wilson};
///
/// let interval = wilson(10, 10, Confidence::P95).unwrap();
/// assert!(interval.low > 0.72 && interval.high == 1.0);
/// ```
pub fn wilson(successes: u64, trials: u64, confidence: Confidence) -> Option<Interval> {
    if trials == 0 {
        return None;
    }
    let successes = successes.min(trials);
    let n = trials as f64;
    let rate = successes as f64 / n;
    let z = confidence.normal_critical();
    let z2 = z * z;
    let centre = rate + z2 / (2.0 * n);
    let reach = z * ((rate * (1.0 - rate) + z2 / (4.0 * n)) / n).sqrt();
    let scale = 1.0 + z2 / n;
    Some(Interval {
        // Exact where rounding would give a slightly different number.
        low: if successes == 0 { 0.0 } else { ((centre - reach) / scale).max(0.0) },
        high: if successes == trials { 1.0 } else { ((centre + reach) / scale).min(1.0) },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_by_hand() {
        // With z² = 3.8414588…: 1 success in 2 gives 0.5 ± 0.5 · sqrt(z² / (2 + z²)).
        let half = 0.5 * (3.841_458_820_694_124_f64 / 5.841_458_820_694_124).sqrt();
        let interval = wilson(1, 2, Confidence::P95).unwrap();
        assert!((interval.low - (0.5 - half)).abs() < 1e-12, "{interval:?}");
        assert!((interval.high - (0.5 + half)).abs() < 1e-12, "{interval:?}");
        // No success in n trials: up to z² / (n + z²).
        let none = wilson(0, 10, Confidence::P95).unwrap();
        assert_eq!(none.low, 0.0);
        assert!((none.high - 3.841_458_820_694_124 / 13.841_458_820_694_124).abs() < 1e-12, "{none:?}");
        assert_eq!(wilson(0, 0, Confidence::P95), None);
    }

    #[test]
    fn only_levels_between_never_and_always_exist() {
        for level in [0.0, 1.0, -0.5, 95.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Confidence::new(level), None, "{level}");
        }
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_rate_within_zero_and_one(trials in 1_u64.., successes: u64, level in 0.001..0.999_f64) {
            let confidence = Confidence::new(level).unwrap();
            let successes = successes % (trials.saturating_add(1));
            let interval = wilson(successes, trials, confidence).unwrap();
            let rate = successes as f64 / trials as f64;
            prop_assert!(0.0 <= interval.low && interval.low <= rate + 1e-12);
            prop_assert!(rate - 1e-12 <= interval.high && interval.high <= 1.0);
        }

        #[test]
        fn more_confidence_or_fewer_trials_widen_it(trials in 1_u64..10_000, successes in 0_u64..10_000) {
            let successes = successes.min(trials);
            let width = |successes, trials, level| {
                let interval = wilson(successes, trials, Confidence::new(level).unwrap()).unwrap();
                interval.high - interval.low
            };
            prop_assert!(width(successes, trials, 0.9) < width(successes, trials, 0.99));
            prop_assert!(width(successes * 4, trials * 4, 0.9) < width(successes, trials, 0.9));
        }
    }
}
