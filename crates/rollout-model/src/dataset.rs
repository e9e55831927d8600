//! The rows of a dataset, and the inputs of rollouts.
//!
//! A dataset is a JSON Lines file, a JSON file with one list, or rows created in code. [`Format`] turns rows into
//! inputs:
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
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::RolloutInput;
use rollout_core::lines::read_line;
use rollout_core::message::{Message, Messages, Role};
use rollout_core::text::hex;

/// One row of a dataset: its columns by name.
pub type Row = Map<String, Value>;

/// How many problems of a dataset an error message lists.
const MAX_LISTED: usize = 20;

/// Why a dataset is invalid.
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
    /// The examples cannot be stored for the run.
    #[error("cannot write the examples to a temporary file")]
    Store(#[source] io::Error),
    /// Rows are invalid: every problem with its row.
    #[error("{}", ProblemList(.0))]
    Rows(Vec<Problem>),
    /// There is no row at all.
    #[error("the dataset is empty")]
    Empty,
}

/// A problem of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its line in a file, or its position in a list, from 1.
    pub row: usize,
    /// The problem.
    pub message: String,
}

struct ProblemList<'a>(&'a [Problem]);

impl fmt::Display for ProblemList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the dataset has {} invalid row{}:",
            self.0.len(),
            if self.0.len() == 1 { "" } else { "s" }
        )?;
        for Problem { row, message } in self.0.iter().take(MAX_LISTED) {
            write!(f, "\n  row {row}: {message}")?;
        }
        if self.0.len() > MAX_LISTED {
            write!(f, "\n  and {} more", self.0.len() - MAX_LISTED)?;
        }
        Ok(())
    }
}

/// Reads rows from text: JSON Lines, or one JSON list of objects.
///
/// Empty lines are ignored. All invalid lines are reported at once.
pub fn rows(text: &str) -> Result<Vec<Row>, ExamplesError> {
    let mut rows = Vec::new();
    let take = |row| {
        rows.push(row);
        ControlFlow::Continue(())
    };
    read_rows(text.as_bytes(), take).map_err(|error| match error {
        Unread::Rows(error) => error,
        Unread::Io(_) => unreachable!("text in memory can be read"),
    })?;
    if rows.is_empty() { Err(ExamplesError::Empty) } else { Ok(rows) }
}

/// Why reading stopped before the end.
enum Unread {
    Rows(ExamplesError),
    Io(io::Error),
}

impl Unread {
    fn of(self, path: &Path) -> ExamplesError {
        match self {
            Self::Rows(error) => error,
            Self::Io(source) => ExamplesError::Io { path: path.to_owned(), source },
        }
    }
}

fn open(path: &Path) -> Result<impl BufRead, Unread> {
    File::open(path).map(|file| BufReader::with_capacity(1 << 16, file)).map_err(Unread::Io)
}

/// Reads the rows of a file in order, until `take` has enough of them: JSON Lines, or one JSON list of objects. Blocks.
pub fn each_row(path: &Path, take: impl FnMut(Row) -> ControlFlow<()>) -> Result<(), ExamplesError> {
    open(path).and_then(|file| read_rows(file, take)).map_err(|error| error.of(path))
}

/// Reads rows in order, until `take` has enough of them.
fn read_rows(mut reader: impl BufRead, take: impl FnMut(Row) -> ControlFlow<()>) -> Result<(), Unread> {
    if reader.fill_buf().map_err(Unread::Io)?.starts_with("\u{feff}".as_bytes()) {
        reader.consume('\u{feff}'.len_utf8());
    }
    let mut blank = Vec::new();
    let first = loop {
        match reader.fill_buf().map_err(Unread::Io)?.first().copied() {
            Some(byte) if byte.is_ascii_whitespace() => {
                blank.push(byte);
                reader.consume(1);
            }
            first => break first,
        }
    };
    // The blank lines before it are included, so that lines are counted from the first.
    let reader = blank.as_slice().chain(reader);
    let mut checked = CheckedRows { take, problems: Vec::new() };
    match first {
        Some(b'[') => {
            let mut json = serde_json::Deserializer::from_reader(reader);
            let read = json.deserialize_seq(&mut checked).and_then(|_| json.end());
            match read {
                Err(error) if error.is_io() => return Err(Unread::Io(error.into())),
                // The rest of the list is not read.
                Err(error) if !error.to_string().starts_with(ENOUGH) => {
                    let message = format!("not a JSON list: {error}");
                    let problems = vec![Problem { row: error.line(), message }];
                    return Err(Unread::Rows(ExamplesError::Rows(problems)));
                }
                _ => {}
            }
        }
        _ => checked.lines(reader)?,
    }
    match checked.problems {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Unread::Rows(ExamplesError::Rows(problems))),
    }
}

