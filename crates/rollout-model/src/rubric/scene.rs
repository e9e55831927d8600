//! What a function of a rubric sees of a rollout, and what it may give.

use std::{
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use serde_json::{Map, Value};

use crate::{State, parser::Parser, shown::Shown};
use rollout_core::message::Message;

static NO_INFO: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// A rollout as the functions of a rubric see it. They take the parts that they need by name.
pub struct Scene<'a> {
    /// The first messages.
    pub prompt: &'a [Arc<Message>],
    /// What was said after them.
    pub completion: &'a [Arc<Message>],
    /// The right answer; empty where there is none.
    pub answer: &'a str,
    /// What else is known of the example.
    pub info: &'a Map<String, Value>,
    /// What kind of task it is.
    pub task: &'a str,
    /// Everything. Its metrics are those of the functions before this one.
    pub state: &'a State,
    /// Finds the answer in what the model said.
    pub parser: &'a dyn Parser,
    notes: Mutex<Map<String, Value>>,
}

impl<'a> Scene<'a> {
    /// A rollout with the parser that finds its answer.
    pub fn new(state: &'a State, parser: &'a dyn Parser) -> Self {
        Self {
            prompt: &state.input.prompt,
            completion: state.completion.as_deref().unwrap_or_default(),
            answer: state.input.answer.as_deref().unwrap_or_default(),
            info: state.input.info.as_ref().unwrap_or(&NO_INFO),
            task: &state.input.task,
            state,
            parser,
            notes: Mutex::default(),
        }
    }

    /// The answer that the parser finds; empty where it finds none.
    pub fn parsed(&self) -> String {
        self.parser.parse_answer(self.completion).unwrap_or_default()
    }

    /// The rollout as a program sees it.
    pub(super) fn shown(&self) -> Shown<'_> {
        Shown { state: self.state, completion: self.completion, parser: self.parser, messages: None }
    }

    /// Adds a field to the state when the function is done.
    pub fn note(&self, name: impl Into<String>, value: impl Into<Value>) {
        // A panic elsewhere cannot leave the map half changed.
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.insert(name.into(), value.into());
    }

    pub(super) fn into_notes(self) -> Map<String, Value> {
        self.notes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Scene<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scene").field(self.state).finish()
    }
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(super) type Score = Result<f64, BoxError>;
pub(super) type Scores = Result<Vec<f64>, BoxError>;

/// What a function of a rubric may give: a number, a yes or no for 1 or 0, or an error for 0.
pub trait IntoScore: Send {
    /// The score, or why there is none.
    fn into_score(self) -> Result<f64, Box<dyn std::error::Error + Send + Sync>>;
}

macro_rules! numbers_are_scores {
    ($($number:ty),*) => {$(
        impl IntoScore for $number {
            fn into_score(self) -> Score {
                Ok(self as f64)
            }
        }
    )*};
}
numbers_are_scores!(f64, f32, i32, u32, i64, u64, usize);

impl IntoScore for bool {
    fn into_score(self) -> Score {
        Ok(f64::from(self))
    }
}

impl<S: IntoScore, E: Into<BoxError> + Send> IntoScore for Result<S, E> {
    fn into_score(self) -> Score {
        self.map_err(Into::into)?.into_score()
    }
}

/// What a function over a group may give: one score for each rollout, or an error for zeros.
pub trait IntoScores: Send {
    /// The scores, or why there are none.
    fn into_scores(self) -> Result<Vec<f64>, Box<dyn std::error::Error + Send + Sync>>;
}

impl<S: IntoScore> IntoScores for Vec<S> {
    fn into_scores(self) -> Scores {
        self.into_iter().map(IntoScore::into_score).collect()
    }
}

impl<S: IntoScores, E: Into<BoxError> + Send> IntoScores for Result<S, E> {
    fn into_scores(self) -> Scores {
        self.map_err(Into::into)?.into_scores()
    }
}
