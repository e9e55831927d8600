//! Whether two answers are mathematically equal.
//!
//! [`equal`] reads numbers, fractions, percentages, roots, powers, factorials, absolute values, the usual functions and
//! single-letter variables, in LaTeX or plain, and lists, sets, matrices, equations and inequalities of these. It does
//! no algebra: expressions with variables are equal if they have equal values at a few points. Texts that it cannot
//! read must be identical.
//!
//! | | |
//! |---|---|
//! | `\frac{1}{2}`, `\dfrac12`, `1/2`, `0.5`, `50\%` | the same |
//! | `1,234`, `1{,}234`, `$1234$`, `\$1234.00` | the same |
//! | `1\frac{1}{2}`, `1 1/2`, `1.5` | the same: a mixed number |
//! | `0.333333`, `1/3` | the same: six decimals are enough, but whole numbers have to be equal |
//! | `3.14159`, `\pi` | different: rounded to six decimals `\pi` is 3.141593 |
//! | `1e3`, `1000` | different: `e` is a number |
//! | `5\text{ cm}`, `5 cm`, `5` | the same; `5\text{ cm}` and `5\text{ m}` are not: units are not converted |
//! | `50\%`, `50`, `0.5` | the percentage equals each of the others |
//! | `x=5`, `5` | the same; `x=5` and `y=5` are not |
//! | `(x+1)^2`, `x^2+2x+1` | the same |
//! | `(1,2)`, `(2,1)` | different; so are `(1,2)` and `[1,2]` |
//! | `1, 2`, `2, 1`, `\{2, 1\}`, `1 or 2`, `x=1 or x=2` | the same: sets |
//! | `\pm 2`, `2, -2` | the same |
//! | `xy`, `yx` | the same: up to three adjacent letters are multiplied, more are a word |
//! | `A`, `a` | the same if the answer is one letter |
//! | `x>3`, `3<x` | the same; so are `2x+2y=6` and `x+y=3` |
//! | `\sum_{i=1}^{3} i`, `6` | the same; so are `\int_0^1 x dx` and `\frac12` |
//! | `2^{100}`, a number with as many digits | the same if all digits are equal, up to 38 of them |
//!
//! The time is bounded by the length: texts over 50,000 characters are never equal, and those over 2,000 are only
//! compared as texts.

mod expression;
mod list;
mod normal;

pub(super) use self::normal::has_thousands;
use self::{
    expression::{Value, value},
    list::{List, Order},
    normal::{Normal, named, normal},
};

/// Longer answers are never equal.
const MAX_CHARS: usize = 50_000;
/// Longer answers are compared only as texts.
const MAX_READ: usize = 2_000;
/// Longer lists are not compared as sets, because the time grows with the square of their length.
const MAX_ITEMS: usize = 64;
/// The maximum depth of nested lists.
const MAX_DEPTH: usize = 4;
/// The number of points at which expressions with variables are compared.
const POINTS: u32 = 5;

/// Whether two answers are mathematically equal.
///
/// ```
/// use rollout::model::rubric::math::equal;
///
/// assert!(equal(r"\frac{3}{4}", "0.75"));
/// assert!(equal("x^2 - 1", "(x-1)(x+1)"));
/// assert!(!equal("3", "3.1"));
/// ```
pub fn equal(one: &str, other: &str) -> bool {
    if one.chars().nth(MAX_CHARS).is_some() || other.chars().nth(MAX_CHARS).is_some() {
        return false;
    }
    let (one, other) = (normal(one), normal(other));
    if one.is_empty() || other.is_empty() {
        return false;
    }
    let units_agree = one.unit.is_empty() || other.unit.is_empty() || one.unit == other.unit;
    let names_agree = one.name.is_none() || other.name.is_none() || one.name == other.name;
    units_agree && names_agree && same(&one, &other)
}

/// Whether two numbers are equal to six digits. Whole numbers must be exactly equal.
pub(super) fn close(one: f64, other: f64) -> bool {
    // 1/3 rounded to six digits is off by one in a million.
    const SIX_DIGITS: f64 = 2e-6;
    // From here on, floats are whole numbers.
    const WHOLE: f64 = 1e15;
    let distance = (one - other).abs();
    let size = one.abs().max(other.abs());
    if one == other {
        true
    } else if !size.is_finite() {
        false
    } else if one == 0.0 || other == 0.0 {
        distance <= 1e-15
    } else if one.fract() == 0.0 && other.fract() == 0.0 {
        size >= WHOLE && distance <= 1e-12 * size
    } else {
        distance <= SIX_DIGITS * size
    }
}

