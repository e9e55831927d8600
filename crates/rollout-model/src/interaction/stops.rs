//! Stop conditions on the model's messages and tool calls, and Python functions as stop conditions.

use std::{borrow::Cow, sync::Arc, time::Duration};

use regex::Regex;

use super::Stop;
use crate::{
    Cause, Error, ErrorKind, State,
    parser::Parser,
    python::{Callable, PythonFunction, PythonWorker, odd},
    shown::Shown,
};
use rollout_core::message::{Message, Messages};

/// An invalid regular expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid regular expression: {0}")]
pub struct InvalidPattern(String);

impl Stop {
    /// Met when the model's last message contains this text.
    pub fn contains(name: impl Into<Cow<'static, str>>, text: impl Into<String>) -> Self {
        let text = text.into();
        Self::new(name, move |state| last_message(state).is_some_and(|last| last.text().contains(&text)))
    }

    /// Met when this regular expression matches a part of the model's last message.
    ///
    /// ```
    /// use rollout::model::Stop;
    ///
    /// let answered = Stop::matches("answered", r"(?i)final answer: \d+")?;
    /// # Ok::<(), rollout::model::InvalidPattern>(())
    /// ```
    pub fn matches(name: impl Into<Cow<'static, str>>, pattern: &str) -> Result<Self, InvalidPattern> {
        let pattern = Regex::new(pattern).map_err(|error| {
            // The first lines repeat the pattern, which the caller knows.
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            InvalidPattern(reason.strip_prefix("error: ").unwrap_or(reason).to_owned())
        })?;
        Ok(Self::new(name, move |state| {
            last_message(state).is_some_and(|last| pattern.is_match(&last.text()))
        }))
    }

    /// Met when the model calls this tool. The rollout ends before the tool runs.
    pub fn called(name: impl Into<Cow<'static, str>>, tool: impl Into<String>) -> Self {
        let tool = tool.into();
        Self::new(name, move |state| {
            last_message(state).is_some_and(|last| last.tool_calls.iter().any(|call| call.name == tool))
        })
    }

    /// Met when a Python function returns true. It is called after each response of the model, with the arguments that
    /// its parameters name: `messages`, all messages so far, and those of a
    /// [`PythonReward`](crate::rubric::PythonReward). The parser finds its `response`.
    pub fn python(
        name: impl Into<Cow<'static, str>>,
        worker: &PythonWorker,
        function: PythonFunction,
        timeout: Duration,
        parser: Arc<dyn Parser>,
    ) -> Self {
        let name = name.into();
        let asked = Arc::new(Asked {
            name: name.clone(),
            callable: Callable::new(worker, function).timeout(timeout),
            parser,
        });
        Self::later(name, async move |state| asked.is_met(state).await)
    }
}

struct Asked {
    name: Cow<'static, str>,
    callable: Callable,
    parser: Arc<dyn Parser>,
}

impl Asked {
    async fn is_met(&self, state: &State) -> Result<bool, Error> {
        // Before the first response there is nothing to check. After the final reply, it was already checked.
        let (Some(turn), None) = (state.trajectory.last(), &state.final_env_response) else {
            return Ok(false);
        };
        let messages: Messages = turn.prompt.iter().chain(&turn.completion).cloned().collect();
        let completion = messages.get(state.input.prompt.len()..).unwrap_or_default();
        let shown = Shown { state, completion, parser: &*self.parser, messages: Some(&messages) };
        let given = self.callable.ask("stop", shown).await.and_then(|given| {
            given.as_bool().ok_or_else(|| odd(&self.callable.function, &given, "a boolean"))
        });
        given.map_err(|error| {
            let text = format!("cannot evaluate the stop condition `{}`", self.name);
            Error::new(ErrorKind::Infra, text).because(Cause::of("PythonError", &error))
        })
    }
}

/// The last message of the model.
fn last_message(state: &State) -> Option<&Message> {
    state.trajectory.last()?.completion.last().map(|message| &**message)
}
