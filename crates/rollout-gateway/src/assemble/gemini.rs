//! Chunks of generateContent.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Assembled, join_fields};

/// The response as far as it came.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    body: Map<String, Value>,
    candidates: BTreeMap<u64, Candidate>,
}

#[derive(Debug, Default)]
struct Candidate {
    role: Option<Value>,
    parts: Vec<Value>,
    rest: Map<String, Value>,
}

impl Assembly {
    pub(super) fn add(&mut self, event: &Value) {
        let Some(chunk) = event.as_object() else { return };
        for (key, value) in chunk {
            match (key.as_str(), self.body.get_mut(key), value) {
                ("candidates", ..) | (_, _, Value::Null) => {}
                // The later counts are the newer ones.
                ("usageMetadata", Some(Value::Object(whole)), Value::Object(more)) => {
                    whole.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
                }
                (_, _, value) => {
                    self.body.insert(key.clone(), value.clone());
                }
            }
        }
        for piece in chunk.get("candidates").and_then(Value::as_array).into_iter().flatten() {
            let index = piece.get("index").and_then(Value::as_u64).unwrap_or_default();
            self.candidates.entry(index).or_default().add(piece);
        }
    }

    pub(super) fn finish(self) -> Assembled {
        let mut body = self.body;
        let is_blocked =
            body.get("promptFeedback").is_some_and(|feedback| feedback.get("blockReason").is_some());
        let has_ended = |candidate: &Candidate| candidate.rest.contains_key("finishReason");
        let is_complete =
            is_blocked || (!self.candidates.is_empty() && self.candidates.values().all(has_ended));
        if !self.candidates.is_empty() {
            let candidates = self.candidates.into_iter().map(|(index, candidate)| candidate.finish(index));
            body.insert("candidates".to_owned(), candidates.collect());
        }
        Assembled { body: Value::Object(body), is_complete }
    }
}

impl Candidate {
    fn add(&mut self, piece: &Value) {
        let Some(fields) = piece.as_object() else { return };
        let rest = fields.iter().filter(|(key, _)| !["content", "index"].contains(&key.as_str()));
        let rest: Map<String, Value> = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
        join_fields(
            &mut self.rest,
            &rest,
            &["finishReason", "finishMessage", "safetyRatings", "avgLogprobs"],
        );
        if let Some(role) = piece.pointer("/content/role") {
            self.role = Some(role.clone());
        }
        for part in piece.pointer("/content/parts").and_then(Value::as_array).into_iter().flatten() {
            self.add_part(part);
        }
    }

    /// Texts of one kind that follow each other are one text.
    fn add_part(&mut self, part: &Value) {
        let Some(more) = part.get("text").and_then(Value::as_str) else {
            return self.parts.push(part.clone());
        };
        let is_text = |part: &Value| part.get("text").is_some_and(Value::is_string);
        let is_plain = |part: &Value| part.get("thoughtSignature").is_none();
        match self.parts.last_mut() {
            Some(last) if is_text(last) && is_plain(last) && last.get("thought") == part.get("thought") => {
                if let Some(Value::String(whole)) = last.get_mut("text") {
                    whole.push_str(more);
                }
                if let Some(signature) = part.get("thoughtSignature") {
                    last["thoughtSignature"] = signature.clone();
                }
            }
            _ if more.is_empty() && is_plain(part) => {}
            _ => self.parts.push(part.clone()),
        }
    }

    fn finish(self, index: u64) -> Value {
        let mut candidate = self.rest;
        let role = self.role.unwrap_or_else(|| json!("model"));
        candidate.insert("content".to_owned(), json!({"role": role, "parts": self.parts}));
        candidate.insert("index".to_owned(), json!(index));
        Value::Object(candidate)
    }
}
