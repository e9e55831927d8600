//! The result of a question: a line of `results.jsonl`.

use std::sync::Arc;

use indexmap::IndexMap;
use jiff::{Timestamp, civil, tz::TimeZone};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap as _};
use serde_json::{Map, Value, json};

use super::rollout::{OutputError, OutputUsage, RolloutOutput, Timing};
use crate::message::{Message, Messages, Role};

/// The column with the answer to a question.
pub const PREDICTED_ANSWER: &str = "predicted_answer";
/// The column with the number of responses of the model.
pub const TOTAL_TURNS: &str = "total_turns";
/// The column with the names of the available tools.
pub const TOOL_NAMES: &str = "tool_names";

/// Which parts of an answered question are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The answer and the conversation.
    Everything,
    /// The answer.
    Answers,
    /// The conversation.
    Trajectories,
}

/// The result of one question.
///
/// It is serialized as a line of `results.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct TaskResult {
    /// The id of the question.
    pub task_id: String,
    /// The question.
    pub question: String,
    /// The answer that was extracted from the last message of the model; empty if the question failed.
    pub predicted_answer: String,
    /// Whether the model answered, correctly or not.
    pub success: bool,
    /// The expected answer, if there is one.
    pub ground_truth: Option<String>,
    /// The score; None if the answer was not scored.
    pub score: Option<f64>,
    /// The metric of the score.
    pub metric: Option<String>,
    /// Details of the metric.
    pub details: Option<Value>,
    /// Other fields of the question.
    pub metadata: Map<String, Value>,
    /// The error, if the question failed.
    pub error: Option<String>,
    /// The names of the error and its causes.
    pub error_chain: Option<String>,
    /// The conversation, if it was saved.
    pub trajectory: Option<Trajectory>,
    /// The number of responses of the model. If the conversation is saved, a line contains it there.
    pub total_turns: Option<u64>,
    /// The tools that were available to the model, by the names in its prompt.
    pub tool_names: Vec<String>,
    /// The number of the question. Lines of other programs have none.
    pub example_id: Option<u64>,
    /// The attempt, counted from 1.
    pub attempt: Option<u32>,
    /// Its duration.
    pub timing: Timing,
    /// The token usage of the model, if its server reported it.
    pub token_usage: Option<OutputUsage>,
    /// The stop condition of the conversation.
    pub stop_condition: Option<String>,
}

/// The conversation about one question.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Trajectory {
    /// The id of the question.
    pub task_id: String,
    /// The question.
    pub question: String,
    /// All messages, starting with the system prompt. Tool calls are in OpenAI's form.
    #[serde(serialize_with = "in_the_form_of_openai")]
    pub messages: Messages,
    /// The tool calls in order.
    pub tool_calls: Vec<Arc<ToolCallRecord>>,
    /// The answer that was extracted from the last message of the model.
    pub final_answer: String,
    /// The number of responses of the model.
    pub total_turns: u64,
    /// Whether the model answered.
    pub success: bool,
    /// The start time.
    #[serde(deserialize_with = "time")]
    pub start_time: Timestamp,
    /// The end time.
    #[serde(deserialize_with = "time")]
    pub end_time: Timestamp,
    /// The duration.
    pub execution_time_ms: u64,
}

/// One tool call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolCallRecord {
    /// The tool, by its name on the tool server.
    pub tool_name: String,
    /// The parameters from the model, without those of the question.
    pub parameters: Map<String, Value>,
    /// The result.
    pub result: Value,
    /// Whether the call succeeded.
    pub success: bool,
    /// The error.
    pub error: Option<String>,
    /// The duration.
    pub execution_time_ms: u64,
}

impl TaskResult {
    /// Whether a row is a line of this kind.
    pub fn is_in(row: &Map<String, Value>) -> bool {
        let answered =
            row.contains_key("predicted_answer") || row.get("trajectory").is_some_and(Value::is_object);
        answered && row.get("task_id").is_some_and(Value::is_string)
    }

    /// Returns the line for the file.
    pub fn kept(&self, kept: Kept) -> impl Serialize + '_ {
        Line { result: self, kept }
    }
}

impl Serialize for TaskResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Line { result: self, kept: Kept::Everything }.serialize(serializer)
    }
}

