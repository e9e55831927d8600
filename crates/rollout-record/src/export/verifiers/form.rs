//! A row in the form that verifiers 0.1.14 writes.
//!
//! It differs from our rows in these points: tool calls in a conversation are JSON texts, times are spans of seconds,
//! missing values are omitted from messages, and the tokens of a response have masks. `attempt`, `task` and `message`
//! are additional fields, which verifiers keeps.

use rollout_core::{
    python_json::{PythonJson, Spacing},
    row::{RolloutOutput, Timing},
};
use serde_json::{Map, Value, json};

/// Stop reasons that verifiers knows. Others become null.
const FINISH_REASONS: [&str; 3] = ["stop", "length", "tool_calls"];

/// The format of Python's `json.dumps` without options.
const DUMPS: PythonJson = PythonJson { sort_keys: false, ensure_ascii: true, spacing: Spacing::Spaces };

/// Converts a row.
pub(super) fn original(row: &RolloutOutput) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(row)?;
    value["timing"] = timing(row);
    for key in ["prompt", "completion"] {
        for message in list(&mut value, key) {
            text_calls(message);
            plain_message(message);
        }
    }
    list(&mut value, "trajectory").for_each(step);
    Ok(value)
}

fn list<'a>(value: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Converts times to spans of seconds. Spans measured by verifiers are unchanged. Our own rows contain only durations,
/// so the phases are placed one after the other.
fn timing(row: &RolloutOutput) -> Value {
    let Timing { start_time, generation_ms, scoring_ms, total_ms } = row.timing;
    let span =
        |start: f64, seconds: f64| json!({"start": start, "end": start + seconds, "duration": seconds});
    let (generation, scoring, total) = (generation_ms / 1e3, scoring_ms / 1e3, total_ms / 1e3);
    let mut timing = json!({
        "start_time": start_time,
        "setup": span(0.0, 0.0),
        "generation": span(start_time, generation),
        "scoring": span(start_time + total - scoring, scoring),
        "model": {"spans": [], "duration": 0.0},
        "env": {"spans": [], "duration": 0.0},
        "total": total,
        "overhead": total - scoring,
    });
    if let (Some(measured), Value::Object(timing)) = (row.extras.get("timing"), &mut timing) {
        timing.extend(measured.clone());
    }
    timing
}

/// Converts the tool calls and the content of a message to text.
fn text_calls(message: &mut Value) {
    let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else { return };
    for call in calls {
        *call = Value::String(DUMPS.text(call));
    }
    if let Some(content @ Value::Null) = message.get_mut("content") {
        *content = Value::String(String::new());
    }
}

/// Removes missing fields of a message. Only a model's message may have no content.
fn plain_message(message: &mut Value) {
    let Value::Object(message) = message else { return };
    let by_model = message.get("role").is_some_and(|role| role == "assistant");
    if !by_model && let Some(content @ Value::Null) = message.get_mut("content") {
        *content = Value::String(String::new());
    }
    message.retain(|_, value| !value.is_null());
}

/// Converts a turn.
fn step(step: &mut Value) {
    for key in ["prompt", "completion"] {
        list(step, key).for_each(plain_message);
    }
    let Some(response) = step.get_mut("response").and_then(Value::as_object_mut) else { return };
    response.retain(|_, value| !value.is_null());
    let Some(message) = response.get_mut("message") else { return };
    if let Some(tokens) = message.get_mut("tokens").and_then(Value::as_object_mut) {
        masks(tokens);
    }
    plain_message(message);
    // These two fields have no default in verifiers.
    if let Value::Object(message) = message {
        let reason = message.entry("finish_reason").or_insert(Value::Null);
        if !FINISH_REASONS.iter().any(|known| *reason == *known) {
            *reason = Value::Null;
        }
        message.entry("is_truncated").or_insert(Value::Null);
    }
}

/// Adds the masks: tokens of the model count in the loss, tokens of the prompt do not.
fn masks(tokens: &mut Map<String, Value>) {
    tokens.retain(|_, value| !value.is_null());
    for (ids, mask, bit) in [("prompt_ids", "prompt_mask", 0), ("completion_ids", "completion_mask", 1)] {
        if !tokens.contains_key(mask) {
            let length = tokens.get(ids).and_then(Value::as_array).map_or(0, Vec::len);
            tokens.insert(mask.to_owned(), vec![bit; length].into());
        }
    }
}
