//! Rows of a dataset, and the inputs that rollouts start from.
//!
//! A dataset is a JSON Lines file, a JSON file with one list, or rows made in code. [`Format`] turns rows into inputs:
//!
//! ```
//! use rollout::model::dataset::{Format, rows};
//!
//! # fn main() -> Result<(), rollout::model::dataset::ExamplesError> {
//! let format = Format { system_prompt: Some("Be brief.".to_owned()), ..Format::default() };
//! let inputs = format.inputs(rows(r#"{"question": "2+2?", "answer": 4}"#)?)?;
//! assert_eq!(inputs[0].prompt[1].text(), "2+2?");
//! assert_eq!(inputs[0].answer.as_deref(), Some("4"));
//! # Ok(())
//! # }
//! ```

use std::{
    collections::HashMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::RolloutInput;
use rollout_core::message::{Message, Messages, Role};
use rollout_core::text::hex;

/// One row of a dataset: its columns by name.
pub type Row = Map<String, Value>;

/// How many problems of a dataset are told.
const TOLD: usize = 20;

/// Why a dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ExamplesError {
    /// The file cannot be read.
    #[error("cannot read the dataset {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Rows are not as they have to be: every problem with its row.
    #[error("{}", Told(.0))]
    Rows(Vec<Problem>),
    /// There is no row at all.
    #[error("the dataset is empty")]
    Empty,
}

/// What is wrong with one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which row: its line in a file, from 1, or its place in a list, from 1.
    pub row: usize,
    /// What is wrong.
    pub message: String,
}

struct Told<'a>(&'a [Problem]);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the dataset has {} bad row{}:", self.0.len(), if self.0.len() == 1 { "" } else { "s" })?;
        for Problem { row, message } in self.0.iter().take(TOLD) {
            write!(f, "\n  row {row}: {message}")?;
        }
        if self.0.len() > TOLD {
            write!(f, "\n  and {} more", self.0.len() - TOLD)?;
        }
        Ok(())
    }
}

/// Reads the rows of a file: JSON Lines, or one JSON list of objects. Blocks while it reads.
pub fn read(path: &Path) -> Result<Vec<Row>, ExamplesError> {
    let failed = |source| ExamplesError::Io { path: path.to_owned(), source };
    rows(&fs::read_to_string(path).map_err(failed)?)
}

/// Reads rows from text: JSON Lines, or one JSON list of objects.
///
/// Empty lines are left out. All bad lines are told at once.
pub fn rows(text: &str) -> Result<Vec<Row>, ExamplesError> {
    let text = text.trim_start_matches('\u{feff}');
    let mut rows = Vec::new();
    let mut problems = Vec::new();
    let mut take = |number: usize, row: Result<Value, serde_json::Error>| match row {
        Ok(Value::Object(row)) => rows.push(row),
        Ok(_) => problems.push(Problem { row: number, message: "a row is a JSON object".to_owned() }),
        Err(error) => {
            // The line that the parser counts is the first of one.
            let message = format!("not JSON: {error}").replace(" at line 1 column ", " at column ");
            problems.push(Problem { row: number, message });
        }
    };
    if text.trim_start().starts_with('[') {
        match serde_json::from_str::<Vec<Value>>(text) {
            Ok(list) => list.into_iter().enumerate().for_each(|(place, row)| take(place + 1, Ok(row))),
            Err(error) => {
                let message = format!("not a JSON list: {error}");
                return Err(ExamplesError::Rows(vec![Problem { row: error.line(), message }]));
            }
        }
    } else {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.for_each(|(number, line)| take(number + 1, serde_json::from_str(line)));
    }
    if !problems.is_empty() {
        return Err(ExamplesError::Rows(problems));
    }
    if rows.is_empty() { Err(ExamplesError::Empty) } else { Ok(rows) }
}

/// How the rows of a dataset become inputs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Format {
    /// Comes first in every prompt, unless a prompt begins with a system message already.
    pub system_prompt: Option<String>,
    /// Messages between the system prompt and the question, for rows that have a `question` and no `prompt`.
    pub few_shot: Messages,
    /// The task of rows that name none. `default` if absent.
    pub task: Option<String>,
}

