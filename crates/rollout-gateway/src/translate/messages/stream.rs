//! Streamed answers.

use std::collections::BTreeSet;

use rollout_core::response::TokenUsage;
use serde_json::{Value, json};

use super::{
    super::{
        AnswerContext,
        neutral::{Item, Step},
        sequence::Piece,
        sse,
    },
    response::{envelope, read_ending, write_ending, write_signature},
};
use crate::{
    Dialect,
    usage::{self, StreamUsage},
};

/// Reads events.
#[derive(Debug)]
pub(in super::super) struct EventReader {
    usage: StreamUsage,
    /// The blocks that are calls. The provider's own tools have blocks like them.
    calls: BTreeSet<u64>,
    /// Those of them that got no arguments yet.
    without_arguments: BTreeSet<u64>,
}

impl Default for EventReader {
    fn default() -> Self {
        Self {
            usage: StreamUsage::new(Dialect::Messages),
            calls: BTreeSet::new(),
            without_arguments: BTreeSet::new(),
        }
    }
}

impl EventReader {
    pub(in super::super) fn read(&mut self, event: Value, pieces: &mut Vec<Piece>) {
        let text = |value: &Value, key: &str| {
            value.get(key).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
        };
        let index = event.get("index").and_then(Value::as_u64).unwrap_or_default();
        self.usage.feed(&event);
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_start" => {
                let message = event.get("message").unwrap_or(&Value::Null);
                let some = |text: String| Some(text).filter(|text| !text.is_empty());
                pieces.push(Piece::Start {
                    id: some(text(message, "id")),
                    model: some(text(message, "model")),
                    usage: self.usage.usage().map(|usage| usage.tokens),
                });
            }
            "content_block_start" => {
                let block = event.get("content_block").unwrap_or(&Value::Null);
                match text(block, "type").as_str() {
                    "tool_use" => {
                        self.calls.insert(index);
                        self.without_arguments.insert(index);
                        let (id, name) = (text(block, "id"), text(block, "name"));
                        pieces.push(Piece::Call { key: index, id, name, arguments: String::new() });
                    }
                    "text" => pieces.push(Piece::Text(text(block, "text"))),
                    "thinking" => pieces.push(Piece::Thought(text(block, "thinking"))),
                    "redacted_thinking" => {
                        pieces.push(Piece::Signature { signature: text(block, "data"), is_redacted: true });
                    }
                    _ => {}
                }
            }
            "content_block_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                match text(delta, "type").as_str() {
                    "text_delta" => pieces.push(Piece::Text(text(delta, "text"))),
                    "thinking_delta" => pieces.push(Piece::Thought(text(delta, "thinking"))),
                    "signature_delta" => pieces
                        .push(Piece::Signature { signature: text(delta, "signature"), is_redacted: false }),
                    "input_json_delta" if self.calls.contains(&index) => {
                        let arguments = text(delta, "partial_json");
                        if !arguments.is_empty() {
                            self.without_arguments.remove(&index);
                        }
                        let (id, name) = (String::new(), String::new());
                        pieces.push(Piece::Call { key: index, id, name, arguments });
                    }
                    _ => {}
                }
            }
            "content_block_stop" => {
                if self.without_arguments.remove(&index) {
                    let (id, name) = (String::new(), String::new());
                    pieces.push(Piece::Call { key: index, id, name, arguments: "{}".to_owned() });
                }
                pieces.push(Piece::CallEnd(index));
                pieces.push(Piece::ItemEnd);
            }
            "message_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                let reason = text(delta, "stop_reason");
                if !reason.is_empty() {
                    pieces.push(Piece::Ending(read_ending(&reason, &text(delta, "stop_sequence"))));
                }
                pieces.extend(self.usage.usage().map(|usage| Piece::Usage(usage.tokens)));
            }
            "message_stop" => pieces.push(Piece::End),
            _ => {}
        }
    }
}

/// Writes events.
#[derive(Debug)]
pub(in super::super) struct EventWriter {
    context: AnswerContext,
    open: Option<Item>,
    /// The index of the next block.
    index: usize,
    has_calls: bool,
}

impl EventWriter {
    pub(in super::super) fn new(context: AnswerContext) -> Self {
        Self { context, open: None, index: 0, has_calls: false }
    }

    pub(in super::super) fn write(&mut self, step: Step, out: &mut Vec<u8>) {
        match step {
            Step::Start { id, model, usage } => {
                let mut message = envelope(self.context.answer_id(id), self.context.model(model));
                let usage = usage.unwrap_or_default();
                message["usage"] = usage::write(Dialect::Messages, &usage);
                sse::event(out, "message_start", &json!({"type": "message_start", "message": message}));
            }
            Step::Open(item) => self.open(item, out),
            Step::More(text) => {
                let delta = match &self.open {
                    Some(Item::Text | Item::Refusal) => json!({"type": "text_delta", "text": text}),
                    Some(Item::Thought { .. }) => json!({"type": "thinking_delta", "thinking": text}),
                    Some(Item::Call { .. }) => json!({"type": "input_json_delta", "partial_json": text}),
                    None => return,
                };
                self.delta(delta, out);
            }
            Step::Signature(native) => {
                let is_redacted = matches!(self.open, Some(Item::Thought { is_redacted: true }));
                let signature = write_signature(&native, is_redacted, &self.context);
                self.delta(json!({"type": "signature_delta", "signature": signature}), out);
            }
            Step::Close => {
                let event = json!({"type": "content_block_stop", "index": self.index});
                sse::event(out, "content_block_stop", &event);
                self.open = None;
                self.index += 1;
            }
            Step::End { ending, usage } => {
                let (reason, sequence) = write_ending(&ending, self.has_calls);
                let usage: TokenUsage = usage.unwrap_or_default();
                let event = json!({
                    "type": "message_delta",
                    "delta": {"stop_reason": reason, "stop_sequence": sequence},
                    "usage": usage::write(Dialect::Messages, &usage),
                });
                sse::event(out, "message_delta", &event);
                sse::event(out, "message_stop", &json!({"type": "message_stop"}));
            }
        }
    }

    fn open(&mut self, item: Item, out: &mut Vec<u8>) {
        let block = match &item {
            Item::Text | Item::Refusal => json!({"type": "text", "text": ""}),
            Item::Thought { .. } => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Item::Call { id, name } => {
                self.has_calls = true;
                json!({"type": "tool_use", "id": id, "name": self.context.origin(name).name, "input": {}})
            }
        };
        let event = json!({"type": "content_block_start", "index": self.index, "content_block": block});
        sse::event(out, "content_block_start", &event);
        self.open = Some(item);
    }

    fn delta(&self, delta: Value, out: &mut Vec<u8>) {
        let event = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
        sse::event(out, "content_block_delta", &event);
    }
}
