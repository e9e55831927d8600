//! Whether two answers are the same mathematics.
//!
//! [`equal`] reads numbers, fractions, percentages, roots, powers, the usual functions and single-letter variables, in
//! LaTeX or plain, and lists of these. It does not do algebra: expressions with variables are the same if they have the
//! same values in a few places. What it cannot read has to be the same text.
//!
//! | | |
//! |---|---|
//! | `\frac{1}{2}`, `\dfrac12`, `1/2`, `0.5`, `50\%` | the same |
//! | `1,234`, `1{,}234`, `$1234$`, `\$1234.00` | the same |
//! | `1\frac{1}{2}`, `1 1/2`, `1.5` | the same: a mixed number |
//! | `0.333333`, `1/3` | the same: six digits are enough, but whole numbers have to be equal |
//! | `5\text{ cm}`, `5 cm`, `5` | the same; `5\text{ cm}` and `5\text{ m}` are not: units are not converted |
//! | `50\%`, `50`, `0.5` | the percentage is either of the others |
//! | `x=5`, `5` | the same; `x=5` and `y=5` are not |
//! | `(x+1)^2`, `x^2+2x+1` | the same |
//! | `(1,2)`, `(2,1)` | different; so are `(1,2)` and `[1,2]` |
//! | `1, 2`, `2, 1`, `\{2, 1\}` | the same: sets |
//! | `xy`, `\begin{pmatrix}…`, `\pm 2` | only the same text |
//!
//! The time is bounded by the length: texts over 50,000 characters are never equal, and those over 2,000 are only
//! compared as texts.

mod expression;
mod normal;

pub(super) use self::normal::has_thousands;
use self::{
    expression::{Value, value},
    normal::{Normal, normal},
};

/// Longer answers are none.
const MAX_CHARS: usize = 50_000;
/// Longer answers are not read as mathematics.
const MAX_READ: usize = 2_000;
/// Longer lists are not compared as sets, which takes the square of their length.
const MAX_ITEMS: usize = 64;
/// Lists within lists.
const MAX_DEPTH: usize = 4;
/// Where expressions with variables are compared.
const POINTS: u32 = 5;

/// Whether two answers are the same mathematics.
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

/// Whether two numbers are the same to six digits. Whole numbers have to be equal.
pub(super) fn close(one: f64, other: f64) -> bool {
    // Six digits of 1/3 are off by one in a million.
    const SIX_DIGITS: f64 = 2e-6;
    // Where rounding makes whole numbers of all.
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
    same_lists(&one.text, &other.text, 0).unwrap_or_else(|| same_number(one, other))
}

/// Whether two lists are the same. None if neither is a list.
fn same_lists(one: &str, other: &str, depth: usize) -> Option<bool> {
    let (one, other) = match (List::read(one), List::read(other)) {
        (None, None) => return None,
        (Some(one), Some(other)) => (one, other),
        _ => return Some(false),
    };
    if depth == MAX_DEPTH || one.items.len() != other.items.len() || one.brackets != other.brackets {
        return Some(false);
    }
    let same = |one: &str, other: &str| {
        one == other
            || same_lists(one, other, depth + 1).unwrap_or_else(|| same_values(one, other, |value| value))
    };
    Some(if one.brackets.is_some() {
        one.items.iter().zip(&other.items).all(|(one, other)| same(one, other))
    } else if one.items.len() > MAX_ITEMS {
        false
    } else {
        let mut left = other.items;
        one.items.iter().all(|one| {
            let found = left.iter().position(|other| same(one, other));
            found.map(|at| left.swap_remove(at)).is_some()
        })
    })
}

/// Items between commas: in order with brackets, in any order as a set.
struct List<'a> {
    brackets: Option<(char, char)>,
    items: Vec<&'a str>,
}

impl<'a> List<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (inner, brackets, is_set) = match (text.chars().next()?, text.chars().next_back()?) {
            (open @ ('(' | '['), close @ (')' | ']')) if encloses(text) => {
                (inside(text), Some((open, close)), false)
            }
            ('⦃', '⦄') if encloses(text) => (inside(text), None, true),
            _ => (text, None, false),
        };
        let items: Vec<&str> = split(inner).map(str::trim).collect();
        (items.len() > 1 || is_set).then_some(Self { brackets, items })
    }
}

fn inside(text: &str) -> &str {
    let mut chars = text.chars();
    chars.next();
    chars.next_back();
    chars.as_str()
}

fn depth_change(c: char) -> i32 {
    match c {
        '(' | '[' | '{' | '⦃' => 1,
        ')' | ']' | '}' | '⦄' => -1,
        _ => 0,
    }
}

/// Whether the first bracket of a text is closed by its last.
fn encloses(text: &str) -> bool {
    let mut depth = 0;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        depth += depth_change(c);
        if depth <= 0 {
            return depth == 0 && chars.peek().is_none();
        }
    }
    false
}

/// The parts of a text between commas that are in no bracket.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        depth += depth_change(c);
        c == ',' && depth == 0
    })
}

fn same_number(one: &Normal, other: &Normal) -> bool {
    if one.is_percent == other.is_percent {
        return same_values(&one.text, &other.text, |value| value);
    }
    let (percent, plain) = if one.is_percent { (one, other) } else { (other, one) };
    same_values(&percent.text, &plain.text, |value| value)
        || same_values(&percent.text, &plain.text, |value| value / 100.0)
}

/// Whether two expressions have the same values, after something is done to those of the first.
fn same_values(one: &str, other: &str, change: impl Fn(f64) -> f64) -> bool {
    let mut compared = 0;
    for point in 0..POINTS {
        let (Some(one), Some(other)) = (value(one, point), value(other, point)) else { return false };
        let (Value { number: one, varies: a }, Value { number: other, varies: b }) = (one, other);
        match (one.is_nan(), other.is_nan()) {
            (false, false) if !close(change(one), other) => return false,
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_same_mathematics_is_equal() {
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
            ("1e3", "1000"),
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
        ] {
            assert!(equal(one, other), "{one} = {other}");
            assert!(equal(other, one), "{other} = {one}");
        }
    }

    #[test]
    fn other_mathematics_is_not() {
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
            ("xy", "yx"),
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
    fn deep_nesting_is_not_read() {
        let deep = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert!(equal(&deep(10), "1"));
        assert!(!equal(&deep(900), "1"));
    }

    proptest! {
        #[test]
        fn any_texts_are_compared_alike_from_both_sides(
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
