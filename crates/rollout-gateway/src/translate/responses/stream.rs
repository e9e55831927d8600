//! Streamed answers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    super::{
        AnswerContext,
        fields::Object,
        neutral::{Answer, Item, Part, Step, Thought, ToolKind, ToolUse},
        sequence::Piece,
        sse,
    },
    response::{complete, envelope, read_ending, reasoning_text, write_content, write_item},
};
use crate::{Dialect, usage};

/// Reads events.
#[derive(Debug, Default)]
pub(in super::super) struct EventReader {
    /// The items whose text or arguments came in pieces.
    in_pieces: BTreeSet<u64>,
}

impl EventReader {
    pub(in super::super) fn read(&mut self, event: Value, pieces: &mut Vec<Piece>) {
        let text = |value: &Value, key: &str| {
            value.get(key).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
        };
        let key = event.get("output_index").and_then(Value::as_u64).unwrap_or_default();
        let delta = text(&event, "delta");
        if !delta.is_empty() {
            self.in_pieces.insert(key);
        }
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "response.created" | "response.in_progress" => {
                let response = event.get("response").unwrap_or(&Value::Null);
                let some = |text: String| Some(text).filter(|text| !text.is_empty());
                let (id, model) = (some(text(response, "id")), some(text(response, "model")));
                pieces.push(Piece::Start { id, model, usage: None });
            }
            "response.output_item.added" => {
                let item = event.get("item").unwrap_or(&Value::Null);
                if item["type"] == "function_call" {
                    let (id, name) = (text(item, "call_id"), text(item, "name"));
                    pieces.push(Piece::Call { key, id, name, arguments: String::new() });
                }
            }
            "response.output_text.delta" => pieces.push(Piece::Text(delta)),
            "response.refusal.delta" => pieces.push(Piece::Refusal(delta)),
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                pieces.push(Piece::Thought(delta));
            }
            "response.reasoning_summary_part.added"
                if event.get("summary_index").and_then(Value::as_u64).unwrap_or_default() > 0 =>
            {
                pieces.push(Piece::Thought("\n\n".to_owned()));
            }
            "response.function_call_arguments.delta" => {
                let (id, name) = (String::new(), String::new());
                pieces.push(Piece::Call { key, id, name, arguments: delta });
            }
            "response.output_item.done" => {
                let item = event.get("item").cloned().unwrap_or_default();
                self.end_item(key, item, pieces);
            }
            kind @ ("response.completed" | "response.incomplete") => {
                let response = event.get("response").unwrap_or(&Value::Null);
                let reason = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
                let status = kind.strip_prefix("response.").unwrap_or_default();
                pieces.push(Piece::Ending(read_ending(status, reason)));
                if let Some(raw) = response.get("usage").filter(|usage| usage.is_object()) {
                    pieces.push(Piece::Usage(usage::read(Dialect::Responses, raw)));
                }
                pieces.push(Piece::End);
            }
            _ => {}
        }
    }

    /// Some servers send only whole items, so what did not come in pieces is taken from here.
    fn end_item(&mut self, key: u64, item: Value, pieces: &mut Vec<Piece>) {
        let is_whole = !self.in_pieces.remove(&key);
        let text = |value: &Value, key: &str| {
            value.get(key).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
        };
        match text(&item, "type").as_str() {
            "function_call" => {
                let arguments = if is_whole { text(&item, "arguments") } else { String::new() };
                let (id, name) = (text(&item, "call_id"), text(&item, "name"));
                pieces.push(Piece::Call { key, id, name, arguments });
                pieces.push(Piece::CallEnd(key));
            }
            "message" => {
                let content = item.get("content").and_then(Value::as_array).into_iter().flatten();
                for part in content.filter(|_| is_whole) {
                    pieces.push(Piece::Text(text(part, "text")));
                    pieces.push(Piece::Refusal(text(part, "refusal")));
                }
                pieces.push(Piece::ItemEnd);
            }
            "reasoning" => {
                let signature = text(&item, "encrypted_content");
                let whole = Object::new(item, "item").and_then(|mut item| reasoning_text(&mut item));
                if is_whole {
                    pieces.push(Piece::Thought(whole.unwrap_or_default()));
                }
                if !signature.is_empty() {
                    pieces.push(Piece::Signature { signature, is_redacted: false });
                }
                pieces.push(Piece::ItemEnd);
            }
            _ => {}
        }
    }
}

/// Writes events: the full sequence, which every client understands.
#[derive(Debug)]
pub(in super::super) struct EventWriter {
    context: AnswerContext,
    id: String,
    response: Value,
    number: u64,
    /// The item under way, as far as it came, and its id.
    open: Option<Part>,
    item_id: String,
    output: Vec<Value>,
    has_refused: bool,
}

impl EventWriter {
    pub(in super::super) fn new(context: AnswerContext) -> Self {
        Self {
            context,
            id: String::new(),
            response: Value::Null,
            number: 0,
            open: None,
            item_id: String::new(),
            output: Vec::new(),
            has_refused: false,
        }
    }

