//! McNemar's test: whether two agents pass the same tasks equally often.

use serde::{Deserialize, Serialize};

use super::distribution::{erfc, heads_at_most};

/// The numbers of tasks that only one of two agents passed.
///
/// ```
/// let tasks = [(true, true), (false, true), (false, true), (true, false)];
/// let flipped: rollout::stats::McNemar = tasks.into_iter().collect();
/// assert_eq!((flipped.only_first, flipped.only_second), (1, 2));
/// assert_eq!(flipped.exact_p(), 1.0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct McNemar {
    /// Tasks that only the first agent passed.
    pub only_first: u64,
    /// Tasks that only the second agent passed.
    pub only_second: u64,
}

/// The test by the chi-square distribution, which is accurate for many tasks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChiSquare {
    /// The statistic, with one degree of freedom.
    pub statistic: f64,
    /// The p-value.
    pub p: f64,
}

impl McNemar {
    /// Returns the exact two-sided p-value.
    pub fn exact_p(&self) -> f64 {
        let fewer = self.only_first.min(self.only_second);
        (2.0 * heads_at_most(fewer, self.only_first.saturating_add(self.only_second))).min(1.0)
    }

    /// Returns the approximation with continuity correction, or None if no task differs.
    pub fn chi_square(&self) -> Option<ChiSquare> {
        let flipped = self.only_first as f64 + self.only_second as f64;
        if flipped == 0.0 {
            return None;
        }
        // The correction moves the difference towards zero, but not beyond it.
        let difference = self.only_first.abs_diff(self.only_second).saturating_sub(1) as f64;
        let statistic = difference * difference / flipped;
        Some(ChiSquare { statistic, p: erfc((statistic / 2.0).sqrt()) })
    }
}

/// Counts tasks by whether the first and the second agent passed.
impl FromIterator<(bool, bool)> for McNemar {
    fn from_iter<I: IntoIterator<Item = (bool, bool)>>(tasks: I) -> Self {
        tasks.into_iter().fold(Self::default(), |counts, task| match task {
            (true, false) => Self { only_first: counts.only_first + 1, ..counts },
            (false, true) => Self { only_second: counts.only_second + 1, ..counts },
            (true, true) | (false, false) => counts,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flipped(only_first: u64, only_second: u64) -> McNemar {
        McNemar { only_first, only_second }
    }

    #[test]
    fn a_table_by_hand() {
        assert!((flipped(0, 5).exact_p() - 0.0625).abs() < 1e-15);
        assert!((flipped(1, 5).exact_p() - 14.0 / 64.0).abs() < 1e-15);
        assert_eq!(flipped(3, 3).exact_p(), 1.0);
        assert_eq!(flipped(0, 0).exact_p(), 1.0);
        let test = flipped(10, 20).chi_square().unwrap();
        assert_eq!(test.statistic, 2.7);
        assert!((test.p - 0.100_348_246_462_290_75).abs() < 1e-12, "{test:?}");
    }

    #[test]
    fn equally_many_flips_are_no_difference_at_all() {
        assert_eq!(flipped(4, 4).chi_square(), Some(ChiSquare { statistic: 0.0, p: 1.0 }));
        assert_eq!(flipped(0, 0).chi_square(), None);
    }

    proptest! {
        #[test]
        fn which_agent_is_first_does_not_matter(first in 0_u64..100_000, second in 0_u64..100_000) {
            let p = flipped(first, second).exact_p();
            prop_assert_eq!(p, flipped(second, first).exact_p());
            prop_assert!((0.0..=1.0).contains(&p));
        }
    }
}
