//! The distributions that intervals and tests need, to about twelve digits.

use std::f64::consts::{FRAC_2_PI, PI, SQRT_2};

/// Returns the z that the absolute value of a standard normal variable exceeds with this probability.
pub(super) fn normal_critical(probability: f64) -> f64 {
    SQRT_2 * where_falls_to(probability, erfc)
}

/// Returns the t that the absolute value of Student's variable exceeds with this probability.
pub(super) fn t_critical(degrees: u64, probability: f64) -> f64 {
    /// From here on the expansion below is exact to the last digits, and the sum is too long.
    const MANY: u64 = 2_000;
    if degrees < MANY {
        where_falls_to(probability, |t| t_outside(degrees, t))
    } else {
        t_expansion(degrees as f64, normal_critical(probability))
    }
}

/// Returns the probability that the absolute value of Student's variable exceeds t. It is a finite sum for integer
/// degrees of freedom.
fn t_outside(degrees: u64, t: f64) -> f64 {
    let root = (degrees as f64).sqrt();
    let angle = t.atan2(root);
    let cos2 = angle.cos().powi(2);
    let odd = degrees % 2 == 1;
    let mut term = if odd { angle.cos() } else { 1.0 };
    let mut sum = if odd && degrees == 1 { 0.0 } else { term };
    let mut power = if odd { 3 } else { 2 };
    while power < degrees {
        term *= cos2 * (power - 1) as f64 / power as f64;
        sum += term;
        power += 2;
    }
    let inside = if odd { FRAC_2_PI * (angle + angle.sin() * sum) } else { angle.sin() * sum };
    1.0 - inside
}

/// Returns Student's critical value by its expansion about the normal one, z.
fn t_expansion(degrees: f64, z: f64) -> f64 {
    let z2 = z * z;
    let terms = [
        (z2 + 1.0) / 4.0,
        ((5.0 * z2 + 16.0) * z2 + 3.0) / 96.0,
        (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) / 384.0,
        ((((79.0 * z2 + 776.0) * z2 + 1482.0) * z2 - 1920.0) * z2 - 945.0) / 92160.0,
    ];
    z + z * terms.iter().rev().fold(0.0, |sum, term| (sum + term) / degrees)
}

/// The complementary error function of a nonnegative number.
pub(super) fn erfc(x: f64) -> f64 {
    let bell = (-x * x).exp() / PI.sqrt();
    if x < 2.0 {
        // All terms of the sum are positive, so nothing cancels.
        let mut term = x;
        let mut sum = x;
        let mut odd = 1.0;
        while term > sum * f64::EPSILON / 4.0 {
            odd += 2.0;
            term *= 2.0 * x * x / odd;
            sum += term;
        }
        1.0 - 2.0 * bell * sum
    } else {
        let fraction = (1..=120).rev().fold(0.0, |rest, k| f64::from(k) / 2.0 / (x + rest));
        bell / (x + fraction)
    }
}

/// Returns the probability of at most `most` heads in `throws` throws of a fair coin.
pub(super) fn heads_at_most(most: u64, throws: u64) -> f64 {
    if most >= throws {
        return 1.0;
    }
    let (mut term, mut sum) = (1.0, 1.0);
    for heads in (1..=most).rev() {
        term *= heads as f64 / (throws - heads + 1) as f64;
        sum += term;
        if term < sum * f64::EPSILON / 4.0 {
            break;
        }
    }
    // C(throws, most) / 2^throws. Halving at each step is exact, and prevents an overflow.
    let few = most.min(throws - most);
    let mut halvings = throws;
    for i in 1..=few {
        sum *= (throws - few + i) as f64 / i as f64;
        while sum > 1.0 && halvings > 0 {
            sum /= 2.0;
            halvings -= 1;
        }
    }
    (sum * (-(halvings as f64)).exp2()).min(1.0)
}

/// Returns where a function that falls from 1 at zero reaches a value between 0 and 1, to the last bit.
fn where_falls_to(value: f64, falling: impl Fn(f64) -> f64) -> f64 {
    let mut low = 0.0;
    let mut high = 1.0;
    while falling(high) > value && high < f64::MAX / 2.0 {
        low = high;
        high *= 2.0;
    }
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return middle;
        }
        if falling(middle) > value {
            low = middle;
        } else {
            high = middle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(actual: f64, expected: f64) {
        assert!((actual / expected - 1.0).abs() < 1e-10, "{actual} is not {expected}");
    }

    #[test]
    fn critical_values_are_those_of_the_tables() {
        assert_near(normal_critical(0.05), 1.959_963_984_540_054);
        assert_near(normal_critical(0.5), 0.674_489_750_196_081_7);
        assert_near(normal_critical(1e-10), 6.466_951_087_240_516);
        assert_near(t_critical(1, 0.05), 12.706_204_736_174_705);
        assert_near(t_critical(2, 0.05), 4.302_652_729_749_464);
        assert_near(t_critical(9, 0.01), 3.249_835_541_592_126);
        assert_near(t_critical(10, 0.05), 2.228_138_851_986_275_3);
    }

    #[test]
    fn the_sum_and_the_expansion_meet() {
        for probability in [0.5, 0.1, 0.05, 0.01, 0.001] {
            let sum = where_falls_to(probability, |t| t_outside(1_999, t));
            assert_near(t_expansion(1_999.0, normal_critical(probability)), sum);
        }
    }

    #[test]
    fn the_error_function_has_no_step_between_its_halves() {
        assert_near(erfc(2.0_f64.next_down()), erfc(2.0));
        assert_near(erfc(0.5), 0.479_500_122_186_953_5);
        assert_near(erfc(5.0), 1.537_459_794_428_034_8e-12);
        assert_eq!((erfc(0.0), erfc(40.0)), (1.0, 0.0));
    }

    #[test]
    fn a_fair_coin_is_symmetric() {
        assert_near(heads_at_most(0, 3), 0.125);
        assert_near(heads_at_most(1, 3), 0.5);
        assert_near(heads_at_most(2, 3), 0.875);
        assert_eq!(heads_at_most(3, 3), 1.0);
        assert_eq!(heads_at_most(0, 0), 1.0);
        assert_near(heads_at_most(49_999, 99_999), 0.5);
    }
}
