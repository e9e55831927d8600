//! Builds a conversation from the events of a log, within limits.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::Value;

use super::{OwnLog, OwnLogError};
use crate::agent::trajectory::Turn;
use rollout_core::{
    message::{Message, Messages, ToolCall},
    response::{Response, TokenUsage},
    result::AgentUsage,
};

/// What the parts of a conversation may take together. A conversation that a model can read is far below.
const MAX_BYTES: usize = 32 << 20;

/// What a part takes at least, because many empty ones also need memory.
const MIN_PART_BYTES: usize = 64;

/// The conversation so far. Parts that no longer fit are left out.
#[derive(Debug)]
pub(super) struct Builder {
    model: String,
    prompt: Messages,
    turns: Vec<Draft>,
    /// Whether what the model says next belongs to the last turn.
    open: bool,
    /// The turns of calls, by the id of the call.
    calls: HashMap<String, usize>,
    /// The bytes that are left.
    room: usize,
    usage: Option<AgentUsage>,
}

#[derive(Debug)]
struct Draft {
    id: String,
    message: Message,
    answers: Messages,
    usage: Option<TokenUsage>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            model: String::new(),
            prompt: Messages::new(),
            turns: Vec::new(),
            open: false,
            calls: HashMap::new(),
            room: MAX_BYTES,
            usage: None,
        }
    }
}

impl Builder {
    /// The model that the log names.
    pub(super) fn model(&mut self, name: Option<&str>) {
        if let Some(name) = name.filter(|name| self.model.is_empty() && self.fits(name.len())) {
            name.clone_into(&mut self.model);
        }
    }

    /// Adds a message to the model: a part of the prompt, or one between turns.
    pub(super) fn input(&mut self, message: Message) {
        if !self.fits(message.text().len()) {
            return;
        }
        self.open = false;
        let messages = self.turns.last_mut().map_or(&mut self.prompt, |turn| &mut turn.answers);
        messages.push(Arc::new(message));
    }

    /// What the model says from now on is another turn, unless the last one has this id.
    pub(super) fn turn(&mut self, id: Option<&str>) {
        self.open = id.is_some_and(|id| self.turns.last().is_some_and(|turn| turn.id == id));
        if !self.open
            && let Some(id) = id
            && let Some(turn) = self.said(id.len())
        {
            id.clone_into(&mut turn.id);
        }
    }

    /// The model says this, right after what it said before.
    pub(super) fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let Some(turn) = self.said(text.len()) else { return };
        match &mut turn.message.content {
            Some(rollout_core::message::Content::Text(said)) => said.push_str(text),
            content => *content = Some(text.into()),
        }
    }

    /// The model thinks this.
    pub(super) fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(turn) = self.said(text.len()) {
            turn.message.reasoning_content.get_or_insert_default().push_str(text);
        }
    }

    /// The model calls a tool. A call that is known is not added again.
    pub(super) fn call(&mut self, id: &str, name: &str, arguments: &Value) {
        if self.calls.contains_key(id) {
            return;
        }
        let arguments = match arguments {
            Value::String(text) => text.clone(),
            Value::Null => "{}".to_owned(),
            value => value.to_string(),
        };
        let Some(turn) = self.said(id.len() + name.len() + arguments.len()) else { return };
        turn.message.tool_calls.push(ToolCall::new(id, name, arguments));
        self.calls.insert(id.to_owned(), self.turns.len() - 1);
    }

    /// A tool answers.
    pub(super) fn answer(&mut self, call: &str, text: String) {
        if !self.fits(call.len() + text.len()) {
            return;
        }
        self.open = false;
        let place = self.calls.get(call).copied().or(self.turns.len().checked_sub(1));
        if let Some(turn) = place.and_then(|place| self.turns.get_mut(place)) {
            turn.answers.push(Arc::new(Message::tool(call, text)));
        }
    }

    /// What the last turn used.
    pub(super) fn turn_usage(&mut self, usage: TokenUsage) {
        if let Some(turn) = self.turns.last_mut() {
            turn.usage = Some(usage);
        }
    }

    /// What the agent reports to have used in all.
    pub(super) fn usage(&mut self, usage: AgentUsage) {
        self.usage = Some(usage);
    }

    /// The agent reports to have used this, beside what it reported before.
    pub(super) fn add_usage(&mut self, used: &TokenUsage) {
        let sum = self.usage.get_or_insert_default();
        let added = |sum: Option<u64>, tokens: u64| Some(sum.unwrap_or_default().saturating_add(tokens));
        sum.input_tokens = added(sum.input_tokens, used.input_tokens());
        sum.output_tokens = added(sum.output_tokens, used.completion_tokens);
        sum.cached_tokens = added(sum.cached_tokens, used.cached_tokens);
        if let Some(cost) = used.cost {
            sum.cost_usd = Some(sum.cost_usd.unwrap_or_default() + cost);
        }
    }

    /// The log.
    pub(super) fn finish(self) -> Result<OwnLog, OwnLogError> {
        let usage = self.usage.filter(|usage| usage.problem().is_none());
        let model = self.model;
        let turns: Vec<Turn> = self
            .turns
            .into_iter()
            .filter(|turn| turn.message != empty() || !turn.answers.is_empty())
            .map(|turn| Turn {
                response: Arc::new(Response {
                    id: turn.id,
                    created: 0,
                    model: model.clone(),
                    usage: turn.usage,
                    message: turn.message,
                    finish_reason: None,
                    tokens: None,
                    extra: serde_json::Map::new(),
                }),
                model_time: Duration::ZERO,
                answers: turn.answers,
                tools_time: None,
            })
            .collect();
        if turns.is_empty() && usage.is_none() {
            return Err(OwnLogError::NothingFound);
        }
        Ok(OwnLog { model, prompt: self.prompt, turns, usage })
    }

    /// The turn of what the model says; none if there is no room.
    fn said(&mut self, bytes: usize) -> Option<&mut Draft> {
        if !self.fits(bytes) {
            return None;
        }
        if !self.open {
            self.open = true;
            let (message, answers) = (empty(), Messages::new());
            self.turns.push(Draft { id: String::new(), message, answers, usage: None });
        }
        self.turns.last_mut()
    }

    fn fits(&mut self, bytes: usize) -> bool {
        let left = self.room.checked_sub(bytes.max(MIN_PART_BYTES));
        // After the first part that does not fit, nothing does: a conversation with holes would mislead.
        self.room = left.unwrap_or(0);
        left.is_some()
    }
}

fn empty() -> Message {
    Message { content: None, ..Message::assistant("") }
}
