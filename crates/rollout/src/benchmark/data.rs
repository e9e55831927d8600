//! The questions of a benchmark: from a file, or from values.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("questions.jsonl");
//! std::fs::write(&path, r#"{"task_id": 7, "query": "法国的首都是哪里？", "expected": "巴黎", "level": "easy"}"#)?;
//! let items = rollout::benchmark::load_tasks(&path)?;
//! assert_eq!((items[0].id.as_str(), items[0].answer.as_deref()), ("7", Some("巴黎")));
//! assert_eq!(items[0].metadata["level"], "easy");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    fmt,
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

use indexmap::IndexMap;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json, value::RawValue};
use sha2::{Digest, Sha256};

use crate::config::RolloutConfig;
use rollout_core::{
    message::Message,
    name::TaskName,
    text::{excerpt, listed},
};
use rollout_model::{RolloutInput, dataset::Problem};
use rollout_record::lines::Lines;

const ID: &[&str] = &["id", "task_id"];
const QUESTION: &[&str] = &["question", "query", "input"];
const ANSWER: &[&str] = &["answer", "ground_truth", "expected"];

/// How many problems of a file an error message lists.
const MAX_LISTED: usize = 20;

/// A question with its data.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BenchmarkItem {
    /// Its id in results.
    pub id: String,
    /// The question.
    pub question: String,
    /// The correct answer. It may be empty.
    pub answer: Option<String>,
    /// Parameters for every tool call.
    pub kwargs: Map<String, Value>,
    /// All its other fields.
    pub metadata: Map<String, Value>,
}

impl BenchmarkItem {
    /// Its name in a job: its id, or a name made from the id if that is not a valid name.
    pub fn task_name(&self) -> TaskName {
        TaskName::new(self.id.as_str()).unwrap_or_else(|_| {
            // The replacement could make two ids equal; the hash keeps them distinct.
            let plain = |char: char| if char.is_alphanumeric() || ".-_".contains(char) { char } else { '_' };
            let start: String = self.id.chars().map(plain).take(40).collect();
            let hash = rollout_core::text::hex(&Sha256::digest(&self.id)[..6]);
            TaskName::new(format!("{start}~{hash}")).expect("letters and digits, 40 at most, are a name")
        })
    }

    /// The input of a rollout of the question. `example_id` is its position, `task` names the benchmark, and `system`
    /// is the system message, if there is one.
    pub fn input(self, example_id: u64, system: impl Into<Option<Arc<Message>>>, task: &str) -> RolloutInput {
        let Self { id, question, answer, kwargs, metadata } = self;
        let info = [("id", json!(id)), ("kwargs", json!(kwargs)), ("metadata", json!(metadata))];
        RolloutInput {
            prompt: system.into().into_iter().chain([Arc::new(Message::user(question))]).collect(),
            example_id,
            task: task.to_owned(),
            answer,
            info: Some(info.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()),
            extra: Map::new(),
        }
    }

