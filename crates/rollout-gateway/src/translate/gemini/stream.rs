//! Streamed answers.

use rollout_core::response::TokenUsage;
use serde_json::{Value, json};

use super::{
    super::{
        AnswerContext,
        neutral::{Ending, Item, Part, Step, Thought, ToolUse},
        sequence::Piece,
        sse,
        tools::arguments_text,
    },
    response::{read_ending, write_ending, write_part},
};
use crate::{
    Dialect,
    usage::{self, StreamUsage},
};

/// Reads chunks. The end is where the stream ends: Gemini has no event for it.
#[derive(Debug)]
pub(in super::super) struct EventReader {
    usage: StreamUsage,
    calls: u64,
}

impl Default for EventReader {
    fn default() -> Self {
        Self { usage: StreamUsage::new(Dialect::Gemini), calls: 0 }
    }
}

impl EventReader {
    pub(in super::super) fn read(&mut self, event: Value, pieces: &mut Vec<Piece>) {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let (id, model) = (text(&event, "responseId"), text(&event, "modelVersion"));
        pieces.push(Piece::Start { id, model, usage: None });
        self.usage.feed(&event);
        pieces.extend(self.usage.usage().map(|usage| Piece::Usage(usage.tokens)));
        if event.pointer("/promptFeedback/blockReason").is_some() {
            pieces.push(Piece::Ending(Ending::Filtered));
        }
        let Some(candidate) = event.pointer("/candidates/0") else { return };
        let parts = candidate.pointer("/content/parts").and_then(Value::as_array);
        for part in parts.into_iter().flatten() {
            self.read_part(part, pieces);
        }
        if let Some(reason) = candidate.get("finishReason").and_then(Value::as_str) {
            pieces.push(Piece::Ending(read_ending(reason)));
        }
    }

    fn read_part(&mut self, part: &Value, pieces: &mut Vec<Piece>) {
        let text = |value: &Value, key: &str| {
            value.get(key).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
        };
        let signature = text(part, "thoughtSignature");
        let signature = (!signature.is_empty()).then_some(Piece::Signature { signature, is_redacted: false });
        if let Some(call) = part.get("functionCall") {
            pieces.extend(signature);
            let key = self.calls;
            self.calls += 1;
            let arguments = arguments_text(call.get("args").unwrap_or(&Value::Null));
            pieces.push(Piece::Call { key, id: text(call, "id"), name: text(call, "name"), arguments });
            pieces.push(Piece::CallEnd(key));
        } else if part.get("thought") == Some(&Value::Bool(true)) {
            pieces.push(Piece::Thought(text(part, "text")));
            pieces.extend(signature);
        } else {
            pieces.push(Piece::Text(text(part, "text")));
        }
    }
}

/// Writes chunks.
#[derive(Debug)]
pub(in super::super) struct EventWriter {
    context: AnswerContext,
    id: String,
    model: String,
    open: Option<Part>,
    last_thought: Option<Thought>,
}

impl EventWriter {
    pub(in super::super) fn new(context: AnswerContext) -> Self {
        Self { context, id: String::new(), model: String::new(), open: None, last_thought: None }
    }

    pub(in super::super) fn write(&mut self, step: Step, out: &mut Vec<u8>) {
        match step {
            Step::Start { id, model, .. } => {
                self.id = self.context.answer_id(id);
                self.model = self.context.model(model);
            }
            Step::Open(item) => {
                self.open = Some(match item {
                    Item::Text | Item::Refusal => Part::text(""),
                    Item::Thought { is_redacted } => {
                        Part::Thought(Thought { is_redacted, ..Thought::default() })
                    }
                    Item::Call { id, name } => Part::Call(ToolUse { id, name, arguments: String::new() }),
                });
            }
            Step::More(text) => match &mut self.open {
                Some(Part::Call(call)) => call.arguments.push_str(&text),
                Some(Part::Thought(thought)) => {
                    thought.text.push_str(&text);
                    self.chunk(out, json!({"text": text, "thought": true}), None);
                }
                Some(_) => self.chunk(out, json!({"text": text}), None),
                None => {}
            },
            Step::Signature(signature) => {
                if let Some(Part::Thought(thought)) = &mut self.open {
                    thought.signature = Some(signature);
                }
            }
            Step::Close => match self.open.take() {
                Some(Part::Thought(thought)) => self.last_thought = Some(thought),
                // A call is only sent whole.
                Some(part @ Part::Call(_)) => {
                    let written = write_part(part, &mut self.last_thought, &self.context);
                    self.chunk(out, written.unwrap_or_default(), None);
                }
                _ => {}
            },
            Step::End { ending, usage } => {
                // An empty text, as Google itself ends a stream: clients want a part in every chunk.
                self.chunk(out, json!({"text": ""}), Some((&ending, usage)));
            }
        }
    }

    fn chunk(&self, out: &mut Vec<u8>, part: Value, end: Option<(&Ending, Option<TokenUsage>)>) {
        let mut candidate = json!({"content": {"role": "model", "parts": [part]}, "index": 0});
        let mut chunk = json!({"modelVersion": self.model, "responseId": self.id});
        if let Some((ending, usage)) = end {
            candidate["finishReason"] = json!(write_ending(ending));
            chunk["usageMetadata"] = usage::write(Dialect::Gemini, &usage.unwrap_or_default());
        }
        chunk["candidates"] = json!([candidate]);
        sse::event(out, "", &chunk);
    }
}
