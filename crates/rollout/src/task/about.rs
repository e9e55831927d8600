//! What a task says, for records that are read when its files are gone.

use std::{fs::File, io::Read as _, path::Path};

use serde_json::{Map, Value};

use super::{Task, content::Contents};
use crate::{export::eval_log::TaskVersion, record::tasks::TaskAbout};

/// How much of an instruction or a script is kept. Nobody writes that much by hand.
const MAX_BYTES: u64 = 1 << 20;

impl Task {
    /// What the task says, with the hash of what its results depend on.
    pub(crate) fn about(&self, dataset: &str, contents: &Contents) -> TaskAbout {
        let read = |relative: &str| read(&self.dir, relative);
        let instruction = read("instruction.md");
        let metadata = &self.config.metadata;
        let text = |key: &str| metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        let tags = metadata.get("tags").and_then(Value::as_array).into_iter().flatten();
        TaskAbout {
            dataset: dataset.to_owned(),
            name: self.name.to_string(),
            version_hash: instruction.as_ref().and_then(|kept| {
                let written = if self.has_config { read("task.toml")? } else { Kept::default() };
                let [environment, tests] = ["environment", "tests"].map(|dir| contents.hash_below(dir));
                let version = TaskVersion {
                    task: &json(&toml::from_str(written.whole()?).ok()?),
                    instruction: kept.whole()?,
                    environment: environment.as_deref(),
                    tests: tests.as_deref(),
                };
                Some(version.hash())
            }),
            category: text("category"),
            difficulty: text("difficulty"),
            tags: tags.filter_map(Value::as_str).map(str::to_owned).collect(),
            description: text("description"),
            instruction: instruction.map(|kept| kept.text).unwrap_or_default(),
            test: read("tests/test.sh").map(|kept| kept.text),
            tests_url: self.url.as_ref().map(|url| format!("{url}/tests")),
            limits: None,
        }
    }
}

/// A file as far as it is kept.
#[derive(Debug, Default)]
struct Kept {
    text: String,
    is_cut: bool,
}

impl Kept {
    fn whole(&self) -> Option<&str> {
        (!self.is_cut).then_some(self.text.as_str())
    }
}

/// Reads a file of a task. A link that leads out of it is not followed: records are published, and what lies elsewhere
/// on this machine is not the task's to publish.
fn read(dir: &Path, relative: &str) -> Option<Kept> {
    let path = dir.join(relative).canonicalize().ok()?;
    if !path.starts_with(dir.canonicalize().ok()?) || !path.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    let is_cut = bytes.len() as u64 > MAX_BYTES;
    bytes.truncate(MAX_BYTES as usize);
    Some(Kept { text: String::from_utf8_lossy(&bytes).into_owned(), is_cut })
}

/// A task.toml as JSON. What JSON has no form for is told as text.
fn json(table: &toml::Table) -> Value {
    fn value(written: &toml::Value) -> Value {
        match written {
            toml::Value::String(text) => text.as_str().into(),
            toml::Value::Integer(number) => (*number).into(),
            toml::Value::Float(number) if number.is_finite() => (*number).into(),
            toml::Value::Float(number) => number.to_string().into(),
            toml::Value::Boolean(truth) => (*truth).into(),
            toml::Value::Datetime(time) => time.to_string().into(),
            toml::Value::Array(items) => items.iter().map(value).collect(),
            toml::Value::Table(table) => json(table),
        }
    }
    Value::Object(table.iter().map(|(key, item)| (key.clone(), value(item))).collect::<Map<_, _>>())
}
