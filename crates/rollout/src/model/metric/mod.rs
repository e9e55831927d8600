//! How good an answer is, given the right one: numbers from 0 to 1.

/// A way to score an answer against the right one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// The same after normalisation.
    ExactMatch,
    /// Common words.
    F1Score,
    /// The right answer stands somewhere in the given one.
    ContainsAnswer,
    /// Some number of the one is some number of the other, within 1 %.
    NumericMatch,
    /// Common characters, as sets.
    Similarity,
    /// A model judges.
    LlmJudgement,
    /// Common characters, as F1: for languages that are written without spaces.
    CharF1,
    /// One less the edits between the two, relative to the longer one.
    EditSimilarity,
    /// Equal as mathematics.
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
            Self::Similarity => "similarity",
            Self::LlmJudgement => "llm_judgement",
            Self::CharF1 => "char_f1",
            Self::EditSimilarity => "edit_similarity",
            Self::MathEqual => "math_equal",
            Self::MultipleChoice => "multiple_choice",
        }
    }
}
