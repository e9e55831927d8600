//! Reads rows of this and other programs without loss.
//!
//! An unreadable field is an error that names it. In rows of this program, the rollouts of an example are numbered. For
//! other rows, every value must be present in the parsed row.

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::{Map, Value};

use super::{
    question::TaskResult,
    rollout::{KEYS, OutputError, OutputUsage, RolloutOutput, Timing},
};
use crate::message::{Message, Messages, Role, ToolDef};

/// Fields that are computed from others when a row is written.
const DERIVED: [&str; 2] = ["error_chain", "long_error_chain"];

impl<'de> Deserialize<'de> for RolloutOutput {
    /// Reads a row of this or a similar program, or a line of a benchmark's `results.jsonl`. Only `example_id` is
    /// required.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let row = Map::deserialize(deserializer)?;
        if TaskResult::is_in(&row) {
            let result = TaskResult::deserialize(Value::Object(row)).map_err(D::Error::custom)?;
            return Self::try_from(result).map_err(D::Error::custom);
        }
        let is_own = row.get("attempt").is_some_and(Value::is_u64);
        let before = (!is_own).then(|| row.clone());
        let output = read(row).map_err(D::Error::custom)?;
        if let Some(path) = before.and_then(|before| lost(before, &output)) {
            return Err(D::Error::custom(format!("`{path}` cannot be read without loss")));
        }
        Ok(output)
    }
}

/// A field with an invalid form.
#[derive(Debug, thiserror::Error)]
enum FieldError {
    #[error("the row has no valid `example_id`: expected an integer")]
    NoExample,
    #[error("`{field}`: {source}")]
    Form { field: String, source: serde_json::Error },
    #[error("`{0}` is not an object")]
    NoObject(String),
}

fn read(mut row: Map<String, Value>) -> Result<RolloutOutput, FieldError> {
    let mut extras = IndexMap::new();
    let mut take = |key: &str| row.remove(key).filter(|value| !value.is_null());
    let example_id = take("example_id").and_then(|id| id.as_u64()).ok_or(FieldError::NoExample)?;
    let info = match take("info") {
        // Datasets contain it as a string.
        Some(Value::String(text)) => {
            Some(serde_json::from_str(&text).map_err(|source| form("info", source))?)
        }
        info => info,
    };
    let mut output = RolloutOutput {
        example_id,
        attempt: field("attempt", take("attempt"))?,
        task: field("task", take("task"))?,
        prompt: messages("prompt", take("prompt"))?,
        completion: messages("completion", take("completion"))?,
        answer: field("answer", take("answer"))?,
        info: field("info", info)?,
        reward: field("reward", take("reward"))?,
        is_unscored: false,
        error: error(take("error"), &mut extras)?,
        timing: timing(take("timing"), &mut extras)?,
        is_completed: field("is_completed", take("is_completed"))?,
        is_truncated: field("is_truncated", take("is_truncated"))?,
        stop_condition: field("stop_condition", take("stop_condition"))?,
        metrics: field("metrics", take("metrics"))?,
        tool_defs: field::<Vec<ToolDef>>("tool_defs", take("tool_defs"))?.into(),
        token_usage: usage(take("token_usage"), &mut extras)?,
        columns: Map::new(),
        extras,
    };
    row.retain(|key, value| {
        let repeated = output.metrics.get(key).is_some_and(|metric| value.as_f64() == Some(*metric));
        !repeated && !KEYS.contains(&key.as_str())
    });
    output.columns = row;
    Ok(output)
}

fn form(field: impl Into<String>, source: serde_json::Error) -> FieldError {
    FieldError::Form { field: field.into(), source }
}

fn field<T: DeserializeOwned + Default>(name: &str, value: Option<Value>) -> Result<T, FieldError> {
    let read = value.map(serde_json::from_value).transpose();
    Ok(read.map_err(|source| form(name, source))?.unwrap_or_default())
}

fn messages(name: &str, value: Option<Value>) -> Result<Option<Messages>, FieldError> {
    match value {
        Some(Value::String(text)) => Ok(Some(vec![Arc::new(Message::new(Role::Text, text))])),
        Some(Value::Array(messages)) => {
            let read = messages.into_iter().enumerate().map(|(at, message)| {
                serde_json::from_value(message).map_err(|source| form(format!("{name}[{at}]"), source))
            });
            read.collect::<Result<_, _>>().map(Some)
        }
        value => field(name, value),
    }
}