fn same(one: &Normal, other: &Normal) -> bool {
    if one.text == other.text {
        return one.is_percent == other.is_percent || same_number(one, other);
    }
    if one.text.len() > MAX_READ || other.text.len() > MAX_READ {
        return false;
    }
    if is_letter(&one.text) && is_letter(&other.text) {
        return one.text.to_lowercase() == other.text.to_lowercase();
    }
    // Compared with an equation, the variable of an answer is one of its sides.
    let whole = |one: &Normal, other: &Normal| match one.name {
        Some(name) if other.name.is_none() && other.text.contains('=') => format!("{name}={}", one.text),
        _ => one.text.clone(),
    };
    same_lists(&one.text, &other.text, 0)
        .or_else(|| same_relations(&whole(one, other), &whole(other, one)))
        .unwrap_or_else(|| same_number(one, other))
}

fn is_letter(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(char::is_alphabetic) && chars.next().is_none()
}

/// Whether two lists are equal. None if neither is a list.
fn same_lists(one: &str, other: &str, depth: usize) -> Option<bool> {
    let (one, other) = match (List::read(one), List::read(other)) {
        (None, None) => return None,
        (Some(one), Some(other)) => (one, other),
        _ => return Some(false),
    };
    if depth == MAX_DEPTH || one.items.len() != other.items.len() {
        return Some(false);
    }
    let same = |one: &str, other: &str| {
        let (one, other) = (named(one).1, named(other).1);
        one == other || same_lists(one, other, depth + 1).unwrap_or_else(|| same_plain(one, other))
    };
    let in_order = || one.items.iter().zip(&other.items).all(|(one, other)| same(one, other));
    Some(match (one.order, other.order) {
        (one, other) if one.is_fixed() && one == other => in_order(),
        // A point may be written without its brackets.
        (Order::Bare, Order::Brackets('(', ')')) | (Order::Brackets('(', ')'), Order::Bare) => in_order(),
        (Order::Union, Order::Union) | (Order::Bare | Order::Set, Order::Bare | Order::Set) => {
            one.items.len() <= MAX_ITEMS && {
                let mut left: Vec<_> = other.items.iter().collect();
                one.items.iter().all(|one| {
                    let found = left.iter().position(|other| same(one, other));
                    found.map(|at| left.swap_remove(at)).is_some()
                })
            }
        }
        _ => false,
    })
}

/// Whether two equations or inequalities are equivalent. None if one of them is neither.
fn same_relations(one: &str, other: &str) -> Option<bool> {
    let (one, other) = (Relation::read(one)?, Relation::read(other)?);
    if one.sign != other.sign {
        return Some(false);
    }
    let mut ratio = None;
    for point in 0..POINTS {
        let at = |relation: &Relation<'_>| {
            let (left, right) = (value(relation.left, point)?, value(relation.right, point)?);
            Some(left.number - right.number)
        };
        let (Some(one), Some(other)) = (at(&one), at(&other)) else { return Some(false) };
        let quotient = one / other;
        let ratio = *ratio.get_or_insert(quotient);
        if !quotient.is_finite() || !exactly(quotient, ratio) {
            return Some(false);
        }
    }
    // An inequality may be multiplied by a positive factor, an equation by any factor.
    Some(ratio.is_some_and(|ratio| one.sign == '=' && ratio != 0.0 || ratio > 0.0))
}

/// A relation between two expressions: equal, less, or less or equal.
struct Relation<'a> {
    left: &'a str,
    sign: char,
    right: &'a str,
}

impl<'a> Relation<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut signs = text.match_indices(['=', '<', '>', '≤', '≥']);
        let (at, sign) = signs.next()?;
        if signs.next().is_some() {
            return None;
        }
        let (left, right) = (&text[..at], &text[at + sign.len()..]);
        Some(match sign {
            ">" => Self { left: right, sign: '<', right: left },
            "≥" => Self { left: right, sign: '≤', right: left },
            _ => Self { left, sign: sign.chars().next()?, right },
        })
    }
}

fn same_number(one: &Normal, other: &Normal) -> bool {
    if one.is_percent == other.is_percent {
        return same_plain(&one.text, &other.text);
    }
    let (percent, plain) = if one.is_percent { (one, other) } else { (other, one) };
    same_values(&percent.text, &plain.text, |value| value)
        || same_values(&percent.text, &plain.text, |value| value / 100.0)
}

/// Whether two expressions have the same values. Large whole numbers must agree in every digit.
fn same_plain(one: &str, other: &str) -> bool {
    match (whole(one), whole(other)) {
        (Some(one), Some(other)) => one == other,
        _ => same_values(one, other, |value| value),
    }
}

