//! The two sets of names that records are written with.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Whose names the fields of records have. All are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordDialect {
    /// Those of the document that describes the records.
    #[default]
    Document,
    /// Those that the document's implementation has moved to, closer to the schemas of Every Eval Ever.
    EeeAligned,
}

/// Fields of an experiment, then of those in it, with their newer names.
const EXPERIMENT: [(&str, &str); 3] = [
    ("experiment_id", "evaluation_id"),
    ("timestamp", "evaluation_timestamp"),
    ("investigator_llm_config", "judge_config"),
];
const INVESTIGATOR: [(&str, &str); 1] = [("investigated_at", "judged_at")];

/// Fields of an episode, then of those in it, with their newer names.
const EPISODE: [(&str, &str); 7] = [
    ("experiment_id", "evaluation_id"),
    ("task_id", "sample_id"),
    ("task_version_hash", "sample_hash"),
    ("success", "is_correct"),
    ("reward", "score"),
    ("error_type", "error"),
    ("n_steps", "num_turns"),
];
const USAGE: [(&str, &str); 4] = [
    ("prompt_tokens", "input_tokens"),
    ("completion_tokens", "output_tokens"),
    ("cached_tokens", "input_tokens_cache_read"),
    ("cache_creation_tokens", "input_tokens_cache_write"),
];

/// An experiment with the newer names.
pub(super) fn experiment(record: &impl Serialize) -> Value {
    let mut record = renamed(value(record), &EXPERIMENT);
    if let Some(fields) = record.as_object_mut() {
        let library = |version| ("eval_library".to_owned(), json!({ "name": "rollout", "version": version }));
        *fields = std::mem::take(fields)
            .into_iter()
            .map(|(key, value)| if key == "framework_version" { library(value) } else { (key, value) })
            .collect();
    }
    change(&mut record, "judge_config", &INVESTIGATOR);
    record
}

/// An episode with the newer names.
pub(super) fn episode(record: &impl Serialize) -> Value {
    let mut record = renamed(value(record), &EPISODE);
    change(&mut record, "usage", &USAGE);
    record
}

fn value(record: &impl Serialize) -> Value {
    serde_json::to_value(record).expect("a record is data with text for keys")
}

fn change(record: &mut Value, key: &str, names: &[(&str, &str)]) {
    if let Some(inner) = record.get_mut(key) {
        *inner = renamed(inner.take(), names);
    }
}

/// An object with other names, in the same order.
fn renamed(record: Value, names: &[(&str, &str)]) -> Value {
    let Value::Object(fields) = record else { return record };
    let name = |key: String| match names.iter().find(|(old, _)| *old == key) {
        Some((_, new)) => (*new).to_owned(),
        None => key,
    };
    Value::Object(fields.into_iter().map(|(key, value)| (name(key), value)).collect::<Map<_, _>>())
}