/// The keys of an object. Keys that are not known are moved to `extras`.
struct Keys<'a> {
    field: &'static str,
    keys: Map<String, Value>,
    extras: &'a mut IndexMap<String, Map<String, Value>>,
}

impl<'a> Keys<'a> {
    fn of(
        field: &'static str,
        value: Value,
        extras: &'a mut IndexMap<String, Map<String, Value>>,
    ) -> Result<Self, FieldError> {
        match value {
            Value::Object(keys) => Ok(Self { field, keys, extras }),
            _ => Err(FieldError::NoObject(field.to_owned())),
        }
    }

    fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>, FieldError> {
        let value = self.keys.remove(key).filter(|value| !value.is_null());
        value
            .map(serde_json::from_value)
            .transpose()
            .map_err(|source| form(format!("{}.{key}", self.field), source))
    }

    /// Returns a nested number without removing it.
    fn within(&self, path: &[&str]) -> Option<f64> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.keys.get(*first)?, |value, key| value.get(key))?.as_f64()
    }

    fn done(self) {
        if !self.keys.is_empty() {
            self.extras.insert(self.field.to_owned(), self.keys);
        }
    }
}

type Extras = IndexMap<String, Map<String, Value>>;

fn error(value: Option<Value>, extras: &mut Extras) -> Result<Option<OutputError>, FieldError> {
    let keys = match value {
        None => return Ok(None),
        // Some programs write a string.
        Some(Value::String(text)) => return field("error", Some(Value::String(text))),
        Some(value) => Keys::of("error", value, extras)?,
    };
    let mut keys = keys;
    let error = OutputError {
        error: keys.take("error")?.unwrap_or_default(),
        message: keys.take("message")?.unwrap_or_default(),
        error_chain_repr: keys.take("error_chain_repr")?.unwrap_or_default(),
        error_chain_str: keys.take("error_chain_str")?.unwrap_or_default(),
        is_infrastructure: keys.take("is_infrastructure")?,
    };
    keys.done();
    Ok(Some(error))
}

/// Rows of verifiers contain spans of seconds from 0.1.14 on. Earlier rows contain milliseconds, as ours do.
fn timing(value: Option<Value>, extras: &mut Extras) -> Result<Timing, FieldError> {
    let Some(value) = value else { return Ok(Timing::default()) };
    let mut keys = Keys::of("timing", value, extras)?;
    let millis = |keys: &mut Keys<'_>, key: &str, span: &[&str]| {
        let read: Option<f64> = keys.take(key)?;
        Ok(read.or_else(|| Some(keys.within(span)? * 1e3)).unwrap_or_default())
    };
    let timing = Timing {
        start_time: keys.take("start_time")?.unwrap_or_default(),
        generation_ms: millis(&mut keys, "generation_ms", &["generation", "duration"])?,
        scoring_ms: millis(&mut keys, "scoring_ms", &["scoring", "duration"])?,
        total_ms: millis(&mut keys, "total_ms", &["total"])?,
    };
    keys.done();
    Ok(timing)
}

fn usage(value: Option<Value>, extras: &mut Extras) -> Result<Option<OutputUsage>, FieldError> {
    let Some(value) = value else { return Ok(None) };
    let mut keys = Keys::of("token_usage", value, extras)?;
    let usage = OutputUsage {
        input_tokens: keys.take("input_tokens")?.unwrap_or_default(),
        output_tokens: keys.take("output_tokens")?.unwrap_or_default(),
        cached_tokens: keys.take("cached_tokens")?.unwrap_or_default(),
        reasoning_tokens: keys.take("reasoning_tokens")?.unwrap_or_default(),
        cost: keys.take("cost")?,
        final_input_tokens: keys.take("final_input_tokens")?,
        final_output_tokens: keys.take("final_output_tokens")?,
    };
    keys.done();
    Ok(Some(usage))
}

