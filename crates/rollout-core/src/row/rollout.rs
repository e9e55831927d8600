//! The record of a rollout: a row of `outputs.jsonl`.

use std::sync::Arc;

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _, ser::SerializeMap as _};
use serde_json::{Map, Value};

use crate::message::{Messages, ToolDef};

/// The reserved keys of a row.
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
/// When serialized, every metric and every state column is also a top-level key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RolloutOutput {
    /// The number of the example.
    pub example_id: u64,
    /// The rollout of the example, counted from 1. Rows of other programs have none.
    pub attempt: Option<u32>,
    /// The kind of task.
    pub task: String,
    /// The first messages.
    pub prompt: Option<Messages>,
    /// The following messages.
    pub completion: Option<Messages>,
    /// The expected answer, if there is one.
    pub answer: Option<String>,
    /// Other data of the example; absent if empty.
    pub info: Option<Map<String, Value>>,
    /// The reward; 0 if there is none.
    pub reward: f64,
    /// Whether the rollout was not scored, so that the reward has no meaning: a benchmark question that failed, or one
    /// without an expected answer. Not in rows of `outputs.jsonl`.
    pub is_unscored: bool,
    /// The error.
    pub error: Option<OutputError>,
    /// The durations.
    pub timing: Timing,
    /// Whether a stop condition was met.
    pub is_completed: bool,
    /// Whether a response was truncated, or the conversation became too long.
    pub is_truncated: bool,
    /// The stop condition that was met.
    pub stop_condition: Option<String>,
    /// The results of the functions of the rubric.
    pub metrics: IndexMap<String, f64>,
    /// The tools that were available to the model.
    pub tool_defs: Arc<[ToolDef]>,
    /// The token usage, if a response reported it.
    pub token_usage: Option<OutputUsage>,
    /// The requested fields of the state, and additional fields of other programs' rows.
    pub columns: Map<String, Value>,
    /// Unknown keys inside `error`, `timing` and `token_usage`, by the field. Only rows of other programs have them.
    pub extras: IndexMap<String, Map<String, Value>>,
}

/// The token usage of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputUsage {
    /// Input tokens.
    pub input_tokens: f64,
    /// Output tokens.
    pub output_tokens: f64,
    /// Input tokens that were read from a cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_tokens: f64,
    /// Output tokens that are reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: f64,
    /// Cost in US dollars, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Tokens in the context after the last response that the model did not write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_input_tokens: Option<f64>,
    /// Tokens in the context after the last response that the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_output_tokens: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// The durations of a rollout in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Timing {
    /// Start time in seconds since 1970.
    pub start_time: f64,
    /// Duration of the conversation.
    pub generation_ms: f64,
    /// Duration of scoring.
    pub scoring_ms: f64,
    /// Total duration.
    pub total_ms: f64,
}

impl Timing {
    /// Creates the timing of a rollout that starts now.
    pub fn start() -> Self {
        let start_time = Timestamp::now().as_microsecond() as f64 / 1e6;
        Self { start_time, generation_ms: 0.0, scoring_ms: 0.0, total_ms: 0.0 }
    }
}

/// The error of a rollout in its row.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct OutputError {
    /// The type of the error, such as `ToolCallError`.
    pub error: String,
    /// The message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The error and its causes with their messages.
    pub error_chain_repr: String,
    /// The names of the error and its causes.
    pub error_chain_str: String,
    /// For a kind that a program defines: whether something around the rollout broke, or the model did what ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_infrastructure: Option<bool>,
}

impl OutputError {
    /// Whether the reward of the rollout says something about the model nevertheless: the error is of a kind that a
    /// program defines as the model's fault.
    pub fn is_counted(&self) -> bool {
        self.is_infrastructure == Some(false)
    }
}

impl<'de> Deserialize<'de> for OutputError {
    /// Reads an object, or a string as some programs write it.
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
                #[serde(default)]
                is_infrastructure: Option<bool>,
            },
        }
        Ok(match Wire::deserialize(deserializer)? {
            Wire::Text(text) => Self {
                error_chain_repr: text.clone(),
                error_chain_str: text.clone(),
                error: text,
                ..Self::default()
            },
            Wire::Object { error, message, error_chain_repr, error_chain_str, is_infrastructure } => {
                Self { error, message, error_chain_repr, error_chain_str, is_infrastructure }
            }
        })
    }
}

impl RolloutOutput {
    /// Returns a field with its unknown keys.
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
        // A duplicate key would make the row ambiguous.
        let free = |key: &&String| !KEYS.contains(&key.as_str()) && !self.columns.contains_key(*key);
        for (name, value) in self.metrics.iter().filter(|(name, _)| free(name)) {
            map.serialize_entry(name, value)?;
        }
        for (name, value) in &self.columns {
            if KEYS.contains(&name.as_str()) {
                return Err(S::Error::custom(format!(
                    "the column name {name:?} is already used by another field"
                )));
            }
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