/// Stops the reading of a list.
const ENOUGH: &str = "enough";

/// Passes on valid rows, and collects the problems of the others.
struct CheckedRows<F> {
    take: F,
    problems: Vec<Problem>,
}

impl<F: FnMut(Row) -> ControlFlow<()>> CheckedRows<F> {
    fn lines(&mut self, mut reader: impl BufRead) -> Result<(), Unread> {
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if read_line(&mut reader, &mut line).map_err(Unread::Io)? == 0 {
                break;
            }
            let text = match std::str::from_utf8(&line) {
                Ok(text) => text,
                Err(error) => {
                    let message = format!("not UTF-8 from byte {}", error.valid_up_to() + 1);
                    self.problems.push(Problem { row: number, message });
                    continue;
                }
            };
            if !text.trim().is_empty() && self.row(number, serde_json::from_str(text.trim_end())).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn row(&mut self, number: usize, row: Result<Value, serde_json::Error>) -> ControlFlow<()> {
        let message = match row {
            Ok(Value::Object(row)) => return (self.take)(row),
            Ok(_) => "a row must be a JSON object".to_owned(),
            // The parser sees one line at a time, so its line number is always 1.
            Err(error) => format!("not JSON: {error}").replace(" at line 1 column ", " at column "),
        };
        self.problems.push(Problem { row: number, message });
        ControlFlow::Continue(())
    }
}

impl<'de, F: FnMut(Row) -> ControlFlow<()>> Visitor<'de> for &mut CheckedRows<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for number in 1.. {
            let Some(row) = list.next_element()? else { break };
            if self.row(number, Ok(row)).is_break() {
                return Err(serde::de::Error::custom(ENOUGH));
            }
        }
        Ok(())
    }
}

/// How the rows of a dataset become inputs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Format {
    /// The first message of every prompt, unless the prompt starts with a system message.
    pub system_prompt: Option<String>,
    /// Messages between the system prompt and the question, for rows that have a `question` and no `prompt`.
    pub few_shot: Messages,
    /// The task of rows that have none. `default` if absent.
    pub task: Option<String>,
}

impl Format {
    /// Converts rows to the inputs of rollouts.
    ///
    /// A row has a `prompt` (messages, or a text of the user) or a `question`. It may have an `answer`, `info` (an
    /// object, or its JSON text), a `task` and further columns, which rubrics can read. `example_id` is the position of
    /// the row, from 0. A column of that name is kept if it contains unique whole numbers, and renamed to `src_id` if
    /// not. A column `env_id` is dropped.
    pub fn inputs(&self, rows: Vec<Row>) -> Result<Vec<RolloutInput>, ExamplesError> {
        let mut inputs = Vec::with_capacity(rows.len());
        let mut taking = Taking::new(self, rows.iter().all(is_numbered));
        for row in rows {
            inputs.extend(taking.input(row));
        }
        taking.finish()?;
        Ok(inputs)
    }

    /// Converts the rows of a file to inputs, in order: JSON Lines, or one JSON list of objects. Blocks while it reads.
    /// An error of `take` stops it.
    pub fn each_input(
        &self,
        path: &Path,
        mut take: impl FnMut(RolloutInput) -> io::Result<()>,
    ) -> Result<(), ExamplesError> {
        let mut numbered = true;
        let look = |row: Row| match is_numbered(&row) {
            true => ControlFlow::Continue(()),
            false => {
                numbered = false;
                ControlFlow::Break(())
            }
        };
        each_row(path, look)?;
        let mut taking = Taking::new(self, numbered);
        let mut failed = None;
        let each = |row| match taking.input(row).map(&mut take) {
            Some(Err(error)) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
            Some(Ok(())) | None => ControlFlow::Continue(()),
        };
        each_row(path, each)?;
        match failed {
            Some(error) => Err(ExamplesError::Store(error)),
            None => taking.finish(),
        }
    }

