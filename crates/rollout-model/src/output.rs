//! The record of a rollout: a row of `outputs.jsonl`, or of `results.jsonl` for a question of a benchmark.

use std::sync::Arc;

use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use rollout_core::row::{
    KEYS, Kept, OutputError, OutputUsage, RolloutOutput, TaskResult, Timing, ToolCallRecord, Trajectory,
};
use serde_json::{Map, Value};

use crate::{
    error::{Error, ErrorKind},
    metric::{Metric, PREDICTED_ANSWER, SCORE_DETAILS},
    state::{RolloutInput, State},
};

/// Live parts of a state, which cannot be columns.
const ALIVE: [&str; 2] = ["client", "resources"];

impl From<&Error> for OutputError {
    fn from(error: &Error) -> Self {
        Self {
            error: error.kind.as_str().to_owned(),
            message: error.to_string(),
            error_chain_repr: error.long_chain(),
            error_chain_str: error.chain(),
            is_infrastructure: match &error.kind {
                ErrorKind::Custom { is_infrastructure, .. } => Some(*is_infrastructure),
                _ => None,
            },
        }
    }
}

/// An invalid state column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// It is not data.
    #[error(
        "the state column {0:?} is a live object and cannot be saved; store its data in a field of the state"
    )]
    Alive(String),
    /// It has no name.
    #[error("a state column has an empty name")]
    Unnamed,
}

/// Rejects invalid columns.
pub fn check_columns(columns: &[String]) -> Result<(), ColumnError> {
    for column in columns {
        if column.is_empty() {
            return Err(ColumnError::Unnamed);
        }
        if ALIVE.contains(&column.as_str()) {
            return Err(ColumnError::Alive(column.clone()));
        }
    }
    Ok(())
}

/// Creates the row of a finished rollout, with these fields of its state as additional columns.
///
/// A missing field is null in the row.
///
/// ```
/// # use std::sync::Arc;
/// # use rollout::model::{State, output::state_to_output};
/// # fn finished(state: State) -> Result<(), Box<dyn std::error::Error>> {
/// let row = state_to_output(&state, &["score".to_owned()])?;
/// println!("{}", serde_json::to_string(&row)?);
/// # Ok(())
/// # }
/// ```
pub fn state_to_output(state: &State, state_columns: &[String]) -> Result<RolloutOutput, ColumnError> {
    check_columns(state_columns)?;
    let mut columns = Map::new();
    for column in state_columns {
        if !KEYS.contains(&column.as_str()) {
            columns.insert(column.clone(), state.get(column).unwrap_or_default());
        }
    }
    // Turns have their own advantages or that of the rollout. With the rollout's advantage in the row, readers can
    // distinguish the two.
    if let (Some(advantage), true) = (state.advantage, columns.contains_key("trajectory")) {
        columns.entry("advantage").or_insert(advantage.into());
    }
    Ok(RolloutOutput {
        example_id: state.input.example_id,
        attempt: None,
        task: state.input.task.clone(),
        prompt: Some(state.input.prompt.clone()),
        completion: state.completion.clone(),
        answer: state.input.answer.clone().filter(|answer| !answer.is_empty()),
        info: state.input.info.clone().filter(|info| !info.is_empty()),
        reward: state.reward.unwrap_or_default(),
        is_unscored: false,
        error: state.failure().map(OutputError::from),
        timing: state.timing,
        is_completed: state.is_completed,
        is_truncated: state.is_truncated,
        stop_condition: state.stop_condition.clone(),
        metrics: state.metrics.clone().unwrap_or_default(),
        tool_defs: Arc::clone(&state.tool_defs),
        token_usage: used(state),
        columns,
        extras: IndexMap::new(),
    })
}

/// The usage of a rollout, if any response reported it.
fn used(state: &State) -> Option<OutputUsage> {
    let usage = &state.usage;
    let in_context = in_context(state);
    (usage.responses > 0).then_some(OutputUsage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cached_tokens: usage.cached_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        cost: usage.cost,
        final_input_tokens: in_context.map(|(shown, _)| shown),
        final_output_tokens: in_context.map(|(_, written)| written),
    })
}

/// The tokens in the context after the last response: those of the prompt, and those of the completion.
fn in_context(state: &State) -> Option<(f64, f64)> {
    let usages = || state.trajectory.iter().filter_map(|step| step.response.usage);
    let written: u64 = usages().map(|usage| usage.completion_tokens).sum();
    let last = usages().next_back()?;
    Some((last.total_tokens().saturating_sub(written) as f64, written as f64))
}

/// How questions are scored, and what is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultForm {
    /// How answers are scored; none if they are not.
    pub metric: Option<Metric>,
    /// The contents of lines.
    pub kept: Kept,
}

/// The tool calls of a rollout so far.
#[derive(Debug, Default)]
pub struct RecordedCalls(pub Vec<Arc<ToolCallRecord>>);

/// The id of the question of a rollout.
pub fn question_id(input: &RolloutInput) -> &str {
    input.info.as_ref().and_then(|info| info.get("id")?.as_str()).unwrap_or_default()
}

/// Creates the row of a finished question.
pub fn question_row(state: &State, form: ResultForm) -> TaskResult {
    let task_id = question_id(&state.input).to_owned();
    let question = state.input.prompt.last().map(|last| last.text().into_owned()).unwrap_or_default();
    let success = state.error.is_none();
    let answer = state.fields.get(PREDICTED_ANSWER).and_then(Value::as_str);
    let predicted_answer = answer.filter(|_| success).unwrap_or_default().to_owned();
    let completion = state.completion.iter().flatten();
    let Timing { start_time, generation_ms, .. } = state.timing;
    let start_time = Timestamp::from_microsecond((start_time * 1e6) as i64).unwrap_or(Timestamp::UNIX_EPOCH);
    let lasted = SignedDuration::from_micros((generation_ms * 1e3) as i64);
    let metadata = state.input.info.as_ref().and_then(|info| info.get("metadata")?.as_object());
    TaskResult {
        trajectory: Some(Trajectory {
            task_id: task_id.clone(),
            question: question.clone(),
            messages: state.input.prompt.iter().chain(completion).cloned().collect(),
            tool_calls: state
                .resources
                .get::<RecordedCalls>()
                .map(|RecordedCalls(calls)| calls.clone())
                .unwrap_or_default(),
            final_answer: predicted_answer.clone(),
            total_turns: state.trajectory.len() as u64,
            success,
            start_time,
            end_time: start_time.saturating_add(lasted).unwrap_or(start_time),
            execution_time_ms: generation_ms.round() as u64,
        }),
        task_id,
        question,
        predicted_answer,
        success,
        ground_truth: state.input.answer.clone(),
        score: state.reward,
        metric: state.reward.and(form.metric).map(|metric| metric.as_str().to_owned()),
        details: state.fields.get(SCORE_DETAILS).filter(|details| !details.is_null()).cloned(),
        metadata: metadata.cloned().unwrap_or_default(),
        total_turns: Some(state.trajectory.len() as u64),
        tool_names: state.tool_defs.iter().map(|tool| tool.name.clone()).collect(),
        error: state.error.as_ref().map(ToString::to_string),
        error_chain: state.error.as_ref().map(Error::chain),
        example_id: Some(state.input.example_id),
        attempt: None,
        timing: state.timing,
        token_usage: used(state),
        stop_condition: state.stop_condition.clone(),
    }
}
