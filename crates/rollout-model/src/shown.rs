//! The JSON form of a rollout that programs and functions on this machine receive.

use std::sync::Arc;

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::Map;

use crate::{State, parser::Parser};
use rollout_core::message::Message;

/// Reserved names. Columns and fields cannot replace them.
const OWN: [&str; 17] = [
    "prompt",
    "completion",
    "response",
    "answer",
    "info",
    "task",
    "example_id",
    "trajectory_id",
    "model",
    "is_completed",
    "is_truncated",
    "stop_condition",
    "error",
    "num_turns",
    "metrics",
    "usage",
    "timing",
];

/// The name for the whole rollout.
const STATE: &str = "state";

/// The name for all messages so far.
const MESSAGES: &str = "messages";

/// A rollout in the form that a program receives.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub(crate) state: &'a State,
    /// The messages after the prompt.
    pub(crate) completion: &'a [Arc<Message>],
    /// Finds the answer in the completion.
    pub(crate) parser: &'a dyn Parser,
    /// All messages so far, for calls in the middle of a rollout.
    pub(crate) messages: Option<&'a [Arc<Message>]>,
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.serialize_parts(serializer, false, |_| true)
    }
}

impl Shown<'_> {
    /// Writes the requested parts of a rollout, and optionally the whole rollout as one more part.
    pub(crate) fn serialize_parts<S: Serializer>(
        &self,
        serializer: S,
        with_state: bool,
        wants: impl Fn(&str) -> bool,
    ) -> Result<S::Ok, S::Error> {
        let state = self.state;
        let mut map = serializer.serialize_map(None)?;
        macro_rules! part {
            ($name:expr, $value:expr) => {
                if wants($name) {
                    map.serialize_entry($name, $value)?;
                }
            };
        }
        if let Some(messages) = self.messages {
            part!(MESSAGES, messages);
        }
        part!("prompt", &state.input.prompt);
        part!("completion", self.completion);
        part!("response", &self.parser.parse_answer(self.completion).unwrap_or_default());
        part!("answer", &state.input.answer);
        part!("info", state.input.info.as_ref().unwrap_or(&Map::new()));
        part!("task", &state.input.task);
        part!("example_id", &state.input.example_id);
        part!("trajectory_id", &state.trajectory_id);
        part!("model", &state.model.name);
        part!("is_completed", &state.is_completed);
        part!("is_truncated", &state.is_truncated);
        part!("stop_condition", &state.stop_condition);
        part!("error", &state.error.as_ref().map(|error| error.chain()));
        part!("num_turns", &state.trajectory.len());
        part!("metrics", &state.metrics);
        part!("usage", &state.usage);
        part!("timing", &state.timing);
        let with_state = with_state && wants(STATE);
        if with_state {
            map.serialize_entry(STATE, self)?;
        }
        let is_own = |name: &str| {
            OWN.contains(&name) || with_state && name == STATE || self.messages.is_some() && name == MESSAGES
        };
        let columns = state.input.extra.iter().filter(|(name, _)| !state.fields.contains_key(*name));
        for (name, value) in state.fields.iter().chain(columns) {
            if wants(name) && !is_own(name) {
                map.serialize_entry(name, value)?;
            }
        }
        map.end()
    }
}
