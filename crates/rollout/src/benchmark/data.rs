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

/// How many problems of a file are told.
const TOLD: usize = 20;

/// A question with what is known of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BenchmarkItem {
    /// Names it in results.
    pub id: String,
    /// The question.
    pub question: String,
    /// The right answer. An empty one is one too.
    pub answer: Option<String>,
    /// Parameters that every call of a tool gets.
    pub kwargs: Map<String, Value>,
    /// All its other fields.
    pub metadata: Map<String, Value>,
}

impl BenchmarkItem {
    /// Its name in a job: its id, or, where that cannot be a name, one made of it.
    pub fn task_name(&self) -> TaskName {
        TaskName::new(self.id.as_str()).unwrap_or_else(|_| {
            // What is replaced could make two ids the same; the hash keeps them apart.
            let plain = |char: char| if char.is_alphanumeric() || ".-_".contains(char) { char } else { '_' };
            let start: String = self.id.chars().map(plain).take(40).collect();
            let hash = rollout_core::text::hex(&Sha256::digest(&self.id)[..6]);
            TaskName::new(format!("{start}~{hash}")).expect("letters and digits, 40 at most, are a name")
        })
    }

    /// What a rollout of the question starts from. `example_id` is its place, `task` names the benchmark, and `system` is
    /// what the model is told before the question, if anything is.
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

    /// Takes the text of a JSON object apart.
    ///
    /// Of several names for a field the first one that is there counts, whatever its value; the others are metadata. An id
    /// or an answer that is no text becomes one: a number as it is written, anything else as JSON.
    fn parse(text: &str) -> Result<Self, String> {
        let told = |error: serde_json::Error| {
            // The line that the parser counts is the first of one.
            format!("not JSON: {error}").replace(" at line 1 column ", " at column ")
        };
        if !text.trim_start().starts_with('{') {
            let parsed = serde_json::from_str::<IgnoredAny>(text);
            return Err(parsed.err().map_or_else(|| "a question is a JSON object".to_owned(), told));
        }
        let mut fields: IndexMap<String, &RawValue> = serde_json::from_str(text).map_err(told)?;
        let mut take = |names: &[&str]| names.iter().find_map(|name| fields.shift_remove(*name));
        let (id, question, answer) = (take(ID), take(QUESTION), take(ANSWER));
        let kwargs = take(&["kwargs"]);
        let mut metadata = Map::new();
        for (key, raw) in fields {
            let value =
                serde_json::from_str(raw.get()).map_err(|error| format!("`{key}` is {}", told(error)))?;
            metadata.insert(key, value);
        }
        let kwargs = match kwargs.map(|raw| serde_json::from_str(raw.get())).transpose().map_err(told)? {
            Some(Value::Object(kwargs)) => kwargs,
            _ => Map::new(),
        };
        let id = match id.ok_or("there is no `id`")?.get() {
            "null" => "None".to_owned(),
            raw => plain(raw).map_err(told)?,
        };
        if id.trim().is_empty() {
            return Err("the `id` is empty".to_owned());
        }
        let question = question.filter(|raw| raw.get() != "null").ok_or("there is no `question`")?;
        let question = plain(question.get()).map_err(told)?;
        if question.trim().is_empty() {
            return Err("the question is empty".to_owned());
        }
        let answer = answer.filter(|raw| raw.get() != "null");
        let answer = answer.map(|raw| plain(raw.get())).transpose().map_err(told)?;
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

/// Why there are no questions to ask.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The configuration names no file of questions.
    #[error("no questions are given; write `data_path` into the configuration, or give it beside it")]
    NoPath,
    /// The file is of no kind that is read.
    #[error("{} is neither .jsonl nor .json, so its questions cannot be read", .0.display())]
    Kind(PathBuf),
    /// The file cannot be read.
    #[error("cannot read the questions in {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not JSON, or neither a list nor an object with a list under `data`.
    #[error("{} holds no list of questions", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// Questions are not as they have to be.
    #[error("{}", Told(.place, .unit, .problems, *.more))]
    Items {
        /// Where they are.
        place: String,
        /// What their numbers count: lines, or entries of a list.
        unit: &'static str,
        /// The first problems, each with its line, or its place in a list from 1.
        problems: Vec<Problem>,
        /// How many more there are.
        more: usize,
    },
    /// There is no question.
    #[error("{0} has no questions in it")]
    Empty(String),
    /// The questions cannot be put where the run finds them.
    #[error("cannot keep the questions in a temporary file")]
    Store(#[source] io::Error),
    /// Questions are asked for that are not there.
    #[error("there is no question with the id {}", listed(.0.iter().map(|id| id.to_string())))]
    UnknownIds(Vec<UnknownId>),
}

/// An id that no question has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownId {
    /// The id.
    pub id: String,
    /// One that a question has, and that may have been meant.
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

struct Told<'a>(&'a str, &'a str, &'a [Problem], usize);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(place, unit, problems, more) = self;
        let count = problems.len() + more;
        write!(f, "{place} has {count} bad question{}:", if count == 1 { "" } else { "s" })?;
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
/// Empty lines are left out. All that is wrong is told at once, each problem with its line.
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

/// Makes questions of values, each an object as it would be in a file.
pub fn tasks_from(values: impl IntoIterator<Item = Value>) -> Result<Vec<BenchmarkItem>, DataError> {
    let mut items = Vec::new();
    let mut take = |item| {
        items.push(item);
        Ok(())
    };
    let mut gathered = Gathered::new("entry", &mut take);
    for (place, value) in values.into_iter().enumerate() {
        gathered.take(place + 1, BenchmarkItem::parse(&value.to_string()));
    }
    gathered.finish("the list".to_owned())?;
    Ok(items)
}

/// Reads the questions that a configuration asks for one by one, each with its place among them. Returns how many there
/// are in all. Blocks while it reads.
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
        // Only the message needs all of them, for what may have been meant.
        select(load_tasks(path)?, ids, None)?;
    }
    Ok(count)
}

