//! What the tasks of a job said when it was planned: `tasks.jsonl`.
//!
//! Records of a job tell of its tasks long after their files have changed or are gone. Examples for models are not in
//! it, because their rows tell what they were; questions of benchmarks are.

use std::{borrow::Cow, collections::BTreeMap, io, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    atomic::{self, WriteError},
    lines::Lines,
};
use rollout_core::redact::Redactor;

/// What a task said: a line of the file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskRecord {
    /// Its dataset.
    pub dataset: String,
    /// Its name.
    pub name: String,
    /// Its id in the file of questions, if it is a question of a benchmark: not every id can be a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The hash of everything that its results depend on; none if it is too large to hash.
    pub version_hash: Option<String>,
    /// `category` of its metadata.
    pub category: Option<String>,
    /// `difficulty` of its metadata.
    pub difficulty: Option<String>,
    /// `tags` of its metadata.
    pub tags: Vec<String>,
    /// `description` of its metadata.
    pub description: Option<String>,
    /// Where it comes from, as its `source` says.
    pub source: Option<String>,
    /// All of its metadata, the four above included.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The instruction; cut off if it is very long.
    pub instruction: String,
    /// tests/test.sh; cut off if it is very long.
    pub test: Option<String>,
    /// The files that define its tests, with their hashes: task.toml, and all below directories of tests. Missing in
    /// older records.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub test_files: BTreeMap<String, String>,
    /// Whether it has a solution for the oracle to run. Missing in older records.
    pub has_solution: Option<bool>,
    /// Where its tests can be seen as they were, if they are in a repository on GitHub.
    pub tests_url: Option<String>,
    /// The limits that its trials were to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<TaskLimits>,
}

/// The limits of a task's trials, as set by the task and the job. Each trial records which of them were enforced.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TaskLimits {
    /// Cores; none means no limit.
    pub cpus: Option<f64>,
    /// Bytes of memory; none means no limit.
    pub memory_bytes: Option<u64>,
    /// Bytes on the disk; none means no limit.
    pub storage_bytes: Option<u64>,
    /// Seconds for building or fetching the image.
    pub build_timeout_sec: f64,
    /// Seconds for installing the agent.
    pub install_timeout_sec: f64,
    /// Seconds for the agent.
    ///
    /// None means no limit.
    pub agent_timeout_sec: Option<f64>,
    /// Seconds for the tests.
    pub verifier_timeout_sec: f64,
}

/// Writes the file, without secrets.
pub fn write<'t>(
    path: &Path,
    tasks: impl IntoIterator<Item = io::Result<Cow<'t, TaskRecord>>>,
    redactor: &Redactor,
) -> Result<(), WriteError> {
    atomic::write(path, |mut file| {
        for task in tasks {
            let clean = redactor.json(serde_json::to_value(&*task?)?);
            serde_json::to_writer(&mut file, &clean)?;
            file.write_all(b"\n")?;
        }
        Ok(())
    })
}

/// How many tasks the file has; 0 if it is not there.
pub fn count(path: &Path) -> usize {
    let mut lines = match Lines::open(path) {
        Ok(lines) => lines,
        Err(_) => return 0,
    };
    let mut count = 0;
    while let Ok(Some(line)) = lines.next_line() {
        count += usize::from(line.bytes.ends_with(b"\n"));
    }
    count
}
