//! Events of Responses.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Assembled;

/// The response as far as it came.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    response: Option<Value>,
    items: BTreeMap<u64, Value>,
    is_complete: bool,
}

impl Assembly {
    pub(super) fn add(&mut self, event: &Value) {
        let index = event.get("output_index").and_then(Value::as_u64).unwrap_or_default();
        let delta = event.get("delta").and_then(Value::as_str).unwrap_or_default();
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        let place = |key: &str| event.get(key).and_then(Value::as_u64).unwrap_or_default();
        match kind {
            "response.output_item.added" | "response.output_item.done" => {
                if let Some(item) = event.get("item") {
                    self.items.insert(index, item.clone());
                }
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                let kind = if kind.contains("reasoning") { "reasoning_text" } else { "output_text" };
                self.add_text(index, "content", place("content_index"), kind, "text", delta);
            }
            "response.refusal.delta" => {
                self.add_text(index, "content", place("content_index"), "refusal", "refusal", delta);
            }
            "response.reasoning_summary_text.delta" => {
                self.add_text(index, "summary", place("summary_index"), "summary_text", "text", delta);
            }
            "response.function_call_arguments.delta" => self.add_field(index, "arguments", delta),
            "response.custom_tool_call_input.delta" => self.add_field(index, "input", delta),
            "error" => {
                let response = self.response.get_or_insert_with(|| json!({}));
                if response.is_object() {
                    response["error"] = event.get("error").unwrap_or(event).clone();
                }
            }
            kind => {
                if let Some(response) = event.get("response").filter(|response| response.is_object()) {
                    self.response = Some(response.clone());
                }
                self.is_complete |= ["response.completed", "response.incomplete"].contains(&kind);
            }
        }
    }

    pub(super) fn finish(self) -> Assembled {
        let mut body = self.response.unwrap_or_else(|| json!({"object": "response"}));
        // Some servers leave the output out of the last event, and a cut stream has no last event.
        let has_output = body["output"].as_array().is_some_and(|output| !output.is_empty());
        if !has_output {
            body["output"] = self.items.into_values().collect();
        }
        Assembled { body, is_complete: self.is_complete }
    }

    fn add_field(&mut self, index: u64, key: &str, more: &str) {
        let Some(item) = self.items.get_mut(&index).and_then(Value::as_object_mut) else { return };
        match item.get_mut(key) {
            Some(Value::String(text)) => text.push_str(more),
            _ => {
                item.insert(key.to_owned(), json!(more));
            }
        }
    }

    /// Adds to a part of an item, which may be new. Parts come in order, so a new one is the next.
    fn add_text(&mut self, index: u64, list: &str, place: u64, kind: &str, key: &str, more: &str) {
        let Some(item) = self.items.get_mut(&index).and_then(Value::as_object_mut) else { return };
        let Some(parts) = item.entry(list).or_insert_with(|| json!([])).as_array_mut() else { return };
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        if place >= parts.len() {
            parts.push(json!({"type": kind, key: ""}));
        }
        let place = place.min(parts.len() - 1);
        if let Some(Value::String(text)) = parts[place].get_mut(key) {
            text.push_str(more);
        }
    }
}
