//! Converts messages and tools to Inspect's form.
//!
//! Inspect rejects a whole log for one field of the wrong type, so all data of models, tools and servers is checked.

use serde_json::{Map, Value, json};

use crate::{
    export::chat::{self, Part},
    saved::Conversation,
};
use rollout_core::message::{Content, Message, Role, ToolCall, ToolDef};

/// The types of a JSON schema.
const TYPES: [&str; 7] = ["string", "integer", "number", "boolean", "array", "object", "null"];

/// Converts all messages of a conversation. Their ids are `sample` and their index.
pub(super) fn messages(conversation: &Conversation, sample: &str, model: &str) -> Vec<Value> {
    let prompt = conversation.prompt.len();
    let mut calls: &[ToolCall] = &[];
    let mut messages = Vec::with_capacity(prompt + conversation.completion.len());
    for (place, message) in conversation.messages().enumerate() {
        let mut value = one(message, place >= prompt);
        value.insert("id".to_owned(), format!("{sample}-{place}").into());
        match &message.role {
            Role::Assistant => {
                calls = &message.tool_calls;
                value.insert("model".to_owned(), model.into());
            }
            Role::Tool => {
                let asked = calls.iter().find(|call| Some(&call.id) == message.tool_call_id.as_ref());
                value.insert("function".to_owned(), asked.map(|call| call.name.as_str()).into());
            }
            _ => {}
        }
        messages.push(value.into());
    }
    messages
}

fn one(message: &Message, is_completion: bool) -> Map<String, Value> {
    let role = match &message.role {
        Role::System => "system",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Text if is_completion => "assistant",
        Role::Other(role) if role == "developer" => "system",
        Role::User | Role::Text | Role::Other(_) => "user",
    };
    let mut value = Map::new();
    value.insert("role".to_owned(), role.into());
    value.insert("content".to_owned(), content(message));
    if role == "assistant" {
        value.insert("source".to_owned(), if is_completion { "generate" } else { "input" }.into());
        if !message.tool_calls.is_empty() {
            value.insert("tool_calls".to_owned(), message.tool_calls.iter().map(call).collect());
        }
    } else if !is_completion {
        value.insert("source".to_owned(), "input".into());
    }
    if role == "tool" {
        value.insert("tool_call_id".to_owned(), message.tool_call_id.clone().into());
    }
    let mut beside = message.extra.clone();
    if let Role::Other(role) = &message.role {
        beside.insert("role".to_owned(), role.as_str().into());
    }
    if !beside.is_empty() {
        value.insert("metadata".to_owned(), beside.into());
    }
    value
}

fn content(message: &Message) -> Value {
    let said = match &message.content {
        Some(Content::Parts(_)) => message.content.as_ref().map(result).unwrap_or_default(),
        Some(Content::Text(text)) => text.as_str().into(),
        None => "".into(),
    };
    let Some(reasoning) = &message.reasoning_content else {
        return said;
    };
    let mut parts = vec![json!({"type": "reasoning", "reasoning": reasoning})];
    match said {
        Value::Array(said) => parts.extend(said),
        Value::String(text) if text.is_empty() => {}
        text => parts.push(json!({"type": "text", "text": text})),
    }
    parts.into()
}

/// Converts content, also that of a tool result.
pub(super) fn result(content: &Content) -> Value {
    match content {
        Content::Text(text) => text.as_str().into(),
        Content::Parts(_) => {
            let part = |part| match part {
                Part::Text(text) => json!({"type": "text", "text": text}),
                Part::Image(url) => json!({"type": "image", "image": url}),
            };
            chat::parts(content).into_iter().map(part).collect()
        }
    }
}

fn call(call: &ToolCall) -> Value {
    let mut value =
        json!({"id": call.id, "function": call.name, "type": "function", "arguments": arguments(call)});
    if chat::arguments(call).is_none() {
        let is_object = serde_json::from_str::<serde_json::Map<String, Value>>(&call.arguments).is_ok();
        value["parse_error"] = match is_object {
            true => "an integer in the arguments has more than 64 bits",
            false => "the arguments are not a JSON object",
        }
        .into();
    }
    value
}

