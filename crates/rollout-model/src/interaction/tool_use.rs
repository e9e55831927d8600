//! Conversations in which the model calls tools until it answers.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use indexmap::IndexMap;
use serde_json::Value;

use super::{Interaction, Stop};
use crate::{
    Error, ErrorKind, State,
    tool::{ENVIRONMENT_ENDED, ENVIRONMENT_TIME_OVER, Tool, ToolFailure},
};
use rollout_core::message::{Content, Message, MessageList, Messages, Role, ToolCall, ToolDef};

const MAX_TURNS: u32 = 10;

/// A failure of a tool that ends the rollout. Other failures are reported to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopError {
    /// Failures of this kind, or of a special case of it.
    Kind(ErrorKind),
    /// Failures of this [name](ToolFailure::name).
    Named(String),
}

impl From<ErrorKind> for StopError {
    fn from(kind: ErrorKind) -> Self {
        Self::Kind(kind)
    }
}

impl From<&str> for StopError {
    fn from(name: &str) -> Self {
        ErrorKind::named(name).map_or_else(|| Self::Named(name.to_owned()), Self::Kind)
    }
}

impl StopError {
    fn matches(&self, kind: &ErrorKind, failure: &ToolFailure) -> bool {
        match self {
            Self::Kind(wanted) => {
                kind.is(wanted) || failure.kind.as_ref().is_some_and(|kind| kind.is(wanted))
            }
            Self::Named(name) => failure.name == *name,
        }
    }
}

/// Two tools of one interaction have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two tools are named `{0}`; rename one of them")]
pub struct DuplicateTool(pub String);

type Formatter = dyn Fn(&ToolFailure) -> String + Send + Sync;

/// The model calls tools and receives their results. The rollout ends when it answers without a call.
///
/// The calls of one turn run one after another, in order. Failures are reported to the model, which may react in the
/// next turn, unless they are [stop errors](Self::stop_errors). A failure of the infrastructure ([`ErrorKind::Infra`])
/// always ends the rollout, because the model cannot fix it. So does the end of the environment, by a command or by its
/// lifetime.
#[derive(Clone)]
pub struct ToolUse<'t> {
    tools: IndexMap<String, Arc<dyn Tool + 't>>,
    max_turns: Option<u32>,
    stop_errors: Vec<StopError>,
    stops: Vec<Stop>,
    format: Arc<Formatter>,
}

