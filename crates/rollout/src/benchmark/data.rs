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
    collections::{HashMap, HashSet},
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

    /// What a rollout of the question starts from. `example_id` is its place, and `task` names the benchmark.
    pub fn input(self, example_id: u64, system: Arc<Message>, task: &str) -> RolloutInput {
        let Self { id, question, answer, kwargs, metadata } = self;
        let info = [("id", json!(id)), ("kwargs", json!(kwargs)), ("metadata", json!(metadata))];
        RolloutInput {
            prompt: vec![system, Arc::new(Message::user(question))],
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
    let mut gathered = Gathered::new(if is_list { "entry" } else { "line" });
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
    let mut gathered = Gathered::new("entry");
    for (place, value) in values.into_iter().enumerate() {
        gathered.take(place + 1, BenchmarkItem::parse(&value.to_string()));
    }
    gathered.finish("the list".to_owned())
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
struct Gathered {
    /// What questions are counted in.
    unit: &'static str,
    items: Vec<BenchmarkItem>,
    /// Where each id was seen first.
    seen: HashMap<String, usize>,
    problems: Vec<Problem>,
    more: usize,
}

impl Gathered {
    fn new(unit: &'static str) -> Self {
        Self { unit, items: Vec::new(), seen: HashMap::new(), problems: Vec::new(), more: 0 }
    }

    fn take(&mut self, row: usize, item: Result<BenchmarkItem, String>) {
        let message = match item {
            Ok(item) => match self.seen.get(&item.id) {
                None => {
                    self.seen.insert(item.id.clone(), row);
                    self.items.push(item);
                    return;
                }
                Some(first) => format!("the id {:?} is that of {} {first} too", excerpt(&item.id), self.unit),
            },
            Err(message) => message,
        };
        if self.problems.len() < TOLD {
            self.problems.push(Problem { row, message });
        } else {
            self.more += 1;
        }
    }

    fn finish(self, place: String) -> Result<Vec<BenchmarkItem>, DataError> {
        let Self { unit, items, problems, more, .. } = self;
        if !problems.is_empty() {
            return Err(DataError::Items { place, unit, problems, more });
        }
        if items.is_empty() { Err(DataError::Empty(place)) } else { Ok(items) }
    }
}

/// Reads a list entry by entry, so that it is never in memory whole.
struct List<'g> {
    gathered: &'g mut Gathered,
    /// Whether the list may stand under `data`.
    nested: bool,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(name: &str, content: impl AsRef<[u8]>) -> Result<Vec<BenchmarkItem>, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        load_tasks(&path)
    }

    fn refused(name: &str, content: impl AsRef<[u8]>) -> String {
        let error = read(name, content).unwrap_err();
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        let text = error.to_string() + &source.unwrap_or_default();
        match text.split_once(name) {
            Some((_, rest)) => format!("{name}{rest}"),
            None => text,
        }
    }

    fn fields(line: &str) -> Value {
        let BenchmarkItem { id, question, answer, kwargs, metadata } = BenchmarkItem::parse(line).unwrap();
        json!([id, question, answer, kwargs, metadata])
    }

    #[test]
    fn a_field_has_several_names_of_which_the_first_that_is_there_counts() {
        for (line, expected) in [
            (r#"{"id": "a", "question": "q", "answer": "x"}"#, json!(["a", "q", "x", {}, {}])),
            (r#"{"task_id": "a", "query": "q", "ground_truth": "x"}"#, json!(["a", "q", "x", {}, {}])),
            (r#"{"task_id": "a", "input": "q", "expected": "x"}"#, json!(["a", "q", "x", {}, {}])),
            (r#"{"id": "a", "question": "q"}"#, json!(["a", "q", null, {}, {}])),
            (r#"{"id": "a", "question": "q", "answer": ""}"#, json!(["a", "q", "", {}, {}])),
            (
                r#"{"answer": null, "expected": "x", "task_id": "b", "id": "a", "input": "p", "question": "q"}"#,
                json!(["a", "q", null, {}, {"expected": "x", "task_id": "b", "input": "p"}]),
            ),
        ] {
            assert_eq!(fields(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_no_text_becomes_one() {
        for (written, id, answer) in [
            ("7", "7", json!("7")),
            ("1.50", "1.50", json!("1.50")),
            ("1e3", "1e3", json!("1e3")),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
                json!("123456789012345678901234567890"),
            ),
            ("true", "true", json!("true")),
            (r#"["a", 1]"#, r#"["a",1]"#, json!(r#"["a",1]"#)),
            (r#"{"b": "巴黎"}"#, r#"{"b":"巴黎"}"#, json!(r#"{"b":"巴黎"}"#)),
            ("null", "None", Value::Null),
        ] {
            let line = format!(r#"{{"id": {written}, "question": "q", "answer": {written}}}"#);
            assert_eq!(fields(&line), json!([id, "q", answer, {}, {}]), "{written}");
        }
    }

    #[test]
    fn kwargs_are_an_object_or_nothing_and_metadata_nests() {
        let line = r#"{"id": "a", "question": "q", "kwargs": {"seed_path": "/d"}, "metadata": {"x": 1}, "level": 2}"#;
        let expected = json!(["a", "q", null, {"seed_path": "/d"}, {"metadata": {"x": 1}, "level": 2}]);
        assert_eq!(fields(line), expected);
        assert_eq!(fields(r#"{"id": "a", "question": "q", "kwargs": [1]}"#), json!(["a", "q", null, {}, {}]));
    }

    #[test]
    fn lines_of_any_text_are_read_whatever_ends_them() {
        let lines = "\u{feff}{\"id\": \"一\", \"question\": \"法国的首都是哪里？\", \"answer\": \"巴黎\"}\r\n\r\n  \n{\"id\": \"e\", \"question\": \"\\ud83d\\ude00 \u{2028} é\"}";
        let items = read("q.jsonl", lines).unwrap();
        let found: Vec<_> = items.iter().map(|item| (item.id.as_str(), item.question.as_str())).collect();
        assert_eq!(found, [("一", "法国的首都是哪里？"), ("e", "😀 \u{2028} é")]);
    }

    #[test]
    fn a_list_is_read_with_or_without_an_object_around_it() {
        let list = r#"[{"id": 1, "question": "a"}, {"id": 2, "question": "b"}]"#;
        let object = format!("\u{feff}{{\"name\": {{\"data\": []}}, \"data\": {list}, \"more\": [1]}}");
        let expected = tasks_from([json!({"id": 1, "question": "a"}), json!({"id": 2, "question": "b"})]);
        let expected = expected.unwrap();
        assert_eq!(read("q.json", list).unwrap(), expected);
        assert_eq!(read("q.JSON", object).unwrap(), expected);
    }

    #[test]
    fn every_bad_line_is_told_with_its_number() {
        let mut lines = b"{\"id\": 1, \"question\": \"a\"}\nnot\n[1]\n\n{\"question\": \"a\"}\n".to_vec();
        lines.extend(
            b"{\"id\": 2}\n{\"id\": \"1\", \"question\": \"b\"}\n{\"id\": \"\", \"question\": \"b\"}\n",
        );
        lines.extend(b"{\"id\": 3, \"question\": \"\xff\"}\n{\"id\": 4, \"question\": \" \"}\n{\"id\": 5, \"question\": null}\n");
        lines
            .extend(b"{\"id\": 6, \"question\": \"a\", \"x\": 1e999}\n{\"id\": 7, \"question\": \"a\"} {}\n");
        insta::assert_snapshot!(refused("q.jsonl", lines), @r#"
        q.jsonl has 11 bad questions:
          line 2: not JSON: expected ident at column 2
          line 3: a question is a JSON object
          line 5: there is no `id`
          line 6: there is no `question`
          line 7: the id "1" is that of line 1 too
          line 8: the `id` is empty
          line 9: not UTF-8 from byte 24
          line 10: the question is empty
          line 11: there is no `question`
          line 12: `x` is not JSON: number out of range at column 5
          line 13: not JSON: trailing characters at column 28
        "#);
    }

    #[test]
    fn only_the_first_twenty_problems_are_told() {
        let text = refused("q.jsonl", "x\n".repeat(1000));
        assert_eq!(text.lines().count(), 22);
        assert!(text.starts_with("q.jsonl has 1000 bad questions:\n  line 1: "));
        assert!(text.ends_with("\n  and 980 more"));
    }

    #[test]
    fn a_file_without_questions_is_refused() {
        let told = [
            refused("q.jsonl", "\n"),
            refused("q.json", "[]"),
            refused("q.json", "{\"rows\": []}"),
            refused("q.json", "{\"data\": {\"data\": []}}"),
            refused("q.json", "\n[{\"id\": 1,]"),
            refused("q.json", "3"),
            refused("q.json", "[{\"id\": 1}, 2]"),
            refused("q.csv", "id,question"),
        ];
        insta::assert_snapshot!(told.join("\n"), @"
        q.jsonl has no questions in it
        q.json has no questions in it
        q.json holds no list of questions: there is no list under `data` at line 1 column 12
        q.json holds no list of questions: there is no list under `data` at line 1 column 21
        q.json holds no list of questions: key must be a string at line 2 column 11
        q.json holds no list of questions: invalid type: integer `3`, expected a list, or an object with a list under `data` at line 1 column 1
        q.json has 2 bad questions:
          entry 1: there is no `question`
          entry 2: a question is a JSON object
        q.csv is neither .jsonl nor .json, so its questions cannot be read
        ");
    }

    #[test]
    fn ids_choose_first_and_then_the_number() {
        let ids = |items: Vec<BenchmarkItem>| items.into_iter().map(|item| item.id).collect::<Vec<_>>();
        let items = || {
            let values = ["task_001", "task_002", "task_003"].map(|id| json!({"id": id, "question": "q"}));
            tasks_from(values).unwrap()
        };
        let wanted = ["task_003".to_owned(), "task_001".to_owned()];
        assert_eq!(ids(select(items(), Some(&wanted), None).unwrap()), ["task_001", "task_003"]);
        assert_eq!(ids(select(items(), Some(&wanted), Some(1)).unwrap()), ["task_001"]);
        assert_eq!(ids(select(items(), None, Some(2)).unwrap()), ["task_001", "task_002"]);
        let unknown = ["task_001", "task_02", "other"].map(str::to_owned);
        let error = select(items(), Some(&unknown), None).unwrap_err();
        insta::assert_snapshot!(error, @r#"there is no question with the id "task_02" (did you mean "task_002"?), "other""#);
    }

    #[test]
    fn an_id_that_cannot_be_a_name_still_names_its_task() {
        let name = |id: &str| {
            BenchmarkItem { id: id.to_owned(), ..BenchmarkItem::default() }.task_name().to_string()
        };
        assert_eq!(name("题目 1"), "题目 1");
        assert_eq!(name("dev/12"), "dev_12~6ea348c6b9ff");
        assert_ne!(name("a/b"), name("a\\b"));
        assert!(name(&"长".repeat(300)).starts_with("长长长"));
    }

    proptest! {
        #[test]
        fn any_line_is_a_question_or_a_problem(line in r#"(\{|\}|"id"|"question"|:|,|"x"|null|1|[ -~]){0,12}"#) {
            let _ = BenchmarkItem::parse(&line);
        }

        #[test]
        fn any_text_comes_through_whole(id in r"\PC{1,9}[a-z]", question in r"[\PC\n\t]{0,20}[a-z]", answer in r"\PC{0,9}") {
            let row = json!({"id": id, "question": question, "answer": answer, "more": answer});
            let item = read("q.jsonl", row.to_string()).unwrap().remove(0);
            prop_assert_eq!((item.id, item.question, item.answer), (id, question, Some(answer.clone())));
            prop_assert_eq!(&item.metadata["more"], &json!(answer));
        }
    }
}