impl Format {
    /// Makes the inputs of rollouts.
    ///
    /// A row has a `prompt` (messages, or a text that the user says) or a `question`; it may have an `answer`, `info` (an
    /// object, or one as JSON text), a `task` and further columns, which rubrics can see. `example_id` is the row's
    /// place from 0. A column of that name is kept if it holds whole numbers, each once, and becomes `src_id` if not. A
    /// column `env_id` is dropped.
    pub fn inputs(&self, rows: Vec<Row>) -> Result<Vec<RolloutInput>, ExamplesError> {
        let numbered = rows.iter().all(|row| row.get("example_id").is_some_and(Value::is_u64));
        let mut problems = Vec::new();
        let mut seen = HashMap::new();
        let mut inputs = Vec::with_capacity(rows.len());
        for (place, mut row) in rows.into_iter().enumerate() {
            row.shift_remove("env_id");
            let id = row.shift_remove("example_id");
            let example_id = match id.as_ref().and_then(Value::as_u64).filter(|_| numbered) {
                Some(id) => id,
                None => {
                    if let Some(id) = id {
                        row.entry("src_id").or_insert(id);
                    }
                    place as u64
                }
            };
            if let Some(first) = seen.insert(example_id, place + 1) {
                let message = format!("example_id {example_id} is that of row {first} too");
                problems.push(Problem { row: place + 1, message });
            }
            match self.input(example_id, row) {
                Ok(input) => inputs.push(input),
                Err(message) => problems.push(Problem { row: place + 1, message }),
            }
        }
        if !problems.is_empty() {
            return Err(ExamplesError::Rows(problems));
        }
        if inputs.is_empty() { Err(ExamplesError::Empty) } else { Ok(inputs) }
    }

    fn input(&self, example_id: u64, mut row: Row) -> Result<RolloutInput, String> {
        let mut take = |key: &str| row.shift_remove(key).filter(|value| !value.is_null());
        let task = match take("task") {
            None => self.task.clone().unwrap_or_else(|| "default".to_owned()),
            Some(Value::String(task)) => task,
            Some(_) => return Err("`task` is a text".to_owned()),
        };
        let answer = match take("answer") {
            None => None,
            Some(Value::String(text)) => Some(text),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => Some(value.to_string()),
            Some(_) => return Err("`answer` is a text or a number".to_owned()),
        };
        let info = match take("info") {
            None => None,
            Some(Value::Object(info)) => Some(info),
            Some(Value::String(text)) => match serde_json::from_str(&text) {
                Ok(Value::Object(info)) => Some(info),
                _ => return Err("`info` is an object, or the JSON of one".to_owned()),
            },
            Some(_) => return Err("`info` is an object, or the JSON of one".to_owned()),
        };
        let prompt = match (take("prompt"), row.get("question")) {
            (Some(prompt), _) => self.prompt(prompt)?,
            (None, Some(Value::String(question))) => {
                let system = self.system_prompt.iter().map(|text| Arc::new(Message::system(text.as_str())));
                let shots = self.few_shot.iter().cloned();
                system.chain(shots).chain([Arc::new(Message::user(question.as_str()))]).collect()
            }
            (None, Some(_)) => return Err("`question` is a text".to_owned()),
            (None, None) => return Err("a row has a `prompt` or a `question`".to_owned()),
        };
        Ok(RolloutInput { prompt, example_id, task, answer, info, extra: row })
    }

    fn prompt(&self, value: Value) -> Result<Messages, String> {
        let mut prompt: Messages = match value {
            Value::String(text) => vec![Arc::new(Message::user(text))],
            value => serde_json::from_value(value).map_err(|error| format!("`prompt`: {error}"))?,
        };
        if let Some(system) = &self.system_prompt
            && prompt.first().is_none_or(|first| first.role != Role::System)
        {
            prompt.insert(0, Arc::new(Message::system(system.as_str())));
        }
        if prompt.is_empty() {
            return Err("`prompt` has no message".to_owned());
        }
        Ok(prompt)
    }
}

/// Brings items into an order that depends on the seed alone: on every machine and in every version the same.
///
/// The algorithm is that of Fisher and Yates from the last item down, with numbers of SplitMix64; the item at place `i`
/// changes places with the one at `(number × (i + 1)) / 2⁶⁴`.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    let mut number = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    for place in (1..items.len()).rev() {
        let other = (u128::from(number()) * (place as u128 + 1)) >> 64;
        items.swap(place, other as usize);
    }
}

/// The hash of what the rollouts of an example start from.
pub fn content_hash(inputs: &[RolloutInput]) -> String {
    let value = |input: &RolloutInput| {
        let RolloutInput { prompt, example_id, task, answer, info, extra } = input;
        json!([prompt, example_id, task, answer, info, extra])
    };
    hash(&inputs.iter().map(value).collect())
}

/// `sha256:` and the hash of a value, the same whatever the order of its keys.
pub fn hash(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    let digest = Sha256::digest(value.to_string());
    format!("sha256:{}", hex(&digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_an_example_stays_what_it_is() {
        let rows = rows(r#"{"question": "2+2?", "answer": 4}"#).unwrap();
        let inputs = Format::default().inputs(rows).unwrap();
        let golden = "sha256:96fa8dd0cac9e0866a8d929b27316e02e350b5e01625a0aefac57a127b080792";
        assert_eq!(content_hash(&inputs), golden, "jobs of before could not be resumed");
    }
}
