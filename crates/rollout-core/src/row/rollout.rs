//! What is kept of a rollout: one row of `outputs.jsonl`.

use std::sync::Arc;

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _, ser::SerializeMap as _};
use serde_json::{Map, Value};

use crate::message::{Messages, ToolDef};

/// The keys of a row that are not the user's to choose.
pub const KEYS: [&str; 19] = [
    "example_id",
    "attempt",
    "task",
    "prompt",
    "completion",
    "answer",
    "info",
    "reward",
    "error",
    "timing",
    "is_completed",
    "is_truncated",
    "stop_condition",
    "metrics",
    "tool_defs",
    "token_usage",
    "error_chain",
    "long_error_chain",
    "env_id",
];

/// One finished rollout as data.
///
/// Serialised, every metric stands at the top level too, and so does every state column.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RolloutOutput {
    /// Which example it was.
    pub example_id: u64,
    /// The how-manyth rollout of the example, from 1. Rows of other programs have none.
    pub attempt: Option<u32>,
    /// What kind of task it was.
    pub task: String,
    /// The first messages.
    pub prompt: Option<Messages>,
    /// What was said after them.
    pub completion: Option<Messages>,
    /// The right answer, where there is one.
    pub answer: Option<String>,
    /// What else is known of the example; absent when empty.
    pub info: Option<Map<String, Value>>,
    /// The score; 0 if it has none.
    pub reward: f64,
    /// Whether nobody scored it, so that the reward says nothing: a question of a benchmark that failed, or one without
    /// an answer. Not in rows of `outputs.jsonl`.
    pub is_unscored: bool,
    /// What went wrong.
    pub error: Option<OutputError>,
    /// How long it took.
    pub timing: Timing,
    /// Whether a stop condition was met.
    pub is_completed: bool,
    /// Whether the model was cut off, or the conversation became too long.
    pub is_truncated: bool,
    /// The stop condition that was met.
    pub stop_condition: Option<String>,
    /// What each function of the rubric gave.
    pub metrics: IndexMap<String, f64>,
    /// The tools that the model was told of.
    pub tool_defs: Arc<[ToolDef]>,
    /// What it used, if any response told.
    pub token_usage: Option<OutputUsage>,
    /// The fields of the state that were asked for, and what rows of other programs have beside.
    pub columns: Map<String, Value>,
    /// Keys inside `error`, `timing` and `token_usage` that only rows of other programs have, by the field.
    pub extras: IndexMap<String, Map<String, Value>>,
}

/// What a rollout used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputUsage {
    /// Tokens that the model read.
    pub input_tokens: f64,
    /// Tokens that the model wrote.
    pub output_tokens: f64,
    /// Of the tokens read, those that came from a cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_tokens: f64,
    /// Of the tokens written, the reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: f64,
    /// US dollars, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Of the tokens in the context after the last response, those that the model did not write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_input_tokens: Option<f64>,
    /// Of the tokens in the context after the last response, those that the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_output_tokens: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// How long a rollout took, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Timing {
    /// When it started, in seconds since 1970.
    pub start_time: f64,
    /// From the start to the stop.
    pub generation_ms: f64,
    /// The rubric.
    pub scoring_ms: f64,
    /// Both.
    pub total_ms: f64,
}

impl Timing {
    /// A rollout that starts now.
    pub fn start() -> Self {
        let start_time = Timestamp::now().as_microsecond() as f64 / 1e6;
        Self { start_time, generation_ms: 0.0, scoring_ms: 0.0, total_ms: 0.0 }
    }
}

/// What went wrong in a rollout, as its row has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct OutputError {
    /// The name of the kind, such as `ToolCallError`.
    pub error: String,
    /// What happened.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The error and its causes with what they say.
    pub error_chain_repr: String,
    /// The names of the error and its causes.
    pub error_chain_str: String,
}

impl<'de> Deserialize<'de> for OutputError {
    /// Reads an object, or a mere text as some programs write it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Wire {
            Text(String),
            Object {
                #[serde(default)]
                error: String,
                #[serde(default)]
                message: String,
                #[serde(default)]
                error_chain_repr: String,
                #[serde(default)]
                error_chain_str: String,
            },
        }
        Ok(match Wire::deserialize(deserializer)? {
            Wire::Text(text) => Self {
                error_chain_repr: text.clone(),
                error_chain_str: text.clone(),
                error: text,
                message: String::new(),
            },
            Wire::Object { error, message, error_chain_repr, error_chain_str } => {
                Self { error, message, error_chain_repr, error_chain_str }
            }
        })
    }
}

impl RolloutOutput {
    /// A field with the keys that only another program gives it.
    fn whole<'a, T>(&'a self, field: &str, own: &'a T) -> Whole<'a, T> {
        Whole { own, extras: self.extras.get(field) }
    }
}

#[derive(Serialize)]
struct Whole<'a, T> {
    #[serde(flatten)]
    own: &'a T,
    #[serde(flatten)]
    extras: Option<&'a Map<String, Value>>,
}

impl Serialize for RolloutOutput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("example_id", &self.example_id)?;
        if let Some(attempt) = self.attempt {
            map.serialize_entry("attempt", &attempt)?;
        }
        map.serialize_entry("task", &self.task)?;
        map.serialize_entry("prompt", &self.prompt)?;
        map.serialize_entry("completion", &self.completion)?;
        if let Some(answer) = &self.answer {
            map.serialize_entry("answer", answer)?;
        }
        if let Some(info) = &self.info {
            map.serialize_entry("info", info)?;
        }
        map.serialize_entry("reward", &self.reward)?;
        let error = self.error.as_ref().map(|error| self.whole("error", error));
        map.serialize_entry("error", &error)?;
        map.serialize_entry("timing", &self.whole("timing", &self.timing))?;
        map.serialize_entry("is_completed", &self.is_completed)?;
        map.serialize_entry("is_truncated", &self.is_truncated)?;
        map.serialize_entry("stop_condition", &self.stop_condition)?;
        map.serialize_entry("metrics", &self.metrics)?;
        map.serialize_entry("tool_defs", &self.tool_defs)?;
        if let Some(usage) = &self.token_usage {
            map.serialize_entry("token_usage", &self.whole("token_usage", usage))?;
        }
        if let Some(error) = &self.error {
            map.serialize_entry("error_chain", &error.error_chain_repr)?;
            map.serialize_entry("long_error_chain", &error.error_chain_str)?;
        }
        // A key that is there twice would make the row ambiguous.
        let free = |key: &&String| !KEYS.contains(&key.as_str()) && !self.columns.contains_key(*key);
        for (name, value) in self.metrics.iter().filter(|(name, _)| free(name)) {
            map.serialize_entry(name, value)?;
        }
        for (name, value) in &self.columns {
            if KEYS.contains(&name.as_str()) {
                return Err(S::Error::custom(format!("the column {name:?} has the name of another field")));
            }
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
