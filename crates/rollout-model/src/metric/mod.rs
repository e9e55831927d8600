//! Metrics: how well an answer agrees with the correct one, from 0 to 1.
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
//! The first six give the same numbers as the programs that use the same names, including what counts as space and as a
//! digit: the rules of Python's `str` and `re`. The other four cover cases that those handle badly.
//!
//! A [`Scorer`] is a metric with its dependencies, such as an [`LlmJudge`] for [`Metric::LlmJudgement`]. It scores
//! single answers or, as a [`Rubric`](crate::Rubric), rollouts.

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

/// A way to compare an answer with the correct one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Equal after [normalisation](normalize_answer).
    ExactMatch,
    /// The F1 score of the words of the normalised texts. Words are separated by spaces; 0 if there are none.
    #[serde(rename = "f1_score")]
    F1Score,
    /// The answer contains the correct one, both normalised. An empty correct answer is always contained.
    ContainsAnswer,
    /// Any number of one text is within 1 % of any number of the other. Numbers are digits with at most one decimal
    /// point: no thousands separators, no exponents.
    NumericMatch,
    /// A model judges.
    LlmJudgement,
    /// Common characters of the normalised texts, as sets: intersection divided by union. 0 if one is empty.
    Similarity,
    /// The F1 score of the characters of the normalised texts, without spaces: for languages written without spaces.
    #[serde(rename = "char_f1")]
    CharF1,
    /// One minus the edit distance of the normalised texts, relative to the longer one.
    EditSimilarity,
    /// Mathematically equal, according to [`math::equal`](crate::rubric::math::equal).
    MathEqual,
    /// The same letter of a multiple-choice question.
    MultipleChoice,
}

impl Metric {
    /// All metrics.
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

    /// The score of an answer, from 0 to 1. None only for [`Metric::LlmJudgement`], which needs a model.
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

/// The maximum length of the texts and the maximum count of the numbers in details.
const MAX_DETAIL_CHARS: usize = 1000;
const MAX_DETAIL_NUMBERS: usize = 20;

impl Metric {
    /// What was compared to score an answer: normalised texts, numbers, letters. Empty for [`Metric::LlmJudgement`],
    /// whose judge explains its own score.
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

/// An unknown name of a metric.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown metric {name:?}; {}", match nearest {
    Some(nearest) => format!("did you mean `{nearest}`?"),
    None => format!("known metrics: {}", Metric::ALL.map(Metric::as_str).join(", ")),
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
        // The same words in another spelling, or short forms like `f1` and `exact`.
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