struct Line<'a> {
    result: &'a TaskResult,
    kept: Kept,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { result, kept } = self;
        let with_answer = *kept != Kept::Trajectories;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("task_id", &result.task_id)?;
        if with_answer {
            map.serialize_entry("question", &result.question)?;
            map.serialize_entry("predicted_answer", &result.predicted_answer)?;
        }
        map.serialize_entry("success", &result.success)?;
        if with_answer {
            map.serialize_entry("ground_truth", &result.ground_truth)?;
            map.serialize_entry("score", &result.score)?;
            if let Some(metric) = &result.metric {
                map.serialize_entry("metric", metric)?;
            }
            if let Some(details) = &result.details {
                map.serialize_entry("details", details)?;
            }
        }
        if !result.metadata.is_empty() {
            map.serialize_entry("metadata", &result.metadata)?;
        }
        if let Some(error) = &result.error {
            map.serialize_entry("error", error)?;
        }
        if let Some(chain) = &result.error_chain {
            map.serialize_entry("error_chain", chain)?;
        }
        if let Some(trajectory) = result.trajectory.as_ref().filter(|_| *kept != Kept::Answers) {
            map.serialize_entry("trajectory", trajectory)?;
        } else if let Some(turns) = result.total_turns {
            map.serialize_entry(TOTAL_TURNS, &turns)?;
        }
        if !result.tool_names.is_empty() {
            map.serialize_entry(TOOL_NAMES, &result.tool_names)?;
        }
        if let Some(example) = result.example_id {
            map.serialize_entry("example_id", &example)?;
        }
        if let Some(attempt) = result.attempt {
            map.serialize_entry("attempt", &attempt)?;
        }
        map.serialize_entry("timing", &result.timing)?;
        if let Some(usage) = &result.token_usage {
            map.serialize_entry("token_usage", usage)?;
        }
        if let Some(condition) = &result.stop_condition {
            map.serialize_entry("stop_condition", condition)?;
        }
        map.end()
    }
}

/// Parses a time. Other programs write a local time without an offset; it is treated as UTC.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    let naive = || text.parse::<civil::DateTime>()?.to_zoned(TimeZone::UTC).map(|time| time.timestamp());
    text.parse().or_else(|_| naive()).map_err(D::Error::custom)
}

/// A line of `results.jsonl` has no question number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the line has no valid `example_id`: expected an integer")]
pub struct Unnumbered;

impl TryFrom<TaskResult> for RolloutOutput {
    type Error = Unnumbered;

    fn try_from(result: TaskResult) -> Result<Self, Unnumbered> {
        let mut columns = Map::new();
        columns.insert("task_id".to_owned(), result.task_id.clone().into());
        columns.insert(PREDICTED_ANSWER.to_owned(), result.predicted_answer.into());
        let turns =
            result.trajectory.as_ref().map(|trajectory| trajectory.total_turns).or(result.total_turns);
        if let Some(turns) = turns {
            columns.insert(TOTAL_TURNS.to_owned(), turns.into());
        }
        if !result.tool_names.is_empty() {
            columns.insert(TOOL_NAMES.to_owned(), result.tool_names.into());
        }
        let messages = result.trajectory.map(|trajectory| trajectory.messages);
        let (prompt, completion) = match messages {
            None => (None, None),
            Some(mut messages) => {
                let spoken = messages.iter().position(|message| message.role == Role::Assistant);
                let completion = messages.split_off(spoken.unwrap_or(messages.len()));
                (Some(messages), Some(completion))
            }
        };
        let metrics: IndexMap<_, _> = result.metric.zip(result.score).into_iter().collect();
        Ok(Self {
            example_id: result.example_id.ok_or(Unnumbered)?,
            attempt: result.attempt,
            task: result.task_id,
            prompt,
            completion,
            answer: result.ground_truth,
            info: (!result.metadata.is_empty()).then_some(result.metadata),
            reward: result.score.unwrap_or_default(),
            is_unscored: result.score.is_none(),
            error: result.error.map(|message| {
                let chain = result.error_chain.unwrap_or_else(|| "Error".to_owned());
                OutputError {
                    error: chain.split(" -> ").next().unwrap_or_default().to_owned(),
                    error_chain_repr: message.clone(),
                    error_chain_str: chain,
                    message,
                    is_infrastructure: None,
                }
            }),
            timing: result.timing,
            is_completed: result.stop_condition.is_some(),
            is_truncated: false,
            stop_condition: result.stop_condition,
            metrics,
            tool_defs: Arc::default(),
            token_usage: result.token_usage,
            columns,
            extras: IndexMap::new(),
        })
    }
}

fn in_the_form_of_openai<S: Serializer>(messages: &Messages, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(messages.iter().map(|message| match message.tool_calls.is_empty() {
        true => Arc::clone(message),
        false => {
            let calls = message.tool_calls.iter().map(|call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                let mut written = json!({"id": call.id, "type": "function", "function": function});
                written.as_object_mut().into_iter().for_each(|written| written.extend(call.extra.clone()));
                written
            });
            let mut written = Message { tool_calls: Vec::new(), ..(**message).clone() };
            written.extra.insert("tool_calls".to_owned(), calls.collect());
            Arc::new(written)
        }
    }))
}
