//! Sums, products and integrals with limits, computed term by term.

use super::{Reader, value};

/// Longer sums are not computed.
const MAX_TERMS: f64 = 1_000.0;
/// The number of intervals of an integral.
const PIECES: u32 = 64;
/// Points and weights within an interval: five-point Gauss quadrature.
const GAUSS: [(f64, f64); 5] = [
    (-0.906_179_845_938_664, 0.236_926_885_056_189_1),
    (-0.538_469_310_105_683_1, 0.478_628_670_499_366_5),
    (0.0, 0.568_888_888_888_888_9),
    (0.538_469_310_105_683_1, 0.478_628_670_499_366_5),
    (0.906_179_845_938_664, 0.236_926_885_056_189_1),
];

impl Reader<'_> {
    /// The sum or product of all terms, as in `_{i=1}^{3} i`.
    pub(super) fn series(&mut self, start: f64, add: fn(f64, f64) -> f64) -> Option<f64> {
        let index = self.subscript()?.to_owned();
        let (letter, first) = index.split_once('=')?;
        let letter = one_letter(letter.trim())?;
        let first = self.nested(|reader| value(first, reader.point))?.number;
        let last = self.upper_limit()?;
        let is_whole = first.fract() == 0.0 && last.fract() == 0.0;
        if !is_whole || !(0.0..MAX_TERMS).contains(&(last - first)) {
            return None;
        }
        let terms = self.rest;
        let (mut total, mut number) = (start, first);
        while number <= last {
            self.rest = terms;
            let term = self.at(letter, number, |reader| reader.nested(Self::product))?;
            total = add(total, term);
            number += 1.0;
        }
        Some(total)
    }

    /// An integral with its limits, as in `_0^1 x dx`. It is the last thing in its text.
    pub(super) fn integral(&mut self) -> Option<f64> {
        let lower = self.subscript()?.to_owned();
        let lower = self.nested(|reader| value(&lower, reader.point))?.number;
        let upper = self.upper_limit()?;
        let rest = self.rest.trim();
        let letter = rest.chars().next_back().filter(|c| c.is_alphabetic())?;
        let body = rest[..rest.len() - letter.len_utf8()].strip_suffix('d')?.trim_end();
        let step = (upper - lower) / f64::from(PIECES);
        if !step.is_finite() {
            return None;
        }
        let mut total = 0.0;
        for piece in 0..PIECES {
            let middle = lower + step * (f64::from(piece) + 0.5);
            for (place, weight) in GAUSS {
                self.rest = body;
                let height = self.at(letter, middle + place * step / 2.0, |reader| {
                    let height = if body.is_empty() { Some(1.0) } else { reader.nested(Self::sum) };
                    height.filter(|_| reader.rest.trim_start().is_empty())
                })?;
                total += height * weight * step / 2.0;
            }
        }
        self.rest = "";
        total.is_finite().then_some(total)
    }

    fn upper_limit(&mut self) -> Option<f64> {
        self.eat("^").then(|| self.nested(Self::argument))?
    }

    /// Evaluates with a value for a variable. Nested series are not computed, because their time would be unbounded.
    fn at(&mut self, letter: char, number: f64, read: impl FnOnce(&mut Self) -> Option<f64>) -> Option<f64> {
        if self.bound.is_some() {
            return None;
        }
        self.bound = Some((letter, number));
        let value = read(self);
        self.bound = None;
        value
    }
}

fn one_letter(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|c| c.is_alphabetic() && chars.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Option<f64> {
        value(text, 0).map(|value| value.number)
    }

    #[test]
    fn terms_are_added_or_multiplied_between_their_limits() {
        assert_eq!(number(r"\sum_{i=1}^{3}i"), Some(6.0));
        assert_eq!(number(r"\sum_{k=1}^{10}k^2+1"), Some(386.0));
        assert_eq!(number(r"\prod_{i=1}^4 i"), Some(24.0));
        assert!(value(r"\sum_{i=1}^{2}xi", 0).unwrap().varies);
        for text in [
            r"\sum_{i=1}i",
            r"\sum_i^3i",
            r"\sum_{i=1}^{∞}i",
            r"\sum_{i=1}^{0.5}i",
            r"\sum_{i=3}^{1}i",
            r"\sum_{i=0}^{100000}i",
            r"\sum_{i=1}^{2}\sum_{j=1}^{2}1",
            r"\sum_{i=1}^{2}",
        ] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn integrals_between_numbers_are_computed() {
        let is = |text: &str, expected: f64| {
            let found = number(text).unwrap_or_else(|| panic!("{text}"));
            assert!((found - expected).abs() < 1e-13, "{text}: {found}");
        };
        is(r"\int_0^1 x dx", 0.5);
        is(r"1+\int_0^{π}\sin(x)dx", 3.0);
        is(r"\int_{1}^{e}\frac{1}{t}dt", 1.0);
        is(r"\int_0^2dx", 2.0);
        for text in [r"\int x dx", r"\int_0^1 x", r"\int_0^{∞}xdx", r"\int_0^1 x dx+1"] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