/// Reads the questions that a configuration asks for. Blocks while it reads.
pub fn load_questions(config: &RolloutConfig) -> Result<Vec<BenchmarkItem>, DataError> {
    let items = load_tasks(config.data_path.as_deref().ok_or(DataError::NoPath)?)?;
    select(items, config.task_ids.as_deref(), config.number_of_tasks)
}

/// The questions with these ids, and of those the first so many, in their order.
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
            // Which one was meant takes a while to find out, and nobody reads a thousand of them.
            let unknown = unknown.enumerate().map(|(place, id)| UnknownId {
                nearest: if place < TOLD { nearest(id, &items) } else { None },
                id: id.clone(),
            });
            return Err(DataError::UnknownIds(unknown.collect()));
        }
        items.retain(|item| wanted.contains(item.id.as_str()));
    }
    items.truncate(most.unwrap_or(usize::MAX));
    Ok(items)
}

/// The id that is most like another, if one is like it.
fn nearest(id: &str, items: &[BenchmarkItem]) -> Option<String> {
    let most = (id.chars().count() / 3).max(1);
    let near = |item: &&BenchmarkItem| item.id.len().abs_diff(id.len()) <= most * 4;
    let distance = |item: &BenchmarkItem| (strsim::damerau_levenshtein(id, &item.id), item.id.clone());
    let nearest = items.iter().filter(near).map(distance).min_by_key(|(distance, _)| *distance);
    nearest.filter(|(distance, _)| *distance <= most).map(|(_, id)| id)
}

/// Questions, and what is wrong with others.
struct Gathered<'t> {
    /// What questions are counted in.
    unit: &'static str,
    take: &'t mut dyn FnMut(BenchmarkItem) -> io::Result<()>,
    count: u64,
    /// Why a question could not be taken.
    failed: Option<io::Error>,
    /// Where each id was seen first, by its hash: a million ids take less memory so.
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
                    // What is wrong with a file is still found, though nothing is made of it any more.
                    if self.failed.is_none() && self.problems.is_empty() {
                        self.failed = (self.take)(item).err();
                    }
                    return;
                }
                Entry::Occupied(first) => {
                    format!("the id {:?} is that of {} {} too", excerpt(&item.id), self.unit, first.get())
                }
            },
            Err(message) => message,
        };
        if self.problems.len() < TOLD {
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

/// A hash of an id that no other id has.
fn id_hash(id: &str) -> [u8; 16] {
    *Sha256::digest(id).first_chunk().expect("the hash has 32 bytes")
}

/// Reads a list entry by entry, so that it is never in memory whole.
struct List<'g, 't> {
    gathered: &'g mut Gathered<'t>,
    /// Whether the list may stand under `data`.
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
        if found { Ok(()) } else { Err(de::Error::custom("there is no list under `data`")) }
    }
}

#[cfg(test)]
mod tests;