    fn input(&self, example_id: u64, mut row: Row) -> Result<RolloutInput, String> {
        let mut take = |key: &str| row.shift_remove(key).filter(|value| !value.is_null());
        let task = match take("task") {
            None => self.task.clone().unwrap_or_else(|| "default".to_owned()),
            Some(Value::String(task)) => task,
            Some(_) => return Err("`task` must be a string".to_owned()),
        };
        let answer = match take("answer") {
            None => None,
            Some(Value::String(text)) => Some(text),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => Some(value.to_string()),
            Some(_) => return Err("`answer` must be a string or a number".to_owned()),
        };
        let info = match take("info") {
            None => None,
            Some(Value::Object(info)) => Some(info),
            Some(Value::String(text)) => match serde_json::from_str(&text) {
                Ok(Value::Object(info)) => Some(info),
                _ => return Err("`info` must be an object, or the JSON text of one".to_owned()),
            },
            Some(_) => return Err("`info` must be an object, or the JSON text of one".to_owned()),
        };
        let prompt = match (take("prompt"), row.get("question")) {
            (Some(prompt), _) => self.prompt(prompt)?,
            (None, Some(Value::String(question))) => {
                let system = self.system_prompt.iter().map(|text| Arc::new(Message::system(text.as_str())));
                let shots = self.few_shot.iter().cloned();
                system.chain(shots).chain([Arc::new(Message::user(question.as_str()))]).collect()
            }
            (None, Some(_)) => return Err("`question` must be a string".to_owned()),
            (None, None) => return Err("missing `prompt` or `question`".to_owned()),
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
            return Err("`prompt` is empty".to_owned());
        }
        Ok(prompt)
    }
}

/// Whether the `example_id` of a row can be used.
fn is_numbered(row: &Row) -> bool {
    row.get("example_id").is_some_and(Value::is_u64)
}

/// Converts rows to inputs, and collects the problems of the others.
struct Taking<'a> {
    format: &'a Format,
    /// Whether all rows have ids of their own.
    numbered: bool,
    rows: usize,
    /// The row of each id.
    seen: HashMap<u64, usize>,
    problems: Vec<Problem>,
}

impl<'a> Taking<'a> {
    fn new(format: &'a Format, numbered: bool) -> Self {
        Self { format, numbered, rows: 0, seen: HashMap::new(), problems: Vec::new() }
    }

    fn input(&mut self, mut row: Row) -> Option<RolloutInput> {
        let place = self.rows as u64;
        self.rows += 1;
        row.shift_remove("env_id");
        let id = row.shift_remove("example_id");
        let example_id = match id.as_ref().and_then(Value::as_u64).filter(|_| self.numbered) {
            Some(id) => {
                if let Some(first) = self.seen.insert(id, self.rows) {
                    let message = format!("example_id {id} is already used in row {first}");
                    self.problems.push(Problem { row: self.rows, message });
                }
                id
            }
            None => {
                if let Some(id) = id {
                    row.entry("src_id").or_insert(id);
                }
                place
            }
        };
        let input = self.format.input(example_id, row);
        input.map_err(|message| self.problems.push(Problem { row: self.rows, message })).ok()
    }

    fn finish(self) -> Result<(), ExamplesError> {
        if !self.problems.is_empty() {
            return Err(ExamplesError::Rows(self.problems));
        }
        if self.rows == 0 { Err(ExamplesError::Empty) } else { Ok(()) }
    }
}

/// Shuffles items in an order that depends only on the seed: the same on every machine and in every version.
///
/// The algorithm is Fisher-Yates from the last item down, with numbers of SplitMix64. The item at index `i` is swapped
/// with the one at `(number × (i + 1)) / 2⁶⁴`.
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

/// The hash of the inputs of an example's rollouts.
pub fn content_hash(inputs: &[RolloutInput]) -> String {
    hash_text(&content_digest(inputs))
}

/// The same as bytes.
pub fn content_digest(inputs: &[RolloutInput]) -> [u8; 32] {
    let value = |input: &RolloutInput| {
        let RolloutInput { prompt, example_id, task, answer, info, extra } = input;
        json!([prompt, example_id, task, answer, info, extra])
    };
    digest(inputs.iter().map(value).collect())
}

/// `sha256:` and the hash of a value, independent of the order of its keys.
pub fn hash(value: &Value) -> String {
    hash_text(&digest(value.clone()))
}

fn digest(mut value: Value) -> [u8; 32] {
    value.sort_all_objects();
    Sha256::digest(value.to_string()).into()
}

/// The text form of a hash.
pub fn hash_text(digest: &[u8]) -> String {
    format!("sha256:{}", hex(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_utf_8_are_reported_with_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.jsonl");
        std::fs::write(&path, b"{\"question\": \"1\"}\n{\"question\": \"\xff\"}\n\nno\n").unwrap();
        let error = each_row(&path, |_| ControlFlow::Continue(())).unwrap_err();
        insta::assert_snapshot!(error, @r"
        the dataset has 2 invalid rows:
          row 2: not UTF-8 from byte 15
          row 4: not JSON: expected ident at column 2
        ");
    }

    #[test]
    fn the_hash_of_an_example_never_changes() {
        let rows = rows(r#"{"question": "2+2?", "answer": 4}"#).unwrap();
        let inputs = Format::default().inputs(rows).unwrap();
        let golden = "sha256:96fa8dd0cac9e0866a8d929b27316e02e350b5e01625a0aefac57a127b080792";
        assert_eq!(content_hash(&inputs), golden, "older jobs could not be resumed");
    }
}
