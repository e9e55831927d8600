//! Holm's method for several tests: with more tests, more of them are significant by chance.

/// Adjusts the p-values of several tests by Holm's method, in the given order. With adjusted values below 0.05, the
/// probability that any of these tests is wrong is at most 0.05. A NaN stays NaN and does not count.
///
/// ```
/// assert_eq!(rollout::stats::holm(&[0.25, 0.125]), [0.25, 0.25]);
/// ```
pub fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> =
        (0..probabilities.len()).filter(|place| !probabilities[*place].is_nan()).collect();
    order.sort_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    let mut adjusted = vec![f64::NAN; probabilities.len()];
    let (mut least, mut left) = (0.0_f64, order.len());
    for place in order {
        least = least.max((probabilities[place] * left as f64).min(1.0));
        adjusted[place] = least;
        left -= 1;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_by_hand() {
        // Multiplied by 4, 3, 2 and 1 from the smallest one, never decreasing, and at most 1.
        assert_eq!(holm(&[0.03125, 0.25, 0.0625, 0.75]), [0.125, 0.5, 0.1875, 0.75]);
        assert_eq!(holm(&[0.5, 0.25, 0.5]), [1.0, 0.75, 1.0]);
        assert_eq!(holm(&[0.25]), [0.25]);
        assert_eq!(holm(&[]), [] as [f64; 0]);
    }

    #[test]
    fn nan_does_not_change_the_others() {
        let adjusted = holm(&[f64::NAN, 0.25]);
        assert!(adjusted[0].is_nan() && adjusted[1] == 0.25);
    }

    proptest! {
        #[test]
        fn adjusted_ones_are_larger_and_in_the_same_order(values in prop::collection::vec(0.0..=1.0_f64, 0..20)) {
            let adjusted = holm(&values);
            for (one, adjusted_one) in values.iter().zip(&adjusted) {
                prop_assert!(one <= adjusted_one && *adjusted_one <= 1.0);
                for (other, adjusted_other) in values.iter().zip(&adjusted) {
                    prop_assert!(one > other || adjusted_one <= adjusted_other);
                }
            }
        }
    }
}