impl<'t> ToolUse<'t> {
    /// Use of these tools, for at most 10 turns.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool + 't>>) -> Result<Self, DuplicateTool> {
        let mut named = IndexMap::new();
        for tool in tools {
            if let Some(other) = named.insert(tool.def().name.clone(), tool) {
                return Err(DuplicateTool(other.def().name.clone()));
            }
        }
        Ok(Self {
            tools: named,
            max_turns: Some(MAX_TURNS),
            stop_errors: vec![
                ErrorKind::Infra.into(),
                ENVIRONMENT_ENDED.into(),
                ENVIRONMENT_TIME_OVER.into(),
            ],
            stops: Vec::new(),
            format: Arc::new(|failure| failure.message.clone()),
        })
    }

    /// Sets the maximum number of turns; none for no limit.
    #[must_use]
    pub fn max_turns(self, turns: impl Into<Option<u32>>) -> Self {
        Self { max_turns: turns.into(), ..self }
    }

    /// Also ends the rollout on these failures: kinds, including custom ones, or names.
    ///
    /// ```
    /// use rollout::model::{ErrorKind, ToolUse};
    ///
    /// const CHEATED: ErrorKind = ErrorKind::model_fault("CheatedError");
    ///
    /// let tools = ToolUse::new([])?.stop_errors([ErrorKind::ToolParse, CHEATED]).stop_errors(["ParseIntError"]);
    /// # Ok::<(), rollout::model::DuplicateTool>(())
    /// ```
    #[must_use]
    pub fn stop_errors<E: Into<StopError>>(mut self, errors: impl IntoIterator<Item = E>) -> Self {
        self.stop_errors.extend(errors.into_iter().map(Into::into));
        self
    }

    /// Also ends the rollout on a condition.
    #[must_use]
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stops.push(stop);
        self
    }

    /// Formats the failures that are reported to the model.
    #[must_use]
    pub fn error_formatter(self, format: impl Fn(&ToolFailure) -> String + Send + Sync + 'static) -> Self {
        Self { format: Arc::new(format), ..self }
    }

    async fn answer(&self, call: &ToolCall, state: &mut State) -> Result<Content, Error> {
        let given = match parse(&call.arguments) {
            Ok(arguments) => match self.tools.get(&call.name) {
                Some(tool) => tool.call(arguments, state).await,
                None => Err(self.unknown(&call.name)),
            }
            .map_err(|failure| (ErrorKind::ToolCall, failure)),
            Err(failure) => Err((ErrorKind::ToolParse, failure)),
        };
        match given {
            Ok(content) => Ok(content),
            Err((kind, failure)) if self.stop_errors.iter().any(|stop| stop.matches(&kind, &failure)) => {
                Err(failure.into_error(kind, &call.name))
            }
            Err((_, failure)) => Ok(Content::Text((self.format)(&failure))),
        }
    }

    fn unknown(&self, name: &str) -> ToolFailure {
        let known: Vec<&str> = self.tools.keys().map(String::as_str).collect();
        ToolFailure::new("KeyError", format!("unknown tool '{name}'; known tools: {}", known.join(", ")))
    }
}

/// Parses the arguments of a call. Some servers leave out an empty object.
fn parse(arguments: &str) -> Result<serde_json::Map<String, Value>, ToolFailure> {
    if arguments.trim().is_empty() {
        return Ok(serde_json::Map::new());
    }
    let kind = match serde_json::from_str(arguments) {
        Ok(Value::Object(arguments)) => return Ok(arguments),
        Err(error) => {
            let text = format!("the arguments of the call are not JSON: {error}");
            return Err(ToolFailure::new("JSONDecodeError", text));
        }
        Ok(Value::Null) => "null",
        Ok(Value::Bool(_)) => "a boolean",
        Ok(Value::Number(_)) => "a number",
        Ok(Value::String(_)) => "a string",
        Ok(Value::Array(_)) => "an array",
    };
    Err(ToolFailure::new("ValueError", format!("the arguments of a call must be a JSON object, not {kind}")))
}

impl fmt::Debug for ToolUse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolUse")
            .field("tools", &self.tools.keys().collect::<Vec<_>>())
            .field("max_turns", &self.max_turns)
            .field("stop_errors", &self.stop_errors)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Interaction for ToolUse<'_> {
    fn tool_defs(&self) -> Vec<ToolDef> {
        self.tools.values().map(|tool| tool.def().clone()).collect()
    }

    fn max_turns(&self) -> Option<u32> {
        self.max_turns
    }

    fn stops(&self) -> Vec<Stop> {
        let own = Stop::new("no_tools_called", no_tools_called);
        std::iter::once(own).chain(self.stops.iter().cloned()).collect()
    }

    async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        let Some(last) = messages.last() else { return Ok(Messages::new()) };
        let mut answers = Messages::with_capacity(last.tool_calls.len());
        for call in &last.tool_calls {
            let content = self.answer(call, state).await?;
            answers.push(Arc::new(Message::tool(&call.id, content)));
        }
        Ok(answers)
    }
}

/// Whether the last message of the model has no tool call.
fn no_tools_called(state: &State) -> bool {
    let Some(turn) = state.trajectory.last() else { return false };
    let is_answer = |last: &Arc<Message>| last.role == Role::Assistant && last.tool_calls.is_empty();
    turn.completion.last().is_none_or(is_answer)
}
