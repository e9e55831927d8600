//! The two sets of field names of records.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{EpisodeRecord, ExperimentRecord};

/// The field names of written records. Both sets can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordDialect {
    /// The names in the eval log specification.
    #[default]
    Document,
    /// The names of its implementation, cube-harness, since May 2026, which can load these records. Its episodes always
    /// have a score, so unscored episodes are not written.
    CubeHarness,
}

/// The module of the record classes in `_type`.
const MODULE: &str = "cube_harness.eval_log";

/// The fields of an experiment with other names.
const EXPERIMENT: [(&str, &str); 2] =
    [("experiment_id", "evaluation_id"), ("timestamp", "evaluation_timestamp")];

/// The fields of an episode and of its usage with other names.
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

/// The field of an episode with the metadata of its investigation.
pub const INVESTIGATION: &str = "investigation_metadata";

/// Converts an experiment to the form of cube-harness.
pub(super) fn experiment(record: &ExperimentRecord) -> Value {
    let mut record = renamed(value(record), &EXPERIMENT);
    record.shift_remove("output_dir");
    let fields = std::mem::take(&mut record).into_iter().map(|(key, value)| match key.as_str() {
        "framework_version" => (
            "eval_library".to_owned(),
            typed(object(json!({ "name": "rollout", "version": value })), "EvalLibrary"),
        ),
        "agent" => (key, typed(object(value), "AgentInfo")),
        "benchmark_subset" => (key, typed(object(value), "BenchmarkSubset")),
        "investigator_llm_config" if value.is_object() => {
            (key, typed(object(value), "InvestigatorLLMConfig"))
        }
        _ => (key, value),
    });
    typed(fields.collect(), "ExperimentRecord")
}

/// Converts an episode to the form of cube-harness. Returns None if it was not scored.
pub(super) fn episode(record: &EpisodeRecord) -> Option<Value> {
    let is_correct = record.success.filter(|_| record.reward.is_some())?;
    let mut fields = renamed(value(record), &EPISODE);
    for (key, class) in [("usage", "UsageSummary"), ("verifier", "Verifier")] {
        if let Some(inner) = fields.get_mut(key).filter(|inner| inner.is_object()) {
            *inner = typed(renamed(inner.take(), &USAGE), class);
        }
    }
    if let Some(findings) = fields.get_mut("findings").filter(|findings| findings.is_object()) {
        *findings = found(object(findings.take()), is_correct);
    }
    if let Some(taken) = fields.shift_remove(INVESTIGATION).filter(Value::is_object) {
        fields.insert(INVESTIGATION.to_owned(), investigated(object(taken), record.timestamp));
    }
    Some(typed(fields, "EpisodeRecord"))
}

/// Adds the fields of findings that cube-harness requires. Missing fields get a confidence of 0.
fn found(mut said: Map<String, Value>, is_correct: bool) -> Value {
    let old = ["failure_root_cause", "difficulty", "feasible"].map(|key| said.shift_remove(key));
    let cause = match &old[0] {
        Some(Value::String(cause)) => cause.as_str(),
        _ => "",
    };
    let evidence = said.shift_remove("evidence").unwrap_or_else(|| json!([]));
    let evidence = evidence.as_array().into_iter().flatten().cloned();
    let mut take = |key: &str, otherwise: Value| {
        said.shift_remove(key).filter(|value| !value.is_null()).unwrap_or(otherwise)
    };
    let mut fields = Map::new();
    for (key, value) in [
        ("analysis", take("analysis", cause.into())),
        ("evidence", evidence.map(|item| typed(object(item), "EvidenceItem")).collect()),
        ("summary", take("summary", cause.into())),
        ("outcome", take("outcome", if is_correct { "success" } else { "failure" }.into())),
        ("primary_blame", take("primary_blame", "none".into())),
        ("primary_blame_confidence", take("primary_blame_confidence", 0.into())),
        ("other_blames", take("other_blames", json!([]))),
        ("hypothesis", take("hypothesis", "".into())),
        ("hypothesis_confidence", take("hypothesis_confidence", 0.into())),
    ] {
        fields.insert(key.to_owned(), value);
    }
    fields.extend(said);
    typed(fields, "Findings")
}

fn investigated(taken: Map<String, Value>, timestamp: f64) -> Value {
    let mut fields = object(json!({
        "model": "unknown", "prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0, "duration_s": 0.0,
        "timestamp": timestamp, "findings_schema_version": "v1",
    }));
    fields.extend(taken.into_iter().filter(|(_, value)| !value.is_null()));
    typed(fields, "InvestigationMetadata")
}

fn value(record: &impl Serialize) -> Value {
    serde_json::to_value(record).expect("a record is data with text for keys")
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Adds the class to an object.
fn typed(mut fields: Map<String, Value>, class: &str) -> Value {
    fields.insert("_type".to_owned(), format!("{MODULE}.{class}").into());
    fields.into()
}

/// Renames the fields of an object, in the same order.
fn renamed(record: Value, names: &[(&str, &str)]) -> Map<String, Value> {
    let name = |key: String| match names.iter().find(|(old, _)| *old == key) {
        Some((_, new)) => (*new).to_owned(),
        None => key,
    };
    object(record).into_iter().map(|(key, value)| (name(key), value)).collect()
}
