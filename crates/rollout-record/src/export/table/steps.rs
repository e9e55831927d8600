//! The columns of the table of steps: messages and tool calls.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{Cell, Column, Kind, TrialRow};
use crate::saved::Turn;
use rollout_core::{
    message::{Content, Message, Role, ToolCall},
    response::TokenUsage,
};

/// A message of a conversation, or a tool call.
#[derive(Debug, Clone, Copy)]
pub struct StepRow<'a> {
    /// The trial.
    pub trial: TrialRow<'a>,
    /// Its number among the steps of the trial, from 1.
    pub step: usize,
    /// The number of responses of the model so far, including this one.
    pub turn: usize,
    /// The message.
    pub message: &'a Message,
    /// The call, if the step is a tool call.
    pub call: Option<&'a ToolCall>,
    /// The tool that the message is a result of.
    pub answered: Option<&'a str>,
    /// Details of the response, if the step is one.
    pub response: Option<&'a Turn>,
}

impl<'a> StepRow<'a> {
    /// All columns in order.
    pub const COLUMNS: &'a [Column<StepRow<'a>>] = &[
        Column::required("job", Kind::Text, "Name of the job", |row| {
            (&row.trial.job.header().job_name).into()
        }),
        Column::required("trial", Kind::Text, "Name of the trial, as in the table of trials", |row| {
            row.trial.trial.id.to_string().into()
        }),
        Column::required("agent", Kind::Text, "Name of the agent", |row| {
            row.trial.trial.id.agent.as_str().into()
        }),
        Column::required("dataset", Kind::Text, "Dataset of the task", |row| {
            row.trial.trial.id.dataset.as_str().into()
        }),
        Column::required("task", Kind::Text, "Task, example or question", |row| {
            row.trial.trial.id.task.as_str().into()
        }),
        Column::required("attempt", Kind::Integer, "Number of the attempt, from 1", |row| {
            row.trial.trial.id.attempt.into()
        }),
        Column::required("step", Kind::Integer, "Number of the step in the trial, from 1", |row| {
            row.step.into()
        }),
        Column::required(
            "turn",
            Kind::Integer,
            "Number of the current or last response, from 1; 0 for the prompt",
            |row| row.turn.into(),
        ),
        Column::required(
            "kind",
            Kind::Text,
            "`message`, or `tool_call` for each call in the preceding message",
            |row| if row.call.is_some() { "tool_call" } else { "message" }.into(),
        ),
        Column::required(
            "role",
            Kind::Text,
            "`system`, `user`, `assistant`, `tool`, or another role of the server",
            |row| row.message.role.as_str().into(),
        ),
        Column::optional("content", Kind::Text, "Text of a message", |row| match row.call {
            Some(_) => Cell::Null,
            None => row.message.content.as_ref().map(Content::text).into(),
        }),
        Column::optional(
            "parts",
            Kind::Json,
            "Content of a message with parts other than text, such as images",
            |row| match &row.message.content {
                Some(Content::Parts(parts)) if row.call.is_none() => Cell::json(parts),
                _ => Cell::Null,
            },
        ),
        Column::optional(
            "reasoning",
            Kind::Text,
            "Reasoning of the model, if the server returns it",
            |row| match row.call {
                Some(_) => Cell::Null,
                None => row.message.reasoning_content.as_ref().into(),
            },
        ),
        Column::optional("tool_call_id", Kind::Text, "Id of the call, also in its result", |row| {
            row.call.map(|call| &call.id).or(row.message.tool_call_id.as_ref()).into()
        }),
        Column::optional("tool_name", Kind::Text, "Name of the tool, in the call and in its result", |row| {
            row.call.map(|call| call.name.as_str()).or(row.answered).into()
        }),
        Column::optional(
            "tool_arguments",
            Kind::Text,
            "Arguments of the call, as JSON if the model wrote valid JSON",
            |row| row.call.map(|call| &call.arguments).into(),
        ),
        Column::optional("model", Kind::Text, "Model that the server reported", |row| {
            row.response.map(|response| &response.model).into()
        }),
        Column::optional("created_at", Kind::Time, "Time of the response, in whole seconds", |row| {
            row.response.and_then(|response| Timestamp::from_second(response.created).ok()).into()
        }),
        Column::optional("finish_reason", Kind::Text, "Why the model stopped", |row| {
            row.response.and_then(|response| response.finish_reason.as_ref()).into()
        }),
        Column::optional("input_tokens", Kind::Integer, "Tokens of the prompt", |row| {
            row.usage(TokenUsage::input_tokens)
        }),
        Column::optional("cached_tokens", Kind::Integer, "Prompt tokens read from a cache", |row| {
            row.usage(|usage| usage.cached_tokens)
        }),
        Column::optional("output_tokens", Kind::Integer, "Tokens of the response", |row| {
            row.usage(|usage| usage.completion_tokens)
        }),
        Column::optional("reasoning_tokens", Kind::Integer, "Response tokens used for reasoning", |row| {
            row.usage(|usage| usage.reasoning_tokens)
        }),
        Column::optional("cost_usd", Kind::Real, "Cost of the response in US dollars", |row| {
            row.response.and_then(|response| response.usage?.cost).into()
        }),
        Column::optional("model_sec", Kind::Real, "Duration of the response in seconds", |row| {
            row.response.map(|response| response.model_sec).into()
        }),
        Column::optional("tools_sec", Kind::Real, "Duration of its tool calls in seconds", |row| {
            row.response.and_then(|response| response.tools_sec).into()
        }),
    ];

    /// Calls a function for each step of a trial, in order.
    pub(super) fn each<E>(
        trial: &TrialRow<'a>,
        mut each: impl FnMut(&StepRow<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(said) = trial.conversation else { return Ok(()) };
        let mut tools: HashMap<&str, &str> = HashMap::new();
        let mut known = said.turns.iter().peekable();
        let (mut step, mut turn) = (0, 0);
        let prompt = said.prompt.len();
        for (place, message) in said.messages().enumerate() {
            let is_response = place >= prompt && message.role == Role::Assistant;
            turn += usize::from(is_response);
            step += 1;
            let row = StepRow {
                trial: *trial,
                step,
                turn,
                message,
                call: None,
                answered: message.tool_call_id.as_deref().and_then(|id| tools.get(id).copied()),
                response: known.next_if(|turn| prompt + turn.message == place),
            };
            each(&row)?;
            for call in &message.tool_calls {
                step += 1;
                tools.insert(&call.id, &call.name);
                each(&StepRow { step, call: Some(call), answered: None, response: None, ..row })?;
            }
        }
        Ok(())
    }

    fn usage(&self, number: impl FnOnce(&TokenUsage) -> u64) -> Cell<'_> {
        self.response.and_then(|response| response.usage.as_ref()).map(number).into()
    }
}