    pub(in super::super) fn write(&mut self, step: Step, out: &mut Vec<u8>) {
        match step {
            Step::Start { id, model, .. } => {
                self.id = self.context.answer_id(id);
                self.response = envelope(&self.id, &self.context.model(model), &self.context);
                for name in ["response.created", "response.in_progress"] {
                    let response = self.response.clone();
                    self.event(out, name, json!({"response": response}));
                }
            }
            Step::Open(item) => self.open(item, out),
            Step::More(text) => self.more(text, out),
            Step::Signature(signature) => {
                if let Some(Part::Thought(thought)) = &mut self.open {
                    thought.signature = Some(signature);
                }
            }
            Step::Close => self.close(out),
            Step::End { ending, usage } => {
                let answer = Answer { ending, usage, ..Answer::default() };
                let output = std::mem::take(&mut self.output);
                let mut response = self.response.take();
                let status = complete(&mut response, answer, output, self.has_refused);
                self.event(out, &format!("response.{status}"), json!({"response": response}));
            }
        }
    }

    fn open(&mut self, item: Item, out: &mut Vec<u8>) {
        let part = match item {
            Item::Text => Part::text(""),
            Item::Refusal => {
                self.has_refused = true;
                Part::Refusal(String::new())
            }
            Item::Thought { is_redacted } => Part::Thought(Thought { is_redacted, ..Thought::default() }),
            Item::Call { id, name } => Part::Call(ToolUse { id, name, arguments: String::new() }),
        };
        let mut item = self.item(&part);
        match &part {
            Part::Text(_) | Part::Refusal(_) => item["content"] = json!([]),
            Part::Call(_) if item["type"] == "custom_tool_call" => item["input"] = json!(""),
            _ => {}
        }
        self.item_id = item["id"].as_str().unwrap_or_default().to_owned();
        if item.get("status").is_some() {
            item["status"] = json!("in_progress");
        }
        let index = self.output.len();
        self.event(out, "response.output_item.added", json!({"output_index": index, "item": item}));
        if matches!(part, Part::Text(_) | Part::Refusal(_)) {
            self.content(out, "response.content_part.added", json!({"part": write_content(&part)}), &part);
        }
        self.open = Some(part);
    }

    fn more(&mut self, text: String, out: &mut Vec<u8>) {
        let Some(mut part) = self.open.take() else { return };
        match &mut part {
            Part::Text(whole) => {
                whole.push_str(&text);
                let fields = json!({"delta": text, "logprobs": []});
                self.content(out, "response.output_text.delta", fields, &part);
            }
            Part::Refusal(whole) => {
                whole.push_str(&text);
                self.content(out, "response.refusal.delta", json!({"delta": text}), &part);
            }
            Part::Thought(thought) => {
                let is_first = thought.text.is_empty();
                thought.text.push_str(&text);
                if is_first {
                    let fields = json!({"part": {"type": "summary_text", "text": ""}});
                    self.content(out, "response.reasoning_summary_part.added", fields, &part);
                }
                self.content(out, "response.reasoning_summary_text.delta", json!({"delta": text}), &part);
            }
            Part::Call(call) => {
                call.arguments.push_str(&text);
                // The other forms are only whole at the end.
                if self.context.origin(&call.name).kind == ToolKind::Function {
                    let name = "response.function_call_arguments.delta";
                    self.content(out, name, json!({"delta": text}), &part);
                }
            }
            _ => {}
        }
        self.open = Some(part);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(part) = self.open.take() else { return };
        let item = self.item(&part);
        match &part {
            Part::Text(text) => {
                let fields = json!({"text": text, "logprobs": []});
                self.content(out, "response.output_text.done", fields, &part);
                self.content(out, "response.content_part.done", json!({"part": write_content(&part)}), &part);
            }
            Part::Refusal(text) => {
                self.content(out, "response.refusal.done", json!({"refusal": text}), &part);
                self.content(out, "response.content_part.done", json!({"part": write_content(&part)}), &part);
            }
            Part::Thought(thought) if !thought.text.is_empty() => {
                let text = &thought.text;
                self.content(out, "response.reasoning_summary_text.done", json!({"text": text}), &part);
                let fields = json!({"part": {"type": "summary_text", "text": text}});
                self.content(out, "response.reasoning_summary_part.done", fields, &part);
            }
            Part::Call(call) => match self.context.origin(&call.name).kind {
                ToolKind::Function => {
                    let fields = json!({"name": item["name"], "arguments": call.arguments});
                    self.content(out, "response.function_call_arguments.done", fields, &part);
                }
                ToolKind::Custom => {
                    let input = item["input"].clone();
                    let name = "response.custom_tool_call_input.delta";
                    self.content(out, name, json!({"delta": input}), &part);
                    self.content(out, "response.custom_tool_call_input.done", json!({"input": input}), &part);
                }
                ToolKind::ToolSearch | ToolKind::LocalShell => {}
            },
            _ => {}
        }
        let index = self.output.len();
        self.event(out, "response.output_item.done", json!({"output_index": index, "item": item}));
        self.output.push(item);
    }

    /// The item under way.
    fn item(&self, part: &Part) -> Value {
        write_item(part, &self.id, self.output.len(), &self.context).unwrap_or_default()
    }

    /// An event inside an item.
    fn content(&mut self, out: &mut Vec<u8>, name: &str, fields: Value, part: &Part) {
        let mut event = json!({"item_id": self.item_id, "output_index": self.output.len()});
        match part {
            Part::Text(_) | Part::Refusal(_) => event["content_index"] = json!(0),
            Part::Thought(_) => event["summary_index"] = json!(0),
            _ => {}
        }
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        self.event(out, name, event);
    }

    fn event(&mut self, out: &mut Vec<u8>, name: &str, fields: Value) {
        let mut event = json!({"type": name, "sequence_number": self.number});
        self.number += 1;
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        sse::event(out, name, &event);
    }
}
