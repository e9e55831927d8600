//! How good an answer is, given the right one: numbers from 0 to 1.
//!
//! ```
//! use rollout::model::metric::{Metric, extract_final_answer};
//!
//! let answer = extract_final_answer("Let me see.\nThe answer is: Paris.");
//! assert_eq!(answer, "Paris");
//! assert_eq!(Metric::ExactMatch.score(&answer, "paris"), Some(1.0));
//! assert_eq!("char_f1".parse(), Ok(Metric::CharF1));
//! ```
//!
//! The first six have the numbers of the programs that know them by the same names, down to what counts as space and
//! as a digit there: what Python's `str` and `re` take for it. The other four are for what those do badly.
//!
//! A [`Scorer`] is a metric with whatever it needs, which for [`Metric::LlmJudgement`] is an [`LlmJudge`]. It scores
//! answers one by one or, as a [`Rubric`](crate::Rubric), rollouts.

mod choice;
mod extract;
mod judge;
mod normal;
mod numeric;
mod overlap;
mod scorer;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::{
    extract::extract_final_answer,
    judge::{Judgement, LlmJudge},
    normal::normalize_answer,
    scorer::{JudgeMissing, PREDICTED_ANSWER, SCORE_DETAILS, Score, Scorer},
};
use crate::rubric::Match;

/// A way to score an answer against the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The same after [normalisation](normalize_answer).
    ExactMatch,
    /// Common words of the normalised texts, as F1. Words are what stands between spaces; 0 where there are none.
    #[serde(rename = "f1_score")]
    F1Score,
    /// The right answer, normalised, stands somewhere in the given one. An empty one stands everywhere.
    ContainsAnswer,
    /// Some number of the one is some number of the other, within 1 %. Numbers are digits with at most one point: no
    /// thousands separators, no exponents.
    NumericMatch,
    /// A model judges.
    LlmJudgement,
    /// Common characters of the normalised texts, as sets: their number by that of all. 0 where one is empty.
    Similarity,
    /// Common characters of the normalised texts without spaces, as F1: for languages that are written without spaces.
    #[serde(rename = "char_f1")]
    CharF1,
    /// One less the edits between the normalised texts, relative to the longer one.
    EditSimilarity,
    /// Equal as mathematics, in the way of [`math::equal`](crate::rubric::math::equal).
    MathEqual,
    /// The same letter of a multiple choice.
    MultipleChoice,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::ExactMatch,
        Self::F1Score,
        Self::ContainsAnswer,
        Self::NumericMatch,
        Self::LlmJudgement,
        Self::Similarity,
        Self::CharF1,
        Self::EditSimilarity,
        Self::MathEqual,
        Self::MultipleChoice,
    ];

    /// Its name in configurations and results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExactMatch => "exact_match",
            Self::F1Score => "f1_score",
            Self::ContainsAnswer => "contains_answer",
            Self::NumericMatch => "numeric_match",
            Self::LlmJudgement => "llm_judgement",
            Self::Similarity => "similarity",
            Self::CharF1 => "char_f1",
            Self::EditSimilarity => "edit_similarity",
            Self::MathEqual => "math_equal",
            Self::MultipleChoice => "multiple_choice",
        }
    }

    /// How good an answer is, from 0 to 1. None for [`Metric::LlmJudgement`] alone, which takes a model.
    pub fn score(self, predicted: &str, truth: &str) -> Option<f64> {
        let normal = || (normalize_answer(predicted), normalize_answer(truth));
        Some(match self {
            Self::ExactMatch => {
                let (predicted, truth) = normal();
                f64::from(predicted == truth)
            }
            Self::F1Score => {
                let (predicted, truth) = normal();
                overlap::f1(predicted.split_whitespace(), truth.split_whitespace())
            }
            Self::ContainsAnswer => {
                let (predicted, truth) = normal();
                f64::from(predicted.contains(&truth))
            }
            Self::NumericMatch => f64::from(numeric::any_close(predicted, truth)),
            Self::LlmJudgement => return None,
            Self::Similarity => {
                let (predicted, truth) = normal();
                overlap::jaccard(&predicted, &truth)
            }
            Self::CharF1 => {
                let (predicted, truth) = normal();
                let characters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<Vec<_>>();
                let (predicted, truth) = (characters(&predicted), characters(&truth));
                if predicted == truth { 1.0 } else { overlap::f1(predicted, truth) }
            }
            Self::EditSimilarity => {
                let (predicted, truth) = normal();
                overlap::edit_similarity(&predicted, &truth)
            }
            Self::MathEqual => f64::from(Match::Math.is_right(predicted, truth)),
            Self::MultipleChoice => {
                let truth = choice::letter(truth);
                f64::from(truth.is_some() && choice::letter(predicted) == truth)
            }
        })
    }
}

/// The most characters and numbers of an answer that details have.
const MAX_DETAIL_CHARS: usize = 1000;
const MAX_DETAIL_NUMBERS: usize = 20;

impl Metric {
    /// What was compared to score an answer: texts as they are after normalisation, numbers, letters. Empty for
    /// [`Metric::LlmJudgement`], which says itself what it found.
    pub fn details(self, predicted: &str, truth: &str) -> Map<String, Value> {
        let normal = |text: &str| -> Value {
            normalize_answer(text).chars().take(MAX_DETAIL_CHARS).collect::<String>().into()
        };
        let numbers =
            |text: &str| numeric::numbers(text).take(MAX_DETAIL_NUMBERS).map(Value::from).collect::<Value>();
        let letter =
            |text: &str| choice::letter(text).map_or(Value::Null, |letter| letter.to_string().into());
        let compared: (Value, Value) = match self {
            Self::LlmJudgement => return Map::new(),
            Self::NumericMatch => (numbers(predicted), numbers(truth)),
            Self::MultipleChoice => (letter(predicted), letter(truth)),
            Self::MathEqual => (predicted.trim().into(), truth.trim().into()),
            _ => (normal(predicted), normal(truth)),
        };
        let mut details = Map::from_iter([
            ("compared_prediction".to_owned(), compared.0),
            ("compared_ground_truth".to_owned(), compared.1),
        ]);
        if self == Self::F1Score {
            let (predicted, truth) = (normalize_answer(predicted), normalize_answer(truth));
            let (precision, recall) =
                overlap::precision_and_recall(predicted.split_whitespace(), truth.split_whitespace());
            details.insert("precision".to_owned(), precision.into());
            details.insert("recall".to_owned(), recall.into());
        }
        details
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No metric has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no metric is called {name:?}; {}", match nearest {
    Some(nearest) => format!("did you mean `{nearest}`?"),
    None => format!("there are {}", Metric::ALL.map(Metric::as_str).join(", ")),
})]
pub struct UnknownMetric {
    name: String,
    nearest: Option<Metric>,
}

impl FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(name: &str) -> Result<Self, UnknownMetric> {
        if let Some(metric) = Self::ALL.into_iter().find(|metric| metric.as_str() == name) {
            return Ok(metric);
        }
        // The same words with another spelling, or those who write `f1` and `exact`.
        let distance = |metric: &Self| {
            let near = strsim::osa_distance(metric.as_str(), name);
            if name.len() > 1 && metric.as_str().contains(name) { near.min(1) } else { near }
        };
        let nearest = Self::ALL.into_iter().min_by_key(distance).filter(|metric| distance(metric) <= 3);
        Err(UnknownMetric { name: name.to_owned(), nearest })
    }
}

#[cfg(test)]
mod tests;
