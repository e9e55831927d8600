//! A messages request: the conversation as blocks, with a separate system prompt.

use std::{borrow::Cow, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, json};

use crate::Model;
use rollout_core::message::{Content, Message, Role, ToolDef};

/// The server requires a limit, so this one applies if none is set.
const DEFAULT_MAX_TOKENS: u64 = 4096;

/// The parts of a request, borrowed.
pub(in crate::client) struct Request<'a> {
    pub(in crate::client) model: &'a Model,
    pub(in crate::client) messages: &'a [Arc<Message>],
    pub(in crate::client) tools: &'a [ToolDef],
    pub(in crate::client) extra_body: &'a Map<String, Value>,
    pub(in crate::client) stream: bool,
}

#[derive(Serialize)]
struct Turn<'a> {
    role: &'static str,
    content: Vec<Block<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
    },
    Image {
        source: Value,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: Value,
    },
    ToolResult {
        tool_use_id: &'a str,
        content: Vec<Block<'a>>,
    },
    #[serde(untagged)]
    AsItIs(&'a Value),
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl Serialize for Request<'_> {
    /// The layers are those of the chat API: the fields of this client, the sampling arguments, the extra body of the
    /// client, and an `extra_body` among the sampling arguments.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sampling = &self.model.sampling;
        let nothing = Map::new();
        let closest = sampling.get("extra_body").and_then(Value::as_object).unwrap_or(&nothing);
        let overridden = |key: &str| self.extra_body.contains_key(key) || closest.contains_key(key);
        let given = |key: &str| sampling.get(key).filter(|value| !value.is_null());

        let mut body = serializer.serialize_map(None)?;
        if !overridden("model") {
            body.serialize_entry("model", &self.model.name)?;
        }
        if !overridden("max_tokens") {
            let limit = given("max_completion_tokens").or(given("max_tokens")).cloned();
            body.serialize_entry("max_tokens", &limit.unwrap_or(json!(DEFAULT_MAX_TOKENS)))?;
        }
        let system = instructions(self.messages);
        if !system.is_empty() && !overridden("system") {
            body.serialize_entry("system", &system)?;
        }
        if !overridden("messages") {
            body.serialize_entry("messages", &turns(self.messages))?;
        }
        if !self.tools.is_empty() && !overridden("tools") {
            let tools: Vec<_> = self.tools.iter().map(Tool::from).collect();
            body.serialize_entry("tools", &tools)?;
        }
        for (key, value) in sampling {
            let (key, value) = match key.as_str() {
                "max_tokens" | "max_completion_tokens" | "extra_body" | "model" | "messages" => continue,
                "system" if !system.is_empty() => continue,
                "stop" => ("stop_sequences", stop_sequences(value)),
                "tool_choice" => ("tool_choice", tool_choice(value)),
                key => (key, Cow::Borrowed(value)),
            };
            if !value.is_null() && !overridden(key) {
                body.serialize_entry(key, &value)?;
            }
        }
        if self.stream && !overridden("stream") && !sampling.contains_key("stream") {
            body.serialize_entry("stream", &true)?;
        }
        for (key, value) in self.extra_body.iter().filter(|(key, _)| !closest.contains_key(*key)) {
            body.serialize_entry(key, value)?;
        }
        for (key, value) in closest {
            body.serialize_entry(key, value)?;
        }
        body.end()
    }
}

impl<'a> From<&'a ToolDef> for Tool<'a> {
    fn from(tool: &'a ToolDef) -> Self {
        let ToolDef { name, description, parameters, strict } = tool;
        Self { name, description, input_schema: parameters, strict: *strict }
    }
}

fn is_instruction(role: &Role) -> bool {
    matches!(role, Role::System) || matches!(role, Role::Other(role) if role == "developer")
}

fn instructions(messages: &[Arc<Message>]) -> Vec<Block<'_>> {
    messages
        .iter()
        .filter(|message| is_instruction(&message.role))
        .flat_map(|message| blocks(message))
        .collect()
}

/// The conversation without its system prompt. The results of all calls of a turn must be in one message.
fn turns(messages: &[Arc<Message>]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    let mut answering = false;
    for message in messages.iter().filter(|message| !is_instruction(&message.role)) {
        let role = if message.role == Role::Assistant { "assistant" } else { "user" };
        let mut content = Vec::new();
        if message.role == Role::Tool {
            let tool_use_id = message.tool_call_id.as_deref().unwrap_or_default();
            content.push(Block::ToolResult { tool_use_id, content: blocks(message) });
        } else {
            content.extend(message.thinking_blocks.iter().flat_map(list).map(Block::AsItIs));
            content.extend(blocks(message));
            content.extend(message.tool_calls.iter().map(|call| Block::ToolUse {
                id: &call.id,
                name: &call.name,
                input: input(&call.arguments),
            }));
        }
        // The server rejects messages without content.
        if content.is_empty() {
            continue;
        }
        match turns.last_mut() {
            Some(last) if answering && message.role == Role::Tool => last.content.extend(content),
            _ => turns.push(Turn { role, content }),
        }
        answering = message.role == Role::Tool;
    }
    turns
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

/// The content of a message, without empty texts: the server rejects those.
fn blocks(message: &Message) -> Vec<Block<'_>> {
    let blocks = match &message.content {
        None => Vec::new(),
        Some(Content::Text(text)) => vec![Block::Text { text }],
        Some(Content::Parts(parts)) => parts.iter().map(block).collect(),
    };
    blocks.into_iter().filter(|block| !matches!(block, Block::Text { text: "" })).collect()
}

fn block(part: &Value) -> Block<'_> {
    let image = || {
        let url = match part.get("image_url")? {
            Value::String(url) => url,
            image => image.get("url")?.as_str()?,
        };
        let data = || url.strip_prefix("data:")?.split_once(";base64,");
        let source = match data() {
            Some((media_type, data)) => json!({"type": "base64", "media_type": media_type, "data": data}),
            None => json!({"type": "url", "url": url}),
        };
        Some(Block::Image { source })
    };
    match part.get("type").and_then(Value::as_str) {
        Some("image_url") => image().unwrap_or(Block::AsItIs(part)),
        Some("text") if part.get("text").and_then(Value::as_str) == Some("") => Block::Text { text: "" },
        _ => Block::AsItIs(part),
    }
}

/// The arguments of a call. The server accepts only objects, so malformed arguments are wrapped in one.
fn input(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(input @ Value::Object(_)) => input,
        _ if arguments.trim().is_empty() => json!({}),
        _ => json!({"INVALID_JSON": arguments}),
    }
}

fn stop_sequences(stop: &Value) -> Cow<'_, Value> {
    match stop {
        Value::String(_) => Cow::Owned(json!([stop])),
        _ => Cow::Borrowed(stop),
    }
}

/// The tool choice, converted from the chat API.
fn tool_choice(choice: &Value) -> Cow<'_, Value> {
    match choice {
        Value::String(word) => {
            Cow::Owned(json!({"type": if word == "required" { "any" } else { word.as_str() }}))
        }
        _ => match choice.get("function").and_then(|function| function.get("name")) {
            Some(name) => Cow::Owned(json!({"type": "tool", "name": name})),
            None => Cow::Borrowed(choice),
        },
    }
}
