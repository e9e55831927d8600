//! Chunks of Chat Completions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Assembled, join_fields};

/// The response as far as it came.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    body: Map<String, Value>,
    choices: BTreeMap<u64, Choice>,
}

#[derive(Debug, Default)]
struct Choice {
    message: Map<String, Value>,
    calls: Vec<(Option<u64>, Value)>,
    rest: Map<String, Value>,
}

impl Assembly {
    pub(super) fn add(&mut self, event: &Value) {
        let Some(chunk) = event.as_object() else { return };
        for (key, value) in chunk {
            if key != "choices" && (!value.is_null() || !self.body.contains_key(key)) {
                self.body.insert(key.clone(), value.clone());
            }
        }
        for piece in chunk.get("choices").and_then(Value::as_array).into_iter().flatten() {
            let index = piece.get("index").and_then(Value::as_u64).unwrap_or_default();
            let choice = self.choices.entry(index).or_default();
            let Some(fields) = piece.as_object() else { continue };
            if let Some(delta) = fields.get("delta").and_then(Value::as_object) {
                choice.add_delta(delta);
            }
            let rest = fields.iter().filter(|(key, _)| !["delta", "index"].contains(&key.as_str()));
            let rest: Map<String, Value> = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
            join_fields(&mut choice.rest, &rest, &["finish_reason", "stop_reason", "prompt_token_ids"]);
        }
    }

    pub(super) fn finish(self) -> Assembled {
        let mut body = self.body;
        if body.contains_key("error") && self.choices.is_empty() {
            return Assembled { body: Value::Object(body), is_complete: false };
        }
        let mut is_complete = !self.choices.is_empty();
        let mut choices = Vec::new();
        for (index, choice) in self.choices {
            let finish_reason = choice.rest.get("finish_reason").cloned().unwrap_or_default();
            is_complete &= !finish_reason.is_null();
            let mut message = choice.message;
            // A stream opens with an empty text, whatever comes after it; a whole response has null there.
            match message.get("content") {
                Some(Value::String(text)) if text.is_empty() => {
                    message.insert("content".to_owned(), Value::Null);
                }
                Some(_) => {}
                None => {
                    message.insert("content".to_owned(), Value::Null);
                }
            }
            if !choice.calls.is_empty() {
                let calls = choice.calls.into_iter().map(|(_, call)| call);
                message.insert("tool_calls".to_owned(), calls.collect());
            }
            let mut whole = choice.rest;
            whole.insert("index".to_owned(), json!(index));
            whole.insert("message".to_owned(), Value::Object(message));
            whole.insert("finish_reason".to_owned(), finish_reason);
            choices.push(Value::Object(whole));
        }
        body.insert("object".to_owned(), json!("chat.completion"));
        body.insert("choices".to_owned(), Value::Array(choices));
        Assembled { body: Value::Object(body), is_complete }
    }
}

impl Choice {
    fn add_delta(&mut self, delta: &Map<String, Value>) {
        let said = delta.iter().filter(|(key, _)| *key != "tool_calls");
        let said: Map<String, Value> = said.map(|(key, value)| (key.clone(), value.clone())).collect();
        join_fields(&mut self.message, &said, &["role"]);
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.add_call(call);
        }
    }

    /// Servers number the calls, or name them by id, or both; some give every call the number 0.
    fn add_call(&mut self, piece: &Value) {
        let index = piece.get("index").and_then(Value::as_u64);
        let id = piece.get("id").and_then(Value::as_str).unwrap_or_default();
        let found = match index {
            Some(_) => self.calls.iter_mut().rev().find(|(place, _)| *place == index),
            None => self.calls.last_mut(),
        };
        let known = |call: &Value| call.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        match found {
            Some((_, call)) if id.is_empty() || known(call).is_empty() || known(call) == id => {
                let (Some(call), Some(piece)) = (call.as_object_mut(), piece.as_object()) else { return };
                let mut piece = piece.clone();
                piece.shift_remove("index");
                for key in ["id", "type"] {
                    if piece.get(key).and_then(Value::as_str).is_none_or(str::is_empty) {
                        piece.shift_remove(key);
                    }
                }
                if let Some(function) = piece.get_mut("function").and_then(Value::as_object_mut) {
                    let name = call.get("function").and_then(|function| function.get("name")?.as_str());
                    if name.is_some_and(|name| !name.is_empty()) {
                        function.shift_remove("name");
                    }
                }
                join_fields(call, &piece, &["id", "type"]);
            }
            _ => {
                let mut call = piece.clone();
                if let Some(call) = call.as_object_mut() {
                    call.shift_remove("index");
                }
                self.calls.push((index, call));
            }
        }
    }
}
