//! Events of Messages.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Assembled, join_fields};

/// The response as far as it came.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    message: Map<String, Value>,
    blocks: BTreeMap<u64, Block>,
    is_complete: bool,
}

#[derive(Debug, Default)]
struct Block {
    fields: Map<String, Value>,
    arguments: String,
}

impl Assembly {
    pub(super) fn add(&mut self, event: &Value) {
        let index = event.get("index").and_then(Value::as_u64).unwrap_or_default();
        let object = |key: &str| event.get(key).and_then(Value::as_object);
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_start" => self.message = object("message").cloned().unwrap_or_default(),
            "content_block_start" => {
                let fields = object("content_block").cloned().unwrap_or_default();
                self.blocks.insert(index, Block { fields, arguments: String::new() });
            }
            "content_block_delta" => {
                let (Some(delta), Some(block)) = (object("delta"), self.blocks.get_mut(&index)) else {
                    return;
                };
                block.add(delta);
            }
            "message_delta" => {
                if let Some(delta) = object("delta") {
                    let said = delta.iter().filter(|(_, value)| !value.is_null());
                    self.message.extend(said.map(|(key, value)| (key.clone(), value.clone())));
                }
                if let Some(usage) = object("usage") {
                    let whole = self.message.entry("usage").or_insert_with(|| json!({}));
                    if let Some(whole) = whole.as_object_mut() {
                        let counts = usage.iter().filter(|(_, count)| !count.is_null());
                        whole.extend(counts.map(|(key, value)| (key.clone(), value.clone())));
                    }
                }
            }
            "message_stop" => self.is_complete = true,
            "error" => {
                self.message.insert("error".to_owned(), event.get("error").cloned().unwrap_or_default());
            }
            _ => {}
        }
    }

    pub(super) fn finish(self) -> Assembled {
        let mut body = self.message;
        let content: Vec<Value> = self.blocks.into_values().map(Block::finish).collect();
        body.insert("content".to_owned(), Value::Array(content));
        Assembled { body: Value::Object(body), is_complete: self.is_complete }
    }
}

impl Block {
    fn add(&mut self, delta: &Map<String, Value>) {
        match delta.get("type").and_then(Value::as_str).unwrap_or_default() {
            "input_json_delta" => {
                self.arguments
                    .push_str(delta.get("partial_json").and_then(Value::as_str).unwrap_or_default());
            }
            "citations_delta" => {
                let citations = self.fields.entry("citations").or_insert_with(|| json!([]));
                if citations.is_null() {
                    *citations = json!([]);
                }
                if let (Some(list), Some(citation)) = (citations.as_array_mut(), delta.get("citation")) {
                    list.push(citation.clone());
                }
            }
            _ => {
                let mut more = delta.clone();
                more.shift_remove("type");
                join_fields(&mut self.fields, &more, &[]);
            }
        }
    }

    fn finish(mut self) -> Value {
        if !self.arguments.is_empty() {
            // What is cut off at the limit of tokens is not JSON, and kept as the text that it is.
            let input = serde_json::from_str(&self.arguments).unwrap_or(Value::String(self.arguments));
            self.fields.insert("input".to_owned(), input);
        }
        Value::Object(self.fields)
    }
}
