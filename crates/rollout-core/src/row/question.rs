//! What came of one question: a line of `results.jsonl`.

use std::sync::Arc;

use indexmap::IndexMap;
use jiff::{Timestamp, civil, tz::TimeZone};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap as _};
use serde_json::{Map, Value, json};

use super::rollout::{OutputError, OutputUsage, RolloutOutput, Timing};
use crate::message::{Message, Messages, Role};

/// The column of a row that has how often the model spoke.
pub const TOTAL_TURNS: &str = "total_turns";
/// The column of a row that has the names of the tools that the model could call.
pub const TOOL_NAMES: &str = "tool_names";

/// What of an answered question is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The answer with the conversation that led to it.
    Everything,
    /// The answer.
    Answers,
    /// The conversation.
    Trajectories,
}

/// What came of one question.
///
/// Serialised, it is a line of `results.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct TaskResult {
    /// Names the question.
    pub task_id: String,
    /// The question.
    pub question: String,
    /// The answer that was found in the model's last words; empty if the question failed.
    pub predicted_answer: String,
    /// Whether the model came to an end. A wrong answer is one too.
    pub success: bool,
    /// The right answer, where there is one.
    pub ground_truth: Option<String>,
    /// How good the answer is; none if nobody scored it.
    pub score: Option<f64>,
    /// By which metric.
    pub metric: Option<String>,
    /// What the metric has to say beside the score.
    pub details: Option<Value>,
    /// The fields of the question that have no meaning of their own.
    pub metadata: Map<String, Value>,
    /// What went wrong, if the question failed.
    pub error: Option<String>,
    /// The names of the error and its causes.
    pub error_chain: Option<String>,
    /// The conversation, where it was kept.
    pub trajectory: Option<Trajectory>,
    /// How often the model spoke. Where the conversation is kept, a line has it there.
    pub total_turns: Option<u64>,
    /// The tools that the model could call, by the names that it was shown.
    pub tool_names: Vec<String>,
    /// The number of the question. Lines of other programs have none.
    pub example_id: Option<u64>,
    /// The attempt at it, counted from 1.
    pub attempt: Option<u32>,
    /// How long it took.
    pub timing: Timing,
    /// What the model used, if its server told.
    pub token_usage: Option<OutputUsage>,
    /// What ended the conversation.
    pub stop_condition: Option<String>,
}

/// The conversation about one question.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Trajectory {
    /// Names the question.
    pub task_id: String,
    /// The question.
    pub question: String,
    /// All that was said, from the system prompt on. Calls of tools have the form of OpenAI.
    #[serde(serialize_with = "in_the_form_of_openai")]
    pub messages: Messages,
    /// The calls of tools, in their order.
    pub tool_calls: Vec<Arc<ToolCallRecord>>,
    /// The answer that was found in the model's last words.
    pub final_answer: String,
    /// How often the model spoke.
    pub total_turns: u64,
    /// Whether the model came to an end.
    pub success: bool,
    /// When it began.
    #[serde(deserialize_with = "time")]
    pub start_time: Timestamp,
    /// When it ended.
    #[serde(deserialize_with = "time")]
    pub end_time: Timestamp,
    /// From the one to the other.
    pub execution_time_ms: u64,
}

/// One call of a tool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolCallRecord {
    /// The tool, by the server's name for it.
    pub tool_name: String,
    /// What the model gave it, without the parameters of the question.
    pub parameters: Map<String, Value>,
    /// What it gave.
    pub result: Value,
    /// Whether it did what it was asked to.
    pub success: bool,
    /// What went wrong.
    pub error: Option<String>,
    /// How long it took.
    pub execution_time_ms: u64,
}

impl TaskResult {
    /// Whether a row is one of these.
    pub fn is_in(row: &Map<String, Value>) -> bool {
        let answered =
            row.contains_key("predicted_answer") || row.get("trajectory").is_some_and(Value::is_object);
        answered && row.get("task_id").is_some_and(Value::is_string)
    }

    /// The line of it in a file.
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

/// A moment. Other programs write the clock's time without saying where the clock is; it is taken for UTC.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    let naive = || text.parse::<civil::DateTime>()?.to_zoned(TimeZone::UTC).map(|time| time.timestamp());
    text.parse().or_else(|_| naive()).map_err(D::Error::custom)
}

/// A line of `results.jsonl` does not tell which question it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line has an `example_id`, a whole number")]
pub struct Unnumbered;

impl TryFrom<TaskResult> for RolloutOutput {
    type Error = Unnumbered;

    fn try_from(result: TaskResult) -> Result<Self, Unnumbered> {
        let mut columns = Map::new();
        columns.insert("task_id".to_owned(), result.task_id.clone().into());
        columns.insert("predicted_answer".to_owned(), result.predicted_answer.into());
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