/// Returns the arguments of a call. Arguments that are not an object are kept as text.
pub(super) fn arguments(call: &ToolCall) -> Value {
    match chat::arguments(call) {
        Some(arguments) => arguments.into(),
        None => json!({"arguments": call.arguments}),
    }
}

/// Converts a tool definition.
pub(super) fn tool(tool: &ToolDef) -> Value {
    let mut parameters = match schema(&tool.parameters) {
        Value::Object(parameters) => parameters,
        _ => Map::new(),
    };
    parameters.retain(|key, _| ["properties", "required", "additionalProperties"].contains(&key.as_str()));
    parameters.insert("type".to_owned(), "object".into());
    parameters.entry("properties").or_insert_with(|| json!({}));
    json!({"name": tool.name, "description": tool.description, "parameters": parameters})
}

/// Keeps the parts of a JSON schema that Inspect supports.
fn schema(schema: &Value) -> Value {
    let named = |value: &Value| value.as_str().is_some_and(|kind| TYPES.contains(&kind));
    let texts = |value: &Value| value.as_array().is_some_and(|texts| texts.iter().all(Value::is_string));
    let mut kept = Map::new();
    for (key, value) in schema.as_object().into_iter().flatten() {
        let value = match (key.as_str(), value) {
            ("type", Value::String(_)) if named(value) => value.clone(),
            ("type", Value::Array(kinds)) if kinds.iter().all(named) => value.clone(),
            ("description" | "format" | "pattern", Value::String(_)) => value.clone(),
            ("enum", Value::Array(_)) | ("default", _) | ("additionalProperties", Value::Bool(_)) => {
                value.clone()
            }
            ("required", _) if texts(value) => value.clone(),
            ("items", Value::Object(_)) => self::schema(value),
            ("properties", Value::Object(fields)) => {
                fields.iter().map(|(name, field)| (name.clone(), self::schema(field))).collect()
            }
            ("anyOf", Value::Array(choices)) => choices.iter().map(self::schema).collect(),
            _ => continue,
        };
        kept.insert(key.clone(), value);
    }
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: Message) -> Value {
        one(&message, true).into()
    }

    #[test]
    fn reasoning_comes_before_text() {
        let message = Message { reasoning_content: Some("hm".into()), ..Message::assistant("4") };
        assert_eq!(
            said(message)["content"],
            json!([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "4"}])
        );
    }

    #[test]
    fn arguments_that_are_not_an_object_are_kept_as_text_with_an_error() {
        let message = Message {
            content: None,
            tool_calls: vec![
                ToolCall::new("1", "add", "{\"x\": "),
                ToolCall::new("2", "add", "{\"x\": 1}"),
                ToolCall::new("3", "add", "{\"x\": 12345678901234567890123}"),
            ],
            ..Message::assistant("")
        };
        assert_eq!(
            said(message)["tool_calls"],
            json!([
                {
                    "id": "1", "function": "add", "type": "function", "arguments": {"arguments": "{\"x\": "},
                    "parse_error": "the arguments are not a JSON object",
                },
                {"id": "2", "function": "add", "type": "function", "arguments": {"x": 1}},
                {
                    "id": "3", "function": "add", "type": "function",
                    "arguments": {"arguments": "{\"x\": 12345678901234567890123}"},
                    "parse_error": "an integer in the arguments has more than 64 bits",
                },
            ])
        );
    }

    #[test]
    fn only_valid_parts_of_a_schema_are_kept() {
        let parameters = json!({
            "type": "object", "$defs": {}, "required": ["x", 1], "additionalProperties": false,
            "properties": {
                "x": {"type": "whole", "description": 4, "enum": "no"},
                "y": {"type": ["array", "null"], "items": {"type": "string", "minLength": "a"}, "title": "Y"},
                "z": true,
            },
        });
        let def = ToolDef { name: "f".into(), description: "F.".into(), parameters, strict: None };
        assert_eq!(
            tool(&def)["parameters"],
            json!({
                "type": "object", "additionalProperties": false,
                "properties": {"x": {}, "y": {"type": ["array", "null"], "items": {"type": "string"}}, "z": {}},
            })
        );
    }
}
