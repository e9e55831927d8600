//! Streamed answers.

use serde_json::{Value, json};

use super::{
    super::{
        AnswerContext,
        neutral::{Item, Step, ToolKind, ToolUse},
        sequence::Piece,
        sse,
    },
    response::{read_ending, write_call, write_ending},
};
use crate::{Dialect, usage};

/// Reads chunks.
#[derive(Debug, Default)]
pub(in super::super) struct EventReader {
    /// The number of the last call, for servers that number none.
    last_call: u64,
}

impl EventReader {
    pub(in super::super) fn read(&mut self, event: Value, pieces: &mut Vec<Piece>) {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        pieces.push(Piece::Start { id: text(&event, "id"), model: text(&event, "model"), usage: None });
        let choices = event.get("choices").and_then(Value::as_array);
        for choice in choices.into_iter().flatten() {
            if choice.get("index").and_then(Value::as_u64).unwrap_or_default() != 0 {
                continue;
            }
            if let Some(delta) = choice.get("delta") {
                self.read_delta(delta, pieces);
            }
            if let Some(reason) =
                choice.get("finish_reason").and_then(Value::as_str).filter(|text| !text.is_empty())
            {
                pieces.push(Piece::Ending(read_ending(reason, text(choice, "stop_reason"))));
            }
        }
        pieces.extend(usage::of_response(Dialect::Chat, &event).map(|usage| Piece::Usage(usage.tokens)));
    }

    fn read_delta(&mut self, delta: &Value, pieces: &mut Vec<Piece>) {
        let text = |value: &Value, key: &str| {
            value.get(key).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
        };
        let thought = text(delta, "reasoning_content");
        let thought = if thought.is_empty() { text(delta, "reasoning") } else { thought };
        pieces.push(Piece::Thought(thought));
        pieces.push(Piece::Text(text(delta, "content")));
        pieces.push(Piece::Refusal(text(delta, "refusal")));
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let id = text(call, "id");
            let key = call.get("index").and_then(Value::as_u64).unwrap_or_else(|| {
                // Without an index, an id begins another call.
                self.last_call + u64::from(!id.is_empty())
            });
            self.last_call = key;
            let function = call.get("function").unwrap_or(&Value::Null);
            let arguments = match function.get("arguments") {
                Some(Value::String(arguments)) => arguments.clone(),
                Some(Value::Object(arguments)) => Value::Object(arguments.clone()).to_string(),
                _ => String::new(),
            };
            pieces.push(Piece::Call { key, id, name: text(function, "name"), arguments });
        }
    }
}

/// Writes chunks.
#[derive(Debug)]
pub(in super::super) struct EventWriter {
    context: AnswerContext,
    id: String,
    model: String,
    open: Option<Item>,
    /// The free text of the open call, which is only whole at its end.
    custom: Option<ToolUse>,
    calls: usize,
}

impl EventWriter {
    pub(in super::super) fn new(context: AnswerContext) -> Self {
        Self { context, id: String::new(), model: String::new(), open: None, custom: None, calls: 0 }
    }

    pub(in super::super) fn write(&mut self, step: Step, out: &mut Vec<u8>) {
        match step {
            Step::Start { id, model, .. } => {
                self.id = self.context.answer_id(id);
                self.model = self.context.model(model);
                self.chunk(out, json!({"role": "assistant", "content": ""}), None);
            }
            Step::Open(item) => {
                if let Item::Call { id, name } = &item {
                    self.open_call(id, name, out);
                }
                self.open = Some(item);
            }
            Step::More(text) => match (&self.open, &mut self.custom) {
                (_, Some(custom)) => custom.arguments.push_str(&text),
                (Some(Item::Text), _) => self.chunk(out, json!({"content": text}), None),
                (Some(Item::Thought { .. }), _) => self.chunk(out, json!({"reasoning_content": text}), None),
                (Some(Item::Refusal), _) => self.chunk(out, json!({"refusal": text}), None),
                (Some(Item::Call { .. }), _) => {
                    let call = json!({"index": self.calls - 1, "function": {"arguments": text}});
                    self.chunk(out, json!({"tool_calls": [call]}), None);
                }
                (None, _) => {}
            },
            // This dialect has no place for a signature.
            Step::Signature(_) => {}
            Step::Close => {
                self.open = None;
                if let Some(call) = self.custom.take() {
                    let mut call = write_call(call, &self.context);
                    call["index"] = json!(self.calls - 1);
                    self.chunk(out, json!({"tool_calls": [call]}), None);
                }
            }
            Step::End { ending, usage } => {
                self.chunk(out, json!({}), Some(write_ending(&ending, self.calls > 0)));
                if self.context.wants_usage {
                    let mut chunk = self.envelope();
                    chunk["choices"] = json!([]);
                    chunk["usage"] = usage::write(Dialect::Chat, &usage.unwrap_or_default());
                    sse::event(out, "", &chunk);
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
        }
    }

    fn open_call(&mut self, id: &str, name: &str, out: &mut Vec<u8>) {
        self.calls += 1;
        let call = ToolUse { id: id.to_owned(), name: name.to_owned(), arguments: String::new() };
        if self.context.origin(name).kind == ToolKind::Custom {
            self.custom = Some(call);
            return;
        }
        let mut call = write_call(call, &self.context);
        call["index"] = json!(self.calls - 1);
        self.chunk(out, json!({"tool_calls": [call]}), None);
    }

    fn envelope(&self) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.context.now,
            "model": self.model,
        })
    }

    fn chunk(&self, out: &mut Vec<u8>, delta: Value, finish_reason: Option<&str>) {
        let mut chunk = self.envelope();
        chunk["choices"] =
            json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason}]);
        sse::event(out, "", &chunk);
    }
}
