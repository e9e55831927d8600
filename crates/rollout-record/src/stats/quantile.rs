//! Sorted values and their quantiles.

/// Values in ascending order.
///
/// ```
/// let sorted = rollout::stats::Sorted::new([4.0, 1.0, 2.0]).unwrap();
/// assert_eq!((sorted.quantile(0.5), sorted.quantile(0.75)), (2.0, 3.0));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sorted(Vec<f64>);

impl Sorted {
    /// Sorts at least one value. All values must be finite.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        values.sort_unstable_by(f64::total_cmp);
        Some(Self(values))
    }

    /// Returns the quantile of this fraction, with linear interpolation.
    ///
    /// A fraction below 0 or NaN is treated as 0, and one above 1 as 1.
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.0.len() - 1;
        let place = if share > 0.0 { share.min(1.0) } else { 0.0 } * last as f64;
        let below = place as usize;
        let part = place - below as f64;
        let (low, high) = (self.0[below], self.0[(below + 1).min(last)]);
        let distance = high - low;
        if distance.is_infinite() {
            return low * (1.0 - part) + high * part;
        }
        // Computed from the nearer end, so that the interpolation is exact at both ends.
        if part < 0.5 { low + distance * part } else { high - distance * (1.0 - part) }
    }

    /// The values.
    pub fn values(&self) -> &[f64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_by_hand() {
        let sorted = Sorted::new([10.0, 30.0, 20.0, 40.0]).unwrap();
        for (share, value) in
            [(0.0, 10.0), (0.25, 17.5), (0.5, 25.0), (0.9, 37.0), (1.0, 40.0), (2.0, 40.0), (-1.0, 10.0)]
        {
            assert_eq!(sorted.quantile(share), value, "{share}");
        }
        assert_eq!(Sorted::new([7.0]).unwrap().quantile(0.3), 7.0);
        assert_eq!(sorted.quantile(f64::NAN), 10.0);
        assert_eq!(Sorted::new([f64::MIN, f64::MAX]).unwrap().quantile(0.5), 0.0);
    }

    #[test]
    fn no_values_and_values_that_are_not_finite_cannot_be_sorted() {
        assert_eq!(Sorted::new([]), None);
        assert_eq!(Sorted::new([1.0, f64::NAN]), None);
        assert_eq!(Sorted::new([1.0, f64::INFINITY]), None);
    }

    proptest! {
        #[test]
        fn quantiles_rise_between_the_ends(values in prop::collection::vec(-1e6..1e6_f64, 1..50), a in 0.0..1.0_f64, b in 0.0..1.0_f64) {
            let sorted = Sorted::new(values).unwrap();
            let (a, b) = (sorted.quantile(a.min(b)), sorted.quantile(a.max(b)));
            prop_assert!(sorted.quantile(0.0) <= a && a <= b + 1e-9 && b <= sorted.quantile(1.0));
        }
    }
}
