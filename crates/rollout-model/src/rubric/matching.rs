//! Compares a model's answer with the correct one.

use serde::{Deserialize, Serialize};

use super::{Rubric, math};
use crate::parser::boxed_or_all;

/// How a model's answer is compared with the correct one. Without a correct answer, every answer is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Match {
    /// The texts are equal, except for surrounding space.
    Exact,
    /// The model's answer contains the correct one.
    Contains,
    /// The last numbers of both are equal, to six digits.
    Numeric,
    /// They are mathematically equal, according to [`math::equal`]. Of a text with `\boxed{…}`, the last box is
    /// compared.
    Math,
}

impl Match {
    /// Whether an answer is correct.
    ///
    /// ```
    /// use rollout::model::rubric::Match;
    ///
    /// assert!(Match::Exact.is_right(" 4\n", "4"));
    /// assert!(Match::Contains.is_right("It is 4.", "4"));
    /// assert!(Match::Numeric.is_right("That makes $1,234.50", "1234.5"));
    /// assert!(Match::Math.is_right(r"So \boxed{\frac{1}{2}}", "0.5"));
    /// ```
    pub fn is_right(self, response: &str, answer: &str) -> bool {
        let (response, answer) = (response.trim(), answer.trim());
        if answer.is_empty() {
            return false;
        }
        match self {
            Self::Exact => response == answer,
            Self::Contains => response.contains(answer),
            Self::Numeric => match (last_number(response), last_number(answer)) {
                (Some(given), Some(right)) => math::close(given, right),
                _ => false,
            },
            Self::Math => math::equal(boxed_or_all(response), boxed_or_all(answer)),
        }
    }
}

impl Rubric {
    /// Adds a comparison with the correct answer: 1 if it matches, otherwise 0.
    #[must_use]
    pub fn matching(self, name: impl Into<String>, weight: f64, how: Match) -> Self {
        self.reward(name, weight, move |scene| how.is_right(&scene.parsed(), scene.answer))
    }
}

/// The last number in a text, which may have thousands separators.
fn last_number(text: &str) -> Option<f64> {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',');
    let end = text.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = text[..end]
        .rfind(|c| !is_part(c))
        .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let digits = text[start..end].trim_start_matches(',');
    let digits = if math::has_thousands(digits) {
        digits.replace(',', "")
    } else {
        digits.rsplit(',').next().unwrap_or(digits).to_owned()
    };
    let number: f64 = digits.parse().ok()?;
    let before = text[..start].trim_end_matches(['$', '€', '£']);
    // A dash between two numbers or words joins them; otherwise it is a sign.
    let signed = before.strip_suffix(['-', '−']).is_some_and(|rest| !rest.ends_with(char::is_alphanumeric));
    Some(if signed { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_match_has_its_own_rules() {
        use Match::{Contains, Exact, Math, Numeric};
        for (how, response, answer, right) in [
            (Exact, "Paris\n", " Paris", true),
            (Exact, "paris", "Paris", false),
            (Exact, "", "", false),
            (Contains, "It is Paris.", "Paris", true),
            (Contains, "It is Rome.", "Paris", false),
            (Contains, "anything", "", false),
            (Numeric, "3 + 4 = 7", "7", true),
            (Numeric, "7 apples and 2 pears", "7", false),
            (Numeric, "it costs $1,234.50.", "1234.5", true),
            (Numeric, "-5", "5", false),
            (Numeric, "−5", "-5", true),
            (Numeric, "x=-5", "-5", true),
            (Numeric, "2020-05", "5", true),
            (Numeric, "1,2", "2", true),
            (Numeric, "0.333333", "0.33333333", true),
            (Numeric, "seven", "7", false),
            (Numeric, "1.2.3", "3", false),
            (Math, r"\boxed{\frac12}", "1/2", true),
            (Math, "1/2", r"\boxed{0.5}", true),
            (Math, "2", "3", false),
            (Math, "", "", false),
        ] {
            assert_eq!(how.is_right(response, answer), right, "{how:?} {response} {answer}");
        }
    }
}