/// A whole number, a power of one or a factorial, if it fits.
fn whole(text: &str) -> Option<u128> {
    if let Some(number) = text.strip_suffix('!') {
        let number: u128 = number.parse().ok().filter(|number| *number <= 34)?;
        return Some((1..=number).product());
    }
    match text.split_once('^') {
        None => text.parse().ok(),
        Some((base, power)) => {
            let inner = power.strip_prefix('{').and_then(|power| power.strip_suffix('}'));
            base.parse::<u128>().ok()?.checked_pow(inner.unwrap_or(power).parse().ok()?)
        }
    }
}

/// Whether two expressions have the same values, after `change` is applied to those of the first.
fn same_values(one: &str, other: &str, change: impl Fn(f64) -> f64) -> bool {
    let mut compared = 0;
    let rounded = is_decimal(one) || is_decimal(other);
    let same = |a: f64, b: f64| match rounded {
        // A decimal stands for any number that rounds to it, but a whole number only for itself.
        true if a.fract() != 0.0 && b.fract() != 0.0 => (a * 1e6).round() == (b * 1e6).round(),
        _ => exactly(a, b),
    };
    for point in 0..POINTS {
        let (Some(one), Some(other)) = (value(one, point), value(other, point)) else { return false };
        let (Value { number: one, varies: a }, Value { number: other, varies: b }) = (one, other);
        match (one.is_nan(), other.is_nan()) {
            (false, false) if !same(change(one), other) => return false,
            (false, false) => compared += 1,
            (true, true) => {}
            _ => return false,
        }
        if !a && !b {
            break;
        }
    }
    compared > 0
}

