//! The logs that agents write themselves, read as conversations.
//!
//! The gateway's record is better where there is one: it has what the model received and returned. An agent that uses
//! its vendor's model has no such record, and some results of tools never reach a model. An agent can write anything
//! into its log, so whatever the bytes are, reading gives a conversation, a part of one, or an error.

mod builder;
mod claude;
mod cline;
mod codex;
mod copilot;
mod gemini;
mod goose;
mod kimi;
mod mini;
mod opencode;
mod openhands;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;

use self::builder::Builder;
use super::trajectory::Turn;
use crate::config::LogFormat;
use rollout_core::{
    message::{Message, Messages, ToolCall},
    result::AgentUsage,
};

/// The largest log that is read whole. Of a larger one, the beginning and the end are read.
pub(crate) const MAX_LOG_BYTES: u64 = 32 << 20;

/// The largest line that is read.
const MAX_LINE_BYTES: usize = 8 << 20;

/// The content of an agent's own log.
#[derive(Debug, Default)]
pub(crate) struct OwnLog {
    /// The model, or nothing.
    pub(super) model: String,
    /// The first messages to the model. Several agents do not log them.
    pub(super) prompt: Messages,
    pub(super) turns: Vec<Turn>,
    /// The usage that the agent reports.
    pub(crate) usage: Option<AgentUsage>,
}

impl OwnLog {
    /// Whether it has a conversation.
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether it has the first messages to the model.
    pub(crate) fn has_prompt(&self) -> bool {
        !self.prompt.is_empty()
    }

    /// Sets the first message to the model.
    pub(crate) fn set_prompt(&mut self, message: Message) {
        self.prompt = message.into();
    }

    /// The calls of tools, in order.
    pub(super) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.turns.iter().flat_map(|turn| &turn.response.message.tool_calls)
    }

    /// The answers to the last calls of a conversation that has `all` calls of tools.
    ///
    /// Some agents give the calls ids of their own. Then the last calls here are the same ones if there are as many.
    pub(super) fn answers_to(&self, calls: &[ToolCall], all: usize) -> Messages {
        let known: HashSet<&str> = self.calls().map(|call| call.id.as_str()).collect();
        let ids: Vec<&str> = match calls.iter().any(|call| known.contains(call.id.as_str())) {
            true => calls.iter().map(|call| call.id.as_str()).collect(),
            false if self.calls().count() == all => {
                self.calls().skip(all.saturating_sub(calls.len())).map(|call| call.id.as_str()).collect()
            }
            false => return Messages::new(),
        };
        let own: HashMap<&str, &str> =
            ids.into_iter().zip(calls).map(|(id, call)| (id, call.id.as_str())).collect();
        let answers = self.turns.iter().flat_map(|turn| &turn.answers);
        let answer = |answer: &Arc<Message>| {
            let call = own.get(answer.tool_call_id.as_deref()?)?;
            Some(Arc::new(Message { tool_call_id: Some((*call).to_owned()), ..Message::clone(answer) }))
        };
        answers.filter_map(answer).collect()
    }
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnLogError {
    #[error("it has no events of the form `{}`; check `trajectory` of the preset", .0.word())]
    NoEvents(LogFormat),
    #[error("it has no conversation")]
    NothingFound,
    #[error(
        "it is not JSON of the expected form (line {line}, column {column}); check `trajectory` of the preset, and the \
         version of the agent"
    )]
    NotJson { line: usize, column: usize },
}

impl From<serde_json::Error> for OwnLogError {
    /// Without the text of the error, which can quote the whole log.
    fn from(error: serde_json::Error) -> Self {
        Self::NotJson { line: error.line(), column: error.column() }
    }
}

/// Reads a log.
pub(crate) fn read(format: LogFormat, bytes: &[u8]) -> Result<OwnLog, OwnLogError> {
    let read = match format {
        LogFormat::MiniSweAgent => return mini::read(bytes),
        LogFormat::Claude => claude::event,
        LogFormat::Cline => cline::event,
        LogFormat::Codex => codex::event,
        LogFormat::Copilot => copilot::event,
        LogFormat::Gemini => gemini::event,
        LogFormat::Goose => goose::event,
        LogFormat::Kimi => kimi::event,
        LogFormat::Opencode => opencode::event,
        LogFormat::Openhands => openhands::event,
    };
    let mut builder = Builder::default();
    events(bytes).for_each(|event| read(&mut builder, &event));
    builder.finish().map_err(|error| match error {
        OwnLogError::NothingFound => OwnLogError::NoEvents(format),
        error => error,
    })
}

/// The lines that are JSON objects. Agents print other things between them, and a log may be cut anywhere.
fn events(bytes: &[u8]) -> impl Iterator<Item = Value> {
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines
        .filter(|line| line.starts_with(b"{") && line.len() <= MAX_LINE_BYTES)
        .filter_map(|line| serde_json::from_slice(line).ok())
}

/// The text of a value that is a string, or a list of parts with texts; another value as JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = |part: &Value| match part {
                Value::String(text) => text.clone(),
                part => part["text"].as_str().map_or_else(|| part.to_string(), str::to_owned),
            };
            parts.iter().map(text).collect::<Vec<_>>().join("\n")
        }
        value => value.to_string(),
    }
}

/// A text, or nothing.
fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A list, or nothing.
fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A count of tokens.
fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// A cost. Agents that know no price report 0.
fn cost(value: &Value) -> Option<f64> {
    value.as_f64().filter(|cost| *cost > 0.0)
}