    /// Parses the text of a JSON object.
    ///
    /// If several names of a field are present, the first one counts, whatever its value; the others are metadata. An
    /// id or an answer that is not text is converted: a number as written, anything else as JSON.
    fn parse(text: &str) -> Result<Self, String> {
        let describe = |error: serde_json::Error| {
            // The parser sees one line at a time, so its line number is always 1.
            format!("not JSON: {error}").replace(" at line 1 column ", " at column ")
        };
        if !text.trim_start().starts_with('{') {
            let parsed = serde_json::from_str::<IgnoredAny>(text);
            return Err(parsed.err().map_or_else(|| "a question must be a JSON object".to_owned(), describe));
        }
        let mut fields: IndexMap<String, &RawValue> = serde_json::from_str(text).map_err(describe)?;
        let mut take = |names: &[&str]| names.iter().find_map(|name| fields.shift_remove(*name));
        let (id, question, answer) = (take(ID), take(QUESTION), take(ANSWER));
        let kwargs = take(&["kwargs"]);
        let mut metadata = Map::new();
        for (key, raw) in fields {
            let value =
                serde_json::from_str(raw.get()).map_err(|error| format!("`{key}` is {}", describe(error)))?;
            metadata.insert(key, value);
        }
        let kwargs = match kwargs.map(|raw| serde_json::from_str(raw.get())).transpose().map_err(describe)? {
            Some(Value::Object(kwargs)) => kwargs,
            _ => Map::new(),
        };
        let id = match id.ok_or("missing `id`")?.get() {
            "null" => "None".to_owned(),
            raw => plain(raw).map_err(describe)?,
        };
        if id.trim().is_empty() {
            return Err("the `id` is empty".to_owned());
        }
        let question = question.filter(|raw| raw.get() != "null").ok_or("missing `question`")?;
        let question = plain(question.get()).map_err(describe)?;
        if question.trim().is_empty() {
            return Err("the question is empty".to_owned());
        }
        let answer = answer.filter(|raw| raw.get() != "null");
        let answer = answer.map(|raw| plain(raw.get())).transpose().map_err(describe)?;
        Ok(Self { id, question, answer, kwargs, metadata })
    }
}

/// A JSON value as text.
fn plain(raw: &str) -> serde_json::Result<String> {
    match raw.as_bytes().first() {
        Some(b'"') => serde_json::from_str(raw),
        Some(b'{' | b'[') => serde_json::from_str::<Value>(raw).map(|value| value.to_string()),
        _ => Ok(raw.to_owned()),
    }
}

/// Why questions cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// No file of questions is configured.
    #[error("missing file of questions: set `data_path` in the configuration, or pass it with the command")]
    NoPath,
    /// The file has an unknown extension.
    #[error("cannot read questions from {}: its name must end in .jsonl or .json", .0.display())]
    Kind(PathBuf),
    /// The file cannot be read.
    #[error("cannot read the questions in {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not JSON, or neither a list nor an object with a list under `data`.
    #[error("{} does not contain a list of questions", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The problem and its position.
        source: serde_json::Error,
    },
    /// Questions are invalid.
    #[error("{}", ProblemList(.place, .unit, .problems, *.more))]
    Items {
        /// The file or list.
        place: String,
        /// The unit of their numbers: lines, or entries of a list.
        unit: &'static str,
        /// The first problems, each with its line, or its position in a list from 1.
        problems: Vec<Problem>,
        /// How many more there are.
        more: usize,
    },
    /// There is no question.
    #[error("{0} has no questions")]
    Empty(String),
    /// The questions cannot be stored for the run.
    #[error("cannot write the questions to a temporary file")]
    Store(#[source] io::Error),
    /// Requested questions do not exist.
    #[error("unknown question id: {}", listed(.0.iter().map(|id| id.to_string())))]
    UnknownIds(Vec<UnknownId>),
}

/// An unknown id of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownId {
    /// The id.
    pub id: String,
    /// The most similar known id.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", excerpt(&self.id))?;
        match &self.nearest {
            Some(nearest) => write!(f, " (did you mean {:?}?)", excerpt(nearest)),
            None => Ok(()),
        }
    }
}

struct ProblemList<'a>(&'a str, &'a str, &'a [Problem], usize);

impl fmt::Display for ProblemList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(place, unit, problems, more) = self;
        let count = problems.len() + more;
        write!(f, "{place} has {count} invalid question{}:", if count == 1 { "" } else { "s" })?;
        for Problem { row, message } in *problems {
            write!(f, "\n  {unit} {row}: {message}")?;
        }
        if *more > 0 {
            write!(f, "\n  and {more} more")?;
        }
        Ok(())
    }
}

/// Reads questions from a file: JSON Lines (`.jsonl`), or a list, or an object with a list under `data` (`.json`).
/// Blocks while it reads.
///
/// Empty lines are ignored. All problems are reported at once, each with its line.
pub fn load_tasks(path: &Path) -> Result<Vec<BenchmarkItem>, DataError> {
    let mut items = Vec::new();
    each_task(path, &mut |item| {
        items.push(item);
        Ok(())
    })?;
    Ok(items)
}

