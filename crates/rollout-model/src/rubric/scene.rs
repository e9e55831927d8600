//! The arguments and results of rubric functions.

use std::{
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use serde_json::{Map, Value};

use crate::{State, parser::Parser, shown::Shown};
use rollout_core::message::Message;

static NO_INFO: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// A rollout in the form that functions of a rubric get.
pub struct Scene<'a> {
    /// The messages of the prompt.
    pub prompt: &'a [Arc<Message>],
    /// The messages after the prompt.
    pub completion: &'a [Arc<Message>],
    /// The correct answer; empty if there is none.
    pub answer: &'a str,
    /// Further data of the example.
    pub info: &'a Map<String, Value>,
    /// The kind of task.
    pub task: &'a str,
    /// The whole state. Its metrics are those of the functions before this one.
    pub state: &'a State,
    /// Finds the answer in the model's messages.
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

    /// The answer that the parser finds; empty if there is none.
    pub fn parsed(&self) -> String {
        self.parser.parse_answer(self.completion).unwrap_or_default()
    }

    /// The rollout in the form that programs get.
    pub(super) fn shown(&self) -> Shown<'_> {
        Shown { state: self.state, completion: self.completion, parser: self.parser, messages: None }
    }

    /// Adds a field to the state after the function returns.
    pub fn note(&self, name: impl Into<String>, value: impl Into<Value>) {
        // A panic elsewhere cannot leave the map in an inconsistent state.
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.insert(name.into(), value.into());
    }

    /// Replaces a field of the state after the function returns by what is made of its value.
    pub(super) fn change(&self, name: &str, change: impl FnOnce(Option<&Value>) -> Value) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(notes.get(name).or_else(|| self.state.fields.get(name)));
        notes.insert(name.to_owned(), changed);
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

/// The result of a rubric function: a number, a boolean for 1 or 0, or an error for 0.
pub trait IntoScore: Send {
    /// The score, or the error.
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

/// The result of a function over a group: one score per rollout, or an error for zeros.
pub trait IntoScores: Send {
    /// The scores, or the error.
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
