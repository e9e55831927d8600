//! The transcript of a sample: its events in order and with times.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::messages::{arguments, result, tool};
use crate::{
    export::chat::later,
    saved::{Conversation, SavedTrial, Turn},
};
use rollout_core::{
    message::{Message, Role, ToolCall},
    response::TokenUsage,
};

/// Formats a time as Inspect does.
pub(super) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

/// Converts an error to Inspect's form.
pub(super) fn error(message: &str, details: &str) -> Value {
    json!({"message": message, "traceback": details, "traceback_ansi": details})
}

/// A transcript under construction.
pub(super) struct Transcript<'a> {
    sample: &'a str,
    began: Timestamp,
    now: Timestamp,
    events: Vec<Value>,
}

impl<'a> Transcript<'a> {
    /// Starts the transcript of a sample with this unique id.
    pub(super) fn new(sample: &'a str, trial: &SavedTrial) -> Self {
        let began = trial.result.timestamps.started_at;
        Self { sample, began, now: began, events: Vec::new() }
    }

    /// Returns the events.
    pub(super) fn events(self) -> Vec<Value> {
        self.events
    }

    /// Sets the current time.
    pub(super) fn at(&mut self, moment: Option<Timestamp>) {
        self.now = moment.unwrap_or(self.now);
    }

    fn wait(&mut self, seconds: Option<f64>) {
        self.now = later(self.now, seconds);
    }

    /// Adds an event, with its duration if known.
    pub(super) fn add(&mut self, kind: &str, fields: Value, seconds: Option<f64>) {
        let mut event = Map::new();
        event.insert("uuid".to_owned(), format!("{}-e{}", self.sample, self.events.len()).into());
        event.insert("timestamp".to_owned(), time(self.now).into());
        let since = self.now.duration_since(self.began).as_secs_f64();
        event.insert("working_start".to_owned(), since.max(0.0).into());
        event.insert("event".to_owned(), kind.into());
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        if seconds.is_some() {
            self.wait(seconds);
            event.insert("completed".to_owned(), time(self.now).into());
            event.insert("working_time".to_owned(), seconds.into());
        }
        self.events.push(event.into());
    }

    /// Adds the events of a model and its tools. `messages` are those of the conversation in Inspect's form. The
    /// transcript refers to them, because every response answers all earlier messages.
    pub(super) fn conversation(&mut self, conversation: &Conversation, messages: &[Value], model: &str) {
        let tools: Value = conversation.tools.iter().map(tool).collect();
        let mut calls: &[ToolCall] = &[];
        let mut tools_sec = None;
        for (place, message) in conversation.completion.iter().enumerate() {
            let whole = conversation.prompt.len() + place;
            let said = &messages[whole];
            match &message.role {
                Role::Assistant | Role::Text => {
                    self.wait(tools_sec);
                    let turn = conversation.turns.iter().find(|turn| turn.message == place);
                    let before = if whole == 0 { json!([]) } else { json!([[0, whole]]) };
                    let fields = json!({
                        "model": model, "input": [], "input_refs": before, "tools": tools, "tool_choice": "auto",
                        "config": {}, "output": output(message, said, turn, model),
                    });
                    self.add("model", fields, turn.map(|turn| turn.model_sec));
                    (calls, tools_sec) = (&message.tool_calls, turn.and_then(|turn| turn.tools_sec));
                }
                Role::Tool => {
                    let asked = calls.iter().find(|call| Some(&call.id) == message.tool_call_id.as_ref());
                    let fields = json!({
                        "type": "function",
                        "id": message.tool_call_id.as_deref().unwrap_or_default(),
                        "function": asked.map_or("", |call| call.name.as_str()),
                        "arguments": asked.map_or_else(|| json!({}), arguments),
                        "result": message.content.as_ref().map_or_else(|| "".into(), result),
                        "events": [],
                        "message_id": said["id"],
                    });
                    self.add("tool", fields, None);
                }
                _ => {}
            }
        }
        self.wait(tools_sec);
    }
}

/// Returns the last response of a conversation as the output of the sample.
pub(super) fn last_output(conversation: &Conversation, messages: &[Value], model: &str) -> Value {
    let of_model = |message: &Message| matches!(message.role, Role::Assistant | Role::Text);
    match conversation.completion.iter().rposition(|message| of_model(message)) {
        None => no_output(model),
        Some(place) => {
            let turn = conversation.turns.iter().find(|turn| turn.message == place);
            let said = &messages[conversation.prompt.len() + place];
            output(&conversation.completion[place], said, turn, model)
        }
    }
}

/// Returns the output of a sample without a response.
pub(super) fn no_output(model: &str) -> Value {
    json!({"model": model, "choices": [], "completion": ""})
}

fn output(message: &Message, said: &Value, turn: Option<&Turn>, model: &str) -> Value {
    let reason = match turn.and_then(|turn| turn.finish_reason.as_deref()) {
        Some("stop") => "stop",
        Some("length") => "max_tokens",
        Some("tool_calls") => "tool_calls",
        Some("content_filter") => "content_filter",
        None if !message.tool_calls.is_empty() => "tool_calls",
        _ => "unknown",
    };
    let mut output = json!({
        "model": model, "completion": message.text(), "choices": [{"message": said, "stop_reason": reason}],
    });
    if let Some(turn) = turn {
        output["time"] = turn.model_sec.into();
        if let Some(taken) = &turn.usage {
            output["usage"] = usage(taken);
        }
    }
    output
}

fn usage(usage: &TokenUsage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens(),
        "input_tokens_cache_read": usage.cached_tokens,
        "input_tokens_cache_write": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "total_cost": usage.cost,
    })
}