/// Reads questions one by one, and returns how many there are.
fn each_task(path: &Path, take: &mut dyn FnMut(BenchmarkItem) -> io::Result<()>) -> Result<u64, DataError> {
    let failed = |source| DataError::Io { path: path.to_owned(), source };
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let is_list = match extension.as_str() {
        "jsonl" => false,
        "json" => true,
        _ => return Err(DataError::Kind(path.to_owned())),
    };
    let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
    if file.fill_buf().map_err(failed)?.starts_with("\u{feff}".as_bytes()) {
        file.consume('\u{feff}'.len_utf8());
    }
    let mut gathered = Gathered::new(if is_list { "entry" } else { "line" }, take);
    if is_list {
        let mut json = serde_json::Deserializer::from_reader(file);
        let read = List { gathered: &mut gathered, nested: true }.deserialize(&mut json);
        read.and_then(|()| json.end()).map_err(|source| match source.is_io() {
            true => failed(source.into()),
            false => DataError::Json { path: path.to_owned(), source },
        })?;
    } else {
        let mut lines = Lines::new(file);
        while let Some(line) = lines.next_line().map_err(failed)? {
            let number = line.number as usize;
            match std::str::from_utf8(line.bytes) {
                Ok(text) if text.trim().is_empty() => {}
                Ok(text) => gathered.take(number, BenchmarkItem::parse(text.trim())),
                Err(error) => {
                    let message = format!("not UTF-8 from byte {}", error.valid_up_to() + 1);
                    gathered.take(number, Err(message));
                }
            }
        }
    }
    gathered.finish(path.display().to_string())
}

/// Reads the questions that a configuration selects one by one, each with its position among them. Returns the number
/// of all questions. Blocks while it reads.
pub(super) fn each_question(
    config: &RolloutConfig,
    mut take: impl FnMut(u64, BenchmarkItem) -> io::Result<()>,
) -> Result<u64, DataError> {
    let path = config.data_path.as_deref().ok_or(DataError::NoPath)?;
    let ids = config.task_ids.as_deref();
    let wanted: Option<HashSet<&str>> = ids.map(|ids| ids.iter().map(String::as_str).collect());
    let most = config.number_of_tasks.map_or(u64::MAX, |most| most as u64);
    let (mut found, mut place) = (0, 0);
    let count = each_task(path, &mut |item| {
        if wanted.as_ref().is_some_and(|wanted| !wanted.contains(item.id.as_str())) {
            return Ok(());
        }
        found += 1;
        if place < most {
            take(place, item)?;
            place += 1;
        }
        Ok(())
    })?;
    if wanted.is_some_and(|wanted| found < wanted.len()) {
        // All questions are needed only for the suggestion in the error message.
        select(load_tasks(path)?, ids, None)?;
    }
    Ok(count)
}

/// Reads the questions that a configuration selects. Blocks while it reads.
pub fn load_questions(config: &RolloutConfig) -> Result<Vec<BenchmarkItem>, DataError> {
    let items = load_tasks(config.data_path.as_deref().ok_or(DataError::NoPath)?)?;
    select(items, config.task_ids.as_deref(), config.number_of_tasks)
}

/// The questions with these ids, limited to the first `number`, in order.
pub fn select(
    mut items: Vec<BenchmarkItem>,
    ids: Option<&[String]>,
    most: Option<usize>,
) -> Result<Vec<BenchmarkItem>, DataError> {
    if let Some(ids) = ids {
        let mut missing: HashSet<&str> = ids.iter().map(String::as_str).collect();
        let wanted = missing.clone();
        items.iter().for_each(|item| _ = missing.remove(item.id.as_str()));
        if !missing.is_empty() {
            let unknown = ids.iter().filter(|id| missing.remove(id.as_str()));
            // Suggestions are slow, so only the ones that are listed get one.
            let unknown = unknown.enumerate().map(|(place, id)| UnknownId {
                nearest: if place < MAX_LISTED { nearest(id, &items) } else { None },
                id: id.clone(),
            });
            return Err(DataError::UnknownIds(unknown.collect()));
        }
        items.retain(|item| wanted.contains(item.id.as_str()));
    }
    items.truncate(most.unwrap_or(usize::MAX));
    Ok(items)
}

