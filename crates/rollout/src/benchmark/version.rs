//! The record of a question, with the hash of everything except the model that its results depend on.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{BenchmarkItem, seeds};
use crate::config::{RolloutConfig, names_files};
use rollout_core::{python_json::PythonJson, text::hex};
use rollout_record::{export::eval_log::QuestionVersion, tasks::TaskRecord};
use rollout_settings::expand::{is_secret_header, names_a_secret};

/// The maximum size of the files of one path that are hashed by content. Beyond it, sizes are hashed instead.
const MAX_BYTES: u64 = 1 << 30;
/// The maximum number of files of one path. For a folder with more, only the name is hashed.
const MAX_FILES: usize = 100_000;

/// Creates the records of questions. Files that many of them use are read once.
#[derive(Debug)]
pub(super) struct QuestionRecords {
    dataset: String,
    resources: Map<String, Value>,
    /// The base of relative paths of questions.
    base: PathBuf,
    seen: HashMap<PathBuf, Option<Value>>,
}

impl QuestionRecords {
    /// For the questions of a benchmark. Reads the files that the sessions of all questions use.
    pub(super) fn new(config: &RolloutConfig) -> Self {
        let base = seeds::beside_questions(config);
        let dataset = config.dataset_name().to_string();
        let mut records = Self { dataset, resources: Map::new(), base, seen: HashMap::new() };
        for kind in &config.resource_types {
            let opened_with = seeds::session_config(kind, &config.resource_init_configs);
            let opened_with = records.with_contents(&opened_with);
            records.resources.insert(kind.clone(), opened_with.into());
        }
        records
    }

    /// The record of a question.
    pub(super) fn about(&mut self, item: &BenchmarkItem) -> TaskRecord {
        let kwargs = self.with_contents(&item.kwargs);
        let version = QuestionVersion {
            question: &item.question,
            answer: item.answer.as_deref(),
            kwargs: &kwargs,
            resources: &self.resources,
        };
        let text = |key: &str| item.metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        let tags = item.metadata.get("tags").and_then(Value::as_array).into_iter().flatten();
        TaskRecord {
            dataset: self.dataset.clone(),
            name: item.task_name().to_string(),
            id: Some(item.id.clone()),
            version_hash: Some(version.hash()),
            category: text("category"),
            difficulty: text("difficulty"),
            tags: tags.filter_map(Value::as_str).map(str::to_owned).collect(),
            description: text("description"),
            source: text("source"),
            metadata: item.metadata.clone(),
            instruction: item.question.clone(),
            ..TaskRecord::default()
        }
    }

    /// Parameters with files replaced by their content, so that hashes depend on neither paths of this machine nor
    /// secrets.
    fn with_contents(&mut self, params: &Map<String, Value>) -> Map<String, Value> {
        let mut known = Map::new();
        for (key, value) in params {
            let value = match value {
                _ if is_secret_header(key) || names_a_secret(key) => continue,
                Value::Object(inner) => self.with_contents(inner).into(),
                Value::String(path) if names_files(key) => self.content(path),
                Value::Array(paths) if names_files(key) => paths
                    .iter()
                    .map(|path| path.as_str().map_or(path.clone(), |path| self.content(path)))
                    .collect(),
                other => other.clone(),
            };
            known.insert(key.clone(), value);
        }
        known
    }

    /// The content of a path; the path as written if it does not exist on this machine.
    fn content(&mut self, written: &str) -> Value {
        let path = self.base.join(written);
        let known = self.seen.entry(path).or_insert_with_key(|path| content(path));
        known.clone().unwrap_or_else(|| written.into())
    }
}

/// The content of a file or a folder on this machine.
fn content(path: &Path) -> Option<Value> {
    let path = path.canonicalize().ok()?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if path.is_file() {
        let size = path.metadata().ok()?.len();
        return Some(match size <= MAX_BYTES {
            true => json!({ "name": name, "sha256": digest(&path).ok()? }),
            false => json!({ "name": name, "size": size }),
        });
    }
    let mut sizes = BTreeMap::new();
    if !collect(&path, "", &mut sizes).ok()? {
        return Some(json!({ "name": name }));
    }
    if sizes.values().fold(0_u64, |sum, size| sum.saturating_add(*size)) > MAX_BYTES {
        return Some(json!({ "name": name, "sizes_sha256": canonical(&json!(sizes)) }));
    }
    let digests = sizes.into_keys().map(|file| digest(&path.join(&file)).map(|digest| (file, digest)));
    let digests: BTreeMap<String, String> = digests.collect::<io::Result<_>>().ok()?;
    Some(json!({ "name": name, "sha256": canonical(&json!(digests)) }))
}

/// Finds the files below a folder, with their sizes, as tools see them: without names that start with a dot. Returns
/// whether their number is within the limit.
fn collect(root: &Path, relative: &str, sizes: &mut BTreeMap<String, u64>) -> io::Result<bool> {
    for entry in fs::read_dir(root.join(relative))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        if name.starts_with('.') {
            continue;
        }
        let path = if relative.is_empty() { name } else { format!("{relative}/{name}") };
        if kind.is_dir() {
            if !collect(root, &path, sizes)? {
                return Ok(false);
            }
        } else if kind.is_file() {
            sizes.insert(path, entry.metadata()?.len());
        }
        if sizes.len() > MAX_FILES {
            return Ok(false);
        }
    }
    Ok(true)
}

fn digest(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn canonical(value: &Value) -> String {
    let mut text = Vec::new();
    PythonJson::sorted().write(&mut text, value).expect("its keys are texts, and memory takes everything");
    hex(&Sha256::digest(text))
}