/// Whether a text is a number with a decimal point, and nothing else.
fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.contains('.') && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Whether two numbers are equal except for rounding errors.
fn exactly(one: f64, other: f64) -> bool {
    // A few steps of arithmetic lose no more precision.
    const PRECISION: f64 = 1e-12;
    let distance = (one - other).abs();
    let size = one.abs().max(other.abs());
    let whole = one.fract() == 0.0 && other.fract() == 0.0 && size < 1e15;
    one == other || (size.is_finite() && !whole && distance <= PRECISION * size.max(1e-3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_answers_are_equal() {
        for (one, other) in [
            ("4", "4"),
            ("4", "4.0"),
            (r"\frac{1}{2}", "0.5"),
            (r"\dfrac12", "1/2"),
            (r"-\frac{1}{2}", r"\frac{-1}{2}"),
            (r"\frac{\frac12}{2}", "0.25"),
            ("50\\%", "0.5"),
            ("50%", "50"),
            ("50%", r"50\%"),
            ("1,234", "1234"),
            ("1{,}234", "1234"),
            ("1,234,567.5", "1234567.5"),
            ("$5$", "5"),
            (r"\$5.00", "5"),
            (r"\(5\)", "5"),
            (r"1\frac{1}{2}", "1.5"),
            ("1 1/2", "3/2"),
            ("-1 1/2", "-1.5"),
            ("0.333333", "1/3"),
            (r"5\text{ cm}", "5"),
            ("5 cm", r"5\,\text{cm}"),
            ("90^\\circ", "90"),
            ("x=5", "5"),
            ("x = 5", "x=5"),
            ("(x+1)^2", "x^2+2x+1"),
            (r"2\pi r", r"r \cdot 2\pi"),
            (r"\sqrt{8}", r"2\sqrt2"),
            (r"\sqrt[3]{27}", "3"),
            ("2^{10}", "1024"),
            ("2^-1", "0.5"),
            (r"\sin(\pi/2)", "1"),
            (r"\left(1, \frac12\right)", "(1,0.5)"),
            ("1, 2", "2,1"),
            (r"\{1,2\}", r"\{ 2, 1 \}"),
            (r"\{1,2\}", "2, 1"),
            ("(-\\infty, 3]", "(-∞,3]"),
            ("((1,2),3)", r"((1,\frac{4}{2}),3)"),
            (r"\text{East}", "east"),
            ("(B)", "B"),
            (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
            ("−3", "-3"),
            ("3.", "3"),
            ("3!", "6"),
            (r"\left|-3\right|", "3"),
            ("1 or 2", "2, 1"),
            (r"1\text{ or }2", "1,2"),
            ("x=1 or x=2", "1,2"),
            (r"x=\pm 2", "-2, 2"),
            (r"1\pm\sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}"),
            ("A", "a"),
            ("xy", "yx"),
            ("x_1+x_2", "x_2+x_1"),
            (r"7 \mod 3", "1"),
            (r"x \equiv 1 \pmod{5}", "1"),
            ("x>3", "3<x"),
            ("2x+2y=6", "x+y=3"),
            ("y-2x=1", "y=2x+1"),
            ("1:2", "2:4"),
            ("(1,2)", "1,2"),
            (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\\frac42\end{bmatrix}"),
            (r"(2,\infty)\cup(-\infty,1)", r"(-\infty,1)\cup(2,\infty)"),
            (r"\emptyset", r"\{\}"),
            (r"\theta = 30^\circ", "30"),
            (r"\sum_{i=1}^{3} i", "6"),
            (r"\int_0^1 x dx", r"\frac12"),
            ("2^{100}", "1267650600228229401496703205376"),
            ("25!", "15511210043330985984000000"),
        ] {
            assert!(equal(one, other), "{one} = {other}");
            assert!(equal(other, one), "{other} = {one}");
        }
    }

    #[test]
    fn different_answers_are_not_equal() {
        for (one, other) in [
            ("4", "5"),
            ("", ""),
            ("", "0"),
            ("1000000", "1000001"),
            ("0.3333", "1/3"),
            ("1 1/2", "11/2"),
            (r"5\text{ cm}", r"5\text{ m}"),
            ("x=5", "y=5"),
            ("x", "y"),
            ("east", "seat"),
            ("x_1", "x_2"),
            (r"\pi", "3.14159"),
            ("10", "10.0000001"),
            ("1e3", "1000"),
            ("x>3", "x<3"),
            ("x<3", "2x<7"),
            ("x=y", "x=2y"),
            (r"\pm 2", "2"),
            (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
            (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
            ("(1,2)", "2,1"),
            ("(1,2)", "(2,1)"),
            ("(1,2)", "[1,2]"),
            ("(1,2)", "12"),
            ("1,2", "1,2,2"),
            ("1,1,2", "1,2,2"),
            (r"\{1,2\}", "(1,2)"),
            ("x^2", "x^3"),
            ("1/0", "2/0"),
            (r"\sqrt{-1}", r"\sqrt{-2}"),
            ("-5", "5"),
            ("50%", "5"),
            ("2 xs", "3 xs"),
            ("0", "0.001"),
            ("((((", "))))"),
            ("2^{100}", "1267650600228229401496703205377"),
            ("25!", "15511210043330985984000001"),
            ("(1, 10000000000000000)", "(1, 10000000000000001)"),
            (r"\sum_{i=1}^{3} i", "7"),
        ] {
            assert!(!equal(one, other), "{one} ≠ {other}");
            assert!(!equal(other, one), "{other} ≠ {one}");
        }
    }

    #[test]
    fn long_answers_are_compared_as_texts_and_very_long_ones_not_at_all() {
        let sum = |ones: usize| vec!["1"; ones].join("+");
        assert!(equal(&sum(100), "100"));
        assert!(!equal(&sum(1_500), "1500"));
        assert!(equal(&sum(1_500), &sum(1_500)));
        assert!(!equal(&sum(25_001), &sum(25_001)));
    }

    #[test]
    fn deeply_nested_answers_are_not_equal() {
        let deep = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert!(equal(&deep(10), "1"));
        assert!(!equal(&deep(900), "1"));
    }

    proptest! {
        #[test]
        fn comparison_is_symmetric(
            one in r"(\\frac|\\sqrt|\\text|\{|\}|[0-9a-c+*/^(),.%$= -]|é){0,30}",
            other in r"(\\frac|\\sqrt|\\text|\{|\}|[0-9a-c+*/^(),.%$= -]|é){0,30}",
        ) {
            prop_assert_eq!(equal(&one, &other), equal(&other, &one));
        }

        #[test]
        fn a_fraction_is_its_quotient(above in -999_i32..999, below in 1_i32..999) {
            let quotient = format!("{:.9}", f64::from(above) / f64::from(below));
            let fraction = format!(r"\frac{{{above}}}{{{below}}}");
            prop_assert!(equal(&fraction, &quotient));
            let plain = format!("{above}/{below}");
            prop_assert!(equal(&plain, &fraction));
        }

        #[test]
        fn whole_numbers_are_equal_with_separators_and_only_to_themselves(number in 0_u64..1_000_000_000) {
            let digits = number.to_string();
            let mut separated = String::new();
            for (at, digit) in digits.chars().enumerate() {
                if at > 0 && (digits.len() - at).is_multiple_of(3) {
                    separated.push(',');
                }
                separated.push(digit);
            }
            prop_assert!(equal(&separated, &digits));
            prop_assert!(!equal(&separated, &(number + 1).to_string()));
        }
    }
}