/// The id that is most similar to another, if one is similar.
fn nearest(id: &str, items: &[BenchmarkItem]) -> Option<String> {
    let most = (id.chars().count() / 3).max(1);
    let near = |item: &&BenchmarkItem| item.id.len().abs_diff(id.len()) <= most * 4;
    let distance = |item: &BenchmarkItem| (strsim::damerau_levenshtein(id, &item.id), item.id.clone());
    let nearest = items.iter().filter(near).map(distance).min_by_key(|(distance, _)| *distance);
    nearest.filter(|(distance, _)| *distance <= most).map(|(_, id)| id)
}

/// Passes on valid questions, and collects the problems of the others.
struct Gathered<'t> {
    /// The unit in which questions are counted.
    unit: &'static str,
    take: &'t mut dyn FnMut(BenchmarkItem) -> io::Result<()>,
    count: u64,
    /// Why a question could not be passed on.
    failed: Option<io::Error>,
    /// Where each id was seen first, by its hash: hashes need less memory for a million ids.
    seen: HashMap<[u8; 16], usize>,
    problems: Vec<Problem>,
    more: usize,
}

impl<'t> Gathered<'t> {
    fn new(unit: &'static str, take: &'t mut dyn FnMut(BenchmarkItem) -> io::Result<()>) -> Self {
        Self { unit, take, count: 0, failed: None, seen: HashMap::new(), problems: Vec::new(), more: 0 }
    }

    fn take(&mut self, row: usize, item: Result<BenchmarkItem, String>) {
        let message = match item {
            Ok(item) => match self.seen.entry(id_hash(&item.id)) {
                Entry::Vacant(new) => {
                    new.insert(row);
                    self.count += 1;
                    // After a problem, the rest of the file is still checked, but no question is passed on.
                    if self.failed.is_none() && self.problems.is_empty() {
                        self.failed = (self.take)(item).err();
                    }
                    return;
                }
                Entry::Occupied(first) => {
                    format!("the id {:?} is already used in {} {}", excerpt(&item.id), self.unit, first.get())
                }
            },
            Err(message) => message,
        };
        if self.problems.len() < MAX_LISTED {
            self.problems.push(Problem { row, message });
        } else {
            self.more += 1;
        }
    }

    fn finish(self, place: String) -> Result<u64, DataError> {
        let Self { unit, count, failed, problems, more, .. } = self;
        if !problems.is_empty() {
            return Err(DataError::Items { place, unit, problems, more });
        }
        match failed {
            Some(error) => Err(DataError::Store(error)),
            None if count == 0 => Err(DataError::Empty(place)),
            None => Ok(count),
        }
    }
}

/// A hash that identifies an id.
fn id_hash(id: &str) -> [u8; 16] {
    *Sha256::digest(id).first_chunk().expect("the hash has 32 bytes")
}

/// Reads a list entry by entry, so that it is never completely in memory.
struct List<'g, 't> {
    gathered: &'g mut Gathered<'t>,
    /// Whether the list may be under `data`.
    nested: bool,
}

impl<'de> DeserializeSeed<'de> for List<'_, '_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for List<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.nested { "a list, or an object with a list under `data`" } else { "a list" })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut place = 0;
        while let Some(entry) = list.next_element::<Box<RawValue>>()? {
            place += 1;
            self.gathered.take(place, BenchmarkItem::parse(entry.get()));
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = object.next_key::<String>()? {
            if key == "data" && self.nested && !found {
                object.next_value_seed(List { gathered: &mut *self.gathered, nested: false })?;
                found = true;
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        if found { Ok(()) } else { Err(de::Error::custom("missing list under `data`")) }
    }
}

#[cfg(test)]
mod tests;
