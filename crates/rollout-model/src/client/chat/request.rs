//! A chat completion request, serialized directly from the conversation.

use std::sync::Arc;

use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq as _},
};
use serde_json::{Map, Value, json};

use crate::{Model, client::Habits};
use rollout_core::message::{Message, Role, ToolCall, ToolDef};

/// The parts of a request, borrowed.
pub(in crate::client) struct Request<'a> {
    pub(in crate::client) model: &'a Model,
    pub(in crate::client) messages: &'a [Arc<Message>],
    pub(in crate::client) tools: &'a [ToolDef],
    pub(in crate::client) extra_body: &'a Map<String, Value>,
    pub(in crate::client) stream: bool,
    pub(in crate::client) token_ids: bool,
    pub(in crate::client) habits: Habits,
    /// The tokens of the prompt, for servers that accept them instead of messages.
    pub(in crate::client) tokens: Option<&'a [u32]>,
}

/// A conversation in the form of a request.
pub(in crate::client) fn messages_value(messages: &[Arc<Message>], habits: Habits) -> Value {
    json!(Conversation { messages, reasoning: habits.reasoning() })
}

/// Tools in the form of a request.
pub(in crate::client) fn tools_value(tools: &[ToolDef]) -> Value {
    json!(Tools(tools))
}

impl Serialize for Request<'_> {
    /// Later layers replace earlier ones: the fields of this client, the sampling arguments, the extra body of the
    /// client, and an `extra_body` among the sampling arguments. No field is written twice.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sampling = &self.model.sampling;
        let nothing = Map::new();
        let closest = sampling.get("extra_body").and_then(Value::as_object).unwrap_or(&nothing);
        let overridden = |key: &str| self.extra_body.contains_key(key) || closest.contains_key(key);
        let limit = self.habits.token_limit();

        let mut body = serializer.serialize_map(None)?;
        if !overridden("model") {
            body.serialize_entry("model", &self.model.name)?;
        }
        if !overridden("messages") {
            let reasoning = self.habits.reasoning();
            body.serialize_entry("messages", &Conversation { messages: self.messages, reasoning })?;
        }
        if let Some(tokens) = self.tokens {
            body.serialize_entry("tokens", tokens)?;
        }
        if !self.tools.is_empty() && !overridden("tools") {
            body.serialize_entry("tools", &Tools(self.tools))?;
        }
        for (key, value) in sampling {
            // Both names of the limit are one field. The newer name takes precedence.
            let key = match key.as_str() {
                "max_tokens" if sampling.get("max_completion_tokens").is_some_and(|v| !v.is_null()) => {
                    continue;
                }
                "max_tokens" | "max_completion_tokens" => {
                    if overridden("max_tokens") || overridden("max_completion_tokens") {
                        continue;
                    }
                    limit
                }
                "extra_body" | "model" | "messages" | "tokens" => continue,
                key => key,
            };
            if !value.is_null() && !overridden(key) {
                body.serialize_entry(key, value)?;
            }
        }
        let mut default = |wanted: bool, key: &str, value: Value| match wanted
            && !overridden(key)
            && !sampling.contains_key(key)
        {
            true => body.serialize_entry(key, &value),
            false => Ok(()),
        };
        default(self.stream, "stream", json!(true))?;
        default(self.stream, "stream_options", json!({"include_usage": true}))?;
        default(self.token_ids, "logprobs", json!(true))?;
        default(self.token_ids, "return_token_ids", json!(true))?;
        for (key, value) in self.extra_body.iter().filter(|(key, _)| !closest.contains_key(*key)) {
            body.serialize_entry(key, value)?;
        }
        for (key, value) in closest {
            body.serialize_entry(key, value)?;
        }
        body.end()
    }
}

struct Conversation<'a> {
    messages: &'a [Arc<Message>],
    reasoning: &'static str,
}

impl Serialize for Conversation<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.messages.len()))?;
        for message in self.messages {
            list.serialize_element(&Wire { message, reasoning: self.reasoning })?;
        }
        list.end()
    }
}

struct Wire<'a> {
    message: &'a Message,
    reasoning: &'static str,
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = self.message;
        // Text without a role appears only in records.
        let role = if message.role == Role::Text { Role::User.as_str() } else { message.role.as_str() };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", role)?;
        map.serialize_entry("content", &message.content)?;
        if let Some(reasoning) = &message.reasoning_content
            && !message.extra.contains_key(self.reasoning)
        {
            map.serialize_entry(self.reasoning, reasoning)?;
        }
        if let Some(blocks) = &message.thinking_blocks {
            map.serialize_entry("thinking_blocks", blocks)?;
        }
        if !message.tool_calls.is_empty() {
            map.serialize_entry("tool_calls", &Calls(&message.tool_calls))?;
        }
        if let Some(call) = &message.tool_call_id {
            map.serialize_entry("tool_call_id", call)?;
        }
        for (key, value) in &message.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

struct Calls<'a>(&'a [ToolCall]);

impl Serialize for Calls<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Call<'a> {
            id: &'a str,
            r#type: &'static str,
            function: Function<'a>,
            #[serde(flatten)]
            extra: &'a Map<String, Value>,
        }
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            arguments: &'a str,
        }
        serializer.collect_seq(self.0.iter().map(|call| Call {
            id: &call.id,
            r#type: "function",
            function: Function { name: &call.name, arguments: &call.arguments },
            extra: &call.extra,
        }))
    }
}

struct Tools<'a>(&'a [ToolDef]);

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Tool<'a> {
            r#type: &'static str,
            function: &'a ToolDef,
        }
        serializer.collect_seq(self.0.iter().map(|function| Tool { r#type: "function", function }))
    }
}
