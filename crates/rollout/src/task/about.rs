//! The record of a task, for readers that do not have its files.

use std::{io::Read as _, path::Path};

use serde_json::{Map, Value};

use super::{Task, content::Contents};
use rollout_record::{export::eval_log::TaskVersion, layout::open_below, tasks::TaskRecord};

/// How much of an instruction or a script is recorded. Texts written by hand are shorter.
const MAX_BYTES: u64 = 1 << 20;

impl Task {
    /// The record of the task, with the hash of everything that its results depend on.
    pub(crate) fn about(&self, dataset: &str, contents: &Contents) -> TaskRecord {
        let read = |relative: &str| read(&self.dir, relative);
        let instruction = match self.config.steps.as_slice() {
            [] => read("instruction.md"),
            steps => steps.iter().map(|step| read(&format!("steps/{}/instruction.md", step.name))).sum(),
        };
        let metadata = &self.config.metadata;
        let text = |key: &str| metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        let tags = metadata.get("tags").and_then(Value::as_array).into_iter().flatten();
        TaskRecord {
            dataset: dataset.to_owned(),
            name: self.name.to_string(),
            id: None,
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
            source: self.config.source.clone(),
            metadata: metadata.clone(),
            instruction: instruction.map(|kept| kept.text).unwrap_or_default(),
            test: self::read(&self.tests, "test.sh").map(|kept| kept.text),
            test_files: contents.test_files(),
            has_solution: Some(self.has_solution),
            tests_url: self.url.as_ref().map(|url| format!("{url}/tests")),
            limits: None,
        }
    }
}

/// The recorded part of a file.
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

/// The instructions of several steps, one after the other.
impl std::iter::Sum for Kept {
    fn sum<I: Iterator<Item = Self>>(kept: I) -> Self {
        let mut all = Self::default();
        for Self { text, is_cut } in kept {
            if !all.text.is_empty() {
                all.text.push_str("\n\n");
            }
            all.text.push_str(&text);
            all.is_cut |= is_cut;
        }
        all
    }
}

/// Reads a file of a task. A symbolic link to outside of the task is not followed: records are published, and other
/// files of this machine must not be.
fn read(dir: &Path, relative: &str) -> Option<Kept> {
    let mut bytes = Vec::new();
    open_below(dir, &dir.join(relative)).ok()?.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    let is_cut = bytes.len() as u64 > MAX_BYTES;
    bytes.truncate(MAX_BYTES as usize);
    Some(Kept { text: String::from_utf8_lossy(&bytes).into_owned(), is_cut })
}

/// Converts a task.toml to JSON. Values that JSON does not have become text.
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

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use crate::task::load_task;
    use rollout_core::name::TaskName;

    const TOML: &str =
        "version = \"1.0\"\nday = 2026-01-02\nodd = nan\nlarge = 1e22\n\n[agent]\ntimeout_sec = 60.0\n";

    /// The literals were computed with Python, by the recipe in docs/eval-log.md. Old results are compared by them.
    #[test]
    fn the_hashes_of_a_task_never_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = |relative: &str| dir.path().join(relative);
        fs::create_dir(path("environment")).unwrap();
        fs::create_dir(path("tests")).unwrap();
        for (file, text) in [
            ("environment/Dockerfile", "FROM alpine:3\n"),
            ("instruction.md", "Écris.\n"),
            ("task.toml", TOML),
            ("tests/test.sh", "exit 0\n"),
        ] {
            fs::write(path(file), text).unwrap();
            fs::set_permissions(path(file), Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(path("tests/test.sh"), Permissions::from_mode(0o755)).unwrap();
        symlink("test.sh", path("tests/link")).unwrap();
        let (task, _) = load_task(dir.path(), TaskName::new("task").unwrap()).unwrap();
        let contents = task.contents().unwrap();
        assert_eq!(
            contents.hash(),
            "sha256:473193baab4e34239f973b060fa9c96dce37dfa5fbcc1bf1c9e6d89692c461f9"
        );
        assert_eq!(
            contents.hash_below("tests").unwrap(),
            "sha256:8afd51636afaa92996fa0bf82909cd543720539250d524ce3af4cc1bd0552d5f"
        );
        let version = task.about("set", &contents).version_hash.unwrap();
        assert_eq!(version, "84a2459349cb0fc8f136018ff7ac40258cebb6a6e2bbd953a2db09f0d906f30d");
    }
}