/// Returns the path of the first value of a row that is missing in the parsed row.
fn lost(mut before: Map<String, Value>, output: &RolloutOutput) -> Option<String> {
    before.retain(|key, value| match (key.as_str(), value) {
        (key, _) if DERIVED.contains(&key) => false,
        // These are other forms of values that are kept as an object or a list.
        ("error" | "prompt" | "completion" | "info", Value::String(_)) => false,
        ("prompt" | "completion", Value::Array(messages)) => {
            messages.iter_mut().for_each(flatten_calls);
            true
        }
        _ => true,
    });
    let after = serde_json::to_value(output).unwrap_or_default();
    missing(&Value::Object(before), &after)
}

/// Converts the tool calls of a message to the form of records.
fn flatten_calls(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(object) = call.as_str().and_then(|text| serde_json::from_str(text).ok()) {
            *call = object;
        }
        let Some(object) = call.as_object_mut() else { continue };
        if let Some(Value::Object(function)) = object.remove("function") {
            object.extend(function);
        }
        object.retain(|key, _| !["type", "index"].contains(&key.as_str()));
        if let Some(arguments) = object.get_mut("arguments").filter(|arguments| !arguments.is_string()) {
            *arguments = Value::String(arguments.to_string());
        }
    }
}

/// Returns the path of the first value that is missing in the other value. A null needs no counterpart.
fn missing(before: &Value, after: &Value) -> Option<String> {
    let below = |key: String, path: String| match path.as_str() {
        "" => key,
        path if path.starts_with('[') => format!("{key}{path}"),
        path => format!("{key}.{path}"),
    };
    match (before, after) {
        (Value::Null, _) => None,
        (Value::Object(before), Value::Object(after)) => before.iter().find_map(|(key, value)| {
            missing(value, after.get(key).unwrap_or(&Value::Null)).map(|path| below(key.clone(), path))
        }),
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            let mut pairs = before.iter().zip(after).enumerate();
            pairs.find_map(|(at, (before, after))| {
                missing(before, after).map(|path| below(format!("[{at}]"), path))
            })
        }
        (Value::Number(before), Value::Number(after)) if before.as_f64() == after.as_f64() => None,
        // Empty values are omitted in rows.
        (Value::Object(before), Value::Null) if before.is_empty() => None,
        (Value::Array(before), Value::Null) if before.is_empty() => None,
        (Value::String(before), Value::Null) if before.is_empty() => None,
        _ if before == after => None,
        _ => Some(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(row: Value) -> Result<RolloutOutput, String> {
        serde_json::from_value(row).map_err(|error| error.to_string())
    }

    /// A row in the form of verifiers, with keys that only a later version may have.
    fn foreign() -> Value {
        json!({
            "example_id": 7,
            "prompt": [{"role": "user", "content": "1+2?"}],
            "completion": [
                {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                    "{\"id\": \"c1\", \"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}",
                    "{\"id\": \"c2\", \"name\": \"add\", \"arguments\": \"{oops\", \"signature\": \"s\"}"]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
                {"role": "assistant", "thinking_blocks": [{"type": "thinking"}], "content": [{"type": "text", "text": "3"}]}],
            "answer": "3",
            "info": {"level": 2},
            "reward": 1,
            "error": {"error": "ToolError", "error_chain_repr": "ToolError('x')", "error_chain_str": "ToolError", "at": 5},
            "timing": {
                "start_time": 5.0,
                "setup": {"start": 5.0, "end": 5.5, "duration": 0.5},
                "generation": {"start": 5.0, "end": 7.0, "duration": 2.0},
                "scoring": {"start": 8.0, "end": 8.5, "duration": 0.5},
                "model": {"spans": [{"start": 5.0, "end": 6.0, "duration": 1.0}], "duration": 1.0},
                "env": {"spans": [], "duration": 0.0},
                "total": 3.5, "overhead": 1.5},
            "is_completed": true, "is_truncated": false, "stop_condition": "has_error",
            "metrics": {"exact": 1.0, "turns": 2},
            "tool_defs": [{"name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": null}],
            "token_usage": {"input_tokens": 9.0, "output_tokens": 4.0, "final_output_tokens": 4, "final_input_tokens": 3, "audio": 1},
            "error_chain": "ToolError('x')", "long_error_chain": "ToolError",
            "exact": 1.0, "turns": 2,
            "trajectory": [{"tokens": null}], "advantage": 0.25
        })
    }

    #[test]
    fn a_row_of_verifiers_is_read_whole_and_written_with_all_it_had() {
        let row = read(foreign()).unwrap();
        let completion = row.completion.as_ref().unwrap();
        assert_eq!(completion[0].tool_calls[0].name, "add");
        assert_eq!(completion[0].tool_calls[1].arguments, "{oops");
        assert_eq!(completion[0].tool_calls[1].extra["signature"], "s");
        let Timing { start_time, generation_ms, scoring_ms, total_ms } = row.timing;
        assert_eq!([start_time, generation_ms, scoring_ms, total_ms], [5.0, 2e3, 500.0, 3500.0]);
        let usage = row.token_usage.unwrap();
        assert_eq!((usage.final_input_tokens, usage.final_output_tokens), (Some(3.0), Some(4.0)));
        let written = serde_json::to_value(&row).unwrap();
        for (path, expected) in [
            ("/error/at", json!(5)),
            ("/error_chain", json!("ToolError('x')")),
            ("/long_error_chain", json!("ToolError")),
            ("/timing/model/spans/0/end", json!(6.0)),
            ("/timing/generation_ms", json!(2e3)),
            ("/token_usage/audio", json!(1)),
            ("/trajectory/0/tokens", json!(null)),
            ("/info/level", json!(2)),
        ] {
            assert_eq!(written.pointer(path), Some(&expected), "{path}");
        }
        assert_eq!(read(written).unwrap(), row);
    }

    #[test]
    fn a_field_that_cannot_be_kept_is_named() {
        let with = |path: &str, value: Value| {
            let mut row = foreign();
            *row.pointer_mut(path).unwrap() = value;
            read(row).unwrap_err()
        };
        let errors = [
            with("/example_id", json!("seven")),
            with("/completion/0/tool_calls/1", json!("oops")),
            with("/completion/0", json!({"content": "x"})),
            with("/completion/0/reasoning_content", json!({"deep": true})),
            with("/completion", json!({"a": 1})),
            with("/reward", json!("high")),
            with("/answer", json!(3)),
            with("/metrics", json!({"exact": "1"})),
            with("/timing", json!(3)),
            with("/timing/start_time", json!("noon")),
            with("/token_usage/input_tokens", json!("9")),
            with(
                "/tool_defs/0",
                json!({"name": "add", "description": "", "parameters": {}, "examples": [1]}),
            ),
            with("/error", json!(["x"])),
        ];
        insta::assert_snapshot!(errors.join("\n"), @r#"
        the row has no valid `example_id`: expected an integer
        `completion[0]`: a tool call that is a string must contain a JSON object: expected value at line 1 column 1
        `completion[0]`: a message needs a `role`
        `completion[0].reasoning_content` cannot be read without loss
        `completion`: invalid type: map, expected a sequence
        `reward`: invalid type: string "high", expected f64
        `answer`: invalid type: integer `3`, expected a string
        `metrics`: invalid type: string "1", expected f64
        `timing` is not an object
        `timing.start_time`: invalid type: string "noon", expected f64
        `token_usage.input_tokens`: invalid type: string "9", expected f64
        `tool_defs[0].examples` cannot be read without loss
        `error` is not an object
        "#);
    }

    #[test]
    fn texts_stand_for_messages_errors_and_the_example() {
        let row =
            read(json!({"example_id": 0, "prompt": "say", "error": "no", "info": "{\"a\": 1}"})).unwrap();
        assert_eq!(row.prompt.unwrap()[0].role, Role::Text);
        assert_eq!((row.error.unwrap().error.as_str(), &row.info.unwrap()["a"]), ("no", &json!(1)));
        assert!(read(json!({"example_id": 0, "info": "{"})).unwrap_err().starts_with("`info`: "));
    }

    #[test]
    fn milliseconds_of_earlier_versions_are_read() {
        let row = read(json!({"example_id": 0, "timing": {"generation_ms": 5, "total_ms": 7.5}})).unwrap();
        assert_eq!((row.timing.generation_ms, row.timing.total_ms), (5.0, 7.5));
        assert!(row.extras.is_empty());
    }
}
