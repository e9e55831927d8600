//! Whether two texts have a number in common.

/// The zeros of all decimal digits of Unicode. The other nine follow each of them.
const ZEROS: [u32; 76] = [
    0x0030, 0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66, 0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6, 0x0d66,
    0x0de6, 0x0e50, 0x0ed0, 0x0f20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50,
    0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30,
    0x10d40, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x116d0,
    0x116da, 0x11730, 0x118e0, 0x11950, 0x11bf0, 0x11c50, 0x11d50, 0x11da0, 0x11f50, 0x16130, 0x16a60,
    0x16ac0, 0x16b50, 0x16d70, 0x1ccf0, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0,
    0x1e4f0, 0x1e5f1, 0x1e950, 0x1fbf0,
];

/// The absolute tolerance.
const ABSOLUTE: f64 = 1e-6;
/// The tolerance relative to the correct number.
const RELATIVE: f64 = 0.01;

/// Whether any number of a text is close to any number of the correct one.
pub(super) fn any_close(predicted: &str, truth: &str) -> bool {
    // Numbers that overflow are close to nothing, including themselves.
    let mut given: Vec<f64> = numbers(predicted).filter(|number| number.is_finite()).collect();
    given.sort_by(f64::total_cmp);
    numbers(truth).filter(|number| number.is_finite()).any(|right| {
        // Rounding keeps the order of distances, so checking the neighbours is enough.
        let above = given.partition_point(|number| *number < right);
        let neighbours = [above.checked_sub(1), Some(above)].into_iter().flatten();
        neighbours.filter_map(|at| given.get(at)).any(|number| close(*number, right))
    })
}

fn close(given: f64, right: f64) -> bool {
    let distance = given - right;
    distance.abs() <= ABSOLUTE || (right != 0.0 && (distance / right).abs() <= RELATIVE)
}

/// The numbers of a text: an optional minus, digits, and optionally a point and more digits.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = f64> {
    let mut rest = text.chars().peekable();
    let mut is_negative = false;
    std::iter::from_fn(move || {
        loop {
            let c = rest.next()?;
            let Some(first) = digit(c) else {
                is_negative = c == '-';
                continue;
            };
            let mut number = String::from(if std::mem::take(&mut is_negative) { "-" } else { "" });
            number.push(first);
            while let Some(digit) = rest.peek().copied().and_then(digit) {
                number.push(digit);
                rest.next();
            }
            if rest.next_if_eq(&'.').is_some() {
                number.push('.');
                while let Some(digit) = rest.peek().copied().and_then(digit) {
                    number.push(digit);
                    rest.next();
                }
            }
            return Some(number.parse().expect("digits with at most one point after the first are a number"));
        }
    })
}

/// Converts a decimal digit of any script to ASCII.
fn digit(c: char) -> Option<char> {
    let code = u32::from(c);
    let zero = ZEROS[..ZEROS.partition_point(|zero| *zero <= code)].last()?;
    char::from_digit(code - zero, 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_of_any_script_with_at_most_one_point() {
        for (text, expected) in [
            ("1,000", &[1.0, 0.0][..]),
            ("2020-01-05", &[2020.0, -1.0, -5.0]),
            ("1e6", &[1.0, 6.0]),
            (".5", &[5.0]),
            ("-.5", &[5.0]),
            ("--5", &[-5.0]),
            ("- 5", &[5.0]),
            ("1.2.3", &[1.2, 3.0]),
            ("1..2", &[1.0, 2.0]),
            ("12.", &[12.0]),
            ("-007.50", &[-7.5]),
            ("−5", &[5.0]),
            ("١٢٫٥ and 1٢.٣", &[12.0, 5.0, 12.3]),
            ("４２ 𝟜𝟚", &[42.0, 42.0]),
            ("½ ² Ⅳ 四", &[]),
            ("", &[]),
        ] {
            assert_eq!(numbers(text).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn a_number_that_overflows_is_close_to_nothing() {
        let large = "9".repeat(400);
        assert_eq!(numbers(&large).collect::<Vec<_>>(), [f64::INFINITY]);
        assert!(!any_close(&large, &large));
        assert!(any_close(&format!("{large} 5"), &format!("5 {large}")));
    }

    #[test]
    fn every_digit_has_the_value_of_its_offset() {
        for zero in ZEROS {
            let digits: String = (zero..zero + 10).filter_map(char::from_u32).filter_map(digit).collect();
            assert_eq!(digits, "0123456789", "{zero:#x}");
        }
        assert!(ZEROS.is_sorted());
    }
}
