//! The messages between a model, its users and its tools.
//!
//! Unknown fields and roles are kept, so data that a server adds is passed on unchanged.

use std::{fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Error as _, MapAccess, Visitor},
    ser::SerializeMap as _,
};
use serde_json::{Map, Value};

/// A conversation. Messages are shared, because every turn contains the messages of all earlier turns.
///
/// One message turns into a conversation, and into an item of one, by `into`:
///
/// ```
/// use rollout_core::message::{Message, Messages};
///
/// let one: Messages = Message::user("What is 2+2?").into();
/// let two: Messages = vec![Message::system("Be brief.").into(), Message::user("What is 2+2?").into()];
/// assert_eq!(one[0], two[1]);
/// ```
pub type Messages = Vec<Arc<Message>>;

/// Part of a conversation, as functions read it.
pub type MessageList = [Arc<Message>];

impl From<Message> for Messages {
    fn from(message: Message) -> Self {
        vec![Arc::new(message)]
    }
}

/// The author of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Role {
    /// The instructions of the conversation.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
    /// Plain text for models without roles.
    Text,
    /// A role that only the server knows.
    Other(String),
}

impl Role {
    /// The name in requests and responses.
    pub fn as_str(&self) -> &str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Text => "text",
            Self::Other(role) => role,
        }
    }
}

impl From<&str> for Role {
    fn from(role: &str) -> Self {
        match role {
            "system" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            "text" => Self::Text,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Parts: `text`, `image_url`, `input_audio`, or any other type that a server accepts.
    Parts(Vec<Value>),
}

impl Content {
    /// Returns the text, or the text parts joined by a space.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
                texts.join(" ").into()
            }
        }
    }
}

impl<T: Into<String>> From<T> for Content {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The content, if any.
    pub content: Option<Content>,
    /// The reasoning of the model, under any of the field names that servers use.
    pub reasoning_content: Option<String>,
    /// Signed reasoning that an Anthropic server requires back unchanged.
    pub thinking_blocks: Option<Value>,
    /// The tool calls of the model.
    pub tool_calls: Vec<ToolCall>,
    /// The id of the call that a tool's message answers.
    pub tool_call_id: Option<String>,
    /// All other fields.
    pub extra: Map<String, Value>,
}

impl Message {
    /// Creates a message with content only.
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        Self {
            role,
            content: Some(content.into()),
            reasoning_content: None,
            thinking_blocks: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            extra: Map::new(),
        }
    }

    /// Creates a system message.
    pub fn system(content: impl Into<Content>) -> Self {
        Self::new(Role::System, content)
    }

    /// Creates a user message.
    pub fn user(content: impl Into<Content>) -> Self {
        Self::new(Role::User, content)
    }

    /// Creates a message of the model.
    pub fn assistant(content: impl Into<Content>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Creates a tool's result of a call.
    pub fn tool(call: impl Into<String>, content: impl Into<Content>) -> Self {
        Self { tool_call_id: Some(call.into()), ..Self::new(Role::Tool, content) }
    }

    /// Returns the text of the message; empty if it has none.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        self.content.as_ref().map(Content::text).unwrap_or_default()
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", self.role.as_str())?;
        map.serialize_entry("content", &self.content)?;
        if let Some(reasoning) = &self.reasoning_content {
            map.serialize_entry("reasoning_content", reasoning)?;
        }
        if let Some(blocks) = &self.thinking_blocks {
            map.serialize_entry("thinking_blocks", blocks)?;
        }
        if !self.tool_calls.is_empty() {
            map.serialize_entry("tool_calls", &self.tool_calls)?;
        }
        if let Some(call) = &self.tool_call_id {
            map.serialize_entry("tool_call_id", call)?;
        }
        for (key, value) in &self.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// The fields of a message.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum MessageKey {
    Role,
    Content,
    ReasoningContent,
    ThinkingBlocks,
    ToolCalls,
    ToolCallId,
    Other(String),
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessageVisitor;

        impl<'de> Visitor<'de> for MessageVisitor {
            type Value = Message;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Message, A::Error> {
                let text = |value: Value| match value {
                    Value::String(text) => Some(text),
                    _ => None,
                };
                let mut role = None;
                let mut message = Message { content: None, ..Message::new(Role::Text, String::new()) };
                while let Some(key) = fields.next_key()? {
                    match key {
                        MessageKey::Role => role = Some(fields.next_value()?),
                        MessageKey::Content => message.content = fields.next_value()?,
                        MessageKey::ReasoningContent => {
                            message.reasoning_content = text(fields.next_value()?)
                        }
                        MessageKey::ThinkingBlocks => message.thinking_blocks = fields.next_value()?,
                        MessageKey::ToolCalls => {
                            message.tool_calls = fields.next_value::<Option<_>>()?.unwrap_or_default();
                        }
                        MessageKey::ToolCallId => message.tool_call_id = text(fields.next_value()?),
                        MessageKey::Other(key) => _ = message.extra.insert(key, fields.next_value()?),
                    }
                }
                message.role = match role {
                    Some(Value::String(role)) => Role::from(role.as_str()),
                    Some(_) => return Err(A::Error::custom("the `role` of a message must be a string")),
                    None => return Err(A::Error::custom("a message needs a `role`")),
                };
                Ok(message)
            }
        }

        deserializer.deserialize_map(MessageVisitor)
    }
}

/// A tool call of a model.
///
/// Records contain it as `{id, name, arguments}`. OpenAI's form with a nested `function`, and JSON text of either form,
/// are also read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCall {
    /// The id of the call, to which its result refers.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as the model wrote them: JSON, if the model wrote valid JSON.
    pub arguments: String,
    /// Other fields of the server, which some servers require back: Gemini signs its calls.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ToolCall {
    /// Creates a call without other fields.
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self { id: id.into(), name: name.into(), arguments: arguments.into(), extra: Map::new() }
    }
}

/// The fields of a tool call.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum CallKey {
    Id,
    Name,
    Arguments,
    Function,
    Other(String),
}

/// A tool call in any of its forms, and the nested `function` of one.
#[derive(Default)]
struct CallParts {
    id: Option<String>,
    name: Option<String>,
    arguments: Option<Value>,
    extra: Map<String, Value>,
}

impl<'de> Deserialize<'de> for CallParts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CallVisitor)
    }
}

/// Reads a tool call that is an object, or JSON text of one.
struct CallVisitor;

impl<'de> Visitor<'de> for CallVisitor {
    type Value = CallParts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tool call")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<CallParts, E> {
        serde_json::from_str(text).map_err(|error| {
            E::custom(format!("a tool call that is a string must contain a JSON object: {error}"))
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<CallParts, A::Error> {
        let mut call = CallParts::default();
        let mut function = None;
        while let Some(key) = fields.next_key()? {
            match key {
                CallKey::Id => call.id = fields.next_value()?,
                CallKey::Name => call.name = fields.next_value()?,
                CallKey::Arguments => call.arguments = fields.next_value()?,
                CallKey::Function => function = fields.next_value::<Option<CallParts>>()?,
                CallKey::Other(key) => {
                    let value: Value = fields.next_value()?;
                    if !["type", "index"].contains(&key.as_str()) && !value.is_null() {
                        call.extra.insert(key, value);
                    }
                }
            }
        }
        let function = function.unwrap_or_default();
        call.name = call.name.or(function.name);
        call.arguments = call.arguments.or(function.arguments);
        Ok(call)
    }
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let CallParts { id, name, arguments, extra } = deserializer.deserialize_any(CallVisitor)?;
        let arguments = match arguments {
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
            None => String::new(),
        };
        Ok(Self { id: id.unwrap_or_default(), name: name.unwrap_or_default(), arguments, extra })
    }
}

/// The definition of a tool for a model, independent of the model's server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDef {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// Whether the server must enforce the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_keeps_fields_and_roles_that_it_does_not_know() {
        let wire = json!({"role": "developer", "content": "be brief", "name": "ann", "cache": {"ttl": 5}});
        let message: Message = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(message.role, Role::Other("developer".to_owned()));
        assert_eq!(serde_json::to_value(&message).unwrap(), wire);
    }

    #[test]
    fn tool_calls_are_read_flat_and_nested_and_written_flat() {
        let nested = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}}]});
        let flat = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "name": "add", "arguments": "{\"a\":1}"}]});
        let message: Message = serde_json::from_value(nested).unwrap();
        assert_eq!(message, serde_json::from_value(flat.clone()).unwrap());
        assert_eq!(serde_json::to_value(&message).unwrap(), flat);
    }

    #[test]
    fn what_a_server_adds_to_a_tool_call_is_kept() {
        let wire = json!({"id": "1", "type": "function", "index": 0, "function": {"name": "add", "arguments": "{}"},
            "extra_content": {"google": {"thought_signature": "c2ln"}}});
        let call: ToolCall = serde_json::from_value(wire).unwrap();
        let flat = json!({"id": "1", "name": "add", "arguments": "{}",
            "extra_content": {"google": {"thought_signature": "c2ln"}}});
        assert_eq!(serde_json::to_value(&call).unwrap(), flat);
        assert_eq!(serde_json::from_value::<ToolCall>(flat).unwrap(), call);
    }

    #[test]
    fn a_message_and_its_calls_are_read_from_text_as_from_a_value() {
        let text = r#"{"content": "a", "x": null, "role": "user", "reasoning_content": 5, "thinking_blocks": null,
            "content": [{"type": "text", "text": "b"}], "tool_call_id": null, "tool_calls": [
                "{\"function\": {\"name\": \"f\", \"name\": \"add\", \"arguments\": {\"a\": 1}}, \"extra\": null}",
                {"id": null, "name": null, "index": 1, "arguments": null, "function": null}
            ]}"#;
        let message: Message = serde_json::from_str(text).unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::from_value::<Message>(value).unwrap(), message);
        let expected = Message {
            content: Some(Content::Parts(vec![json!({"type": "text", "text": "b"})])),
            tool_calls: vec![ToolCall::new("", "add", r#"{"a":1}"#), ToolCall::new("", "", "")],
            extra: Map::from_iter([("x".to_owned(), Value::Null)]),
            ..Message::user("")
        };
        assert_eq!(message, expected);
        for (text, error) in [
            (r#"{"role": 1}"#, "the `role` of a message must be a string"),
            (r#"{"content": "a"}"#, "a message needs a `role`"),
            (
                r#"{"role": "user", "tool_calls": ["[1"]}"#,
                "a tool call that is a string must contain a JSON object",
            ),
            (r#"{"role": "user", "content": 5}"#, "Content"),
        ] {
            let said = serde_json::from_str::<Message>(text).unwrap_err().to_string();
            assert!(said.contains(error), "{said}");
        }
    }

    #[test]
    fn the_words_of_parts_are_joined_by_a_space() {
        let content = Content::Parts(vec![
            json!({"type": "text", "text": "a"}),
            json!({"type": "image_url", "image_url": {"url": "data:"}}),
            json!({"type": "text", "text": "b"}),
        ]);
        assert_eq!(content.text(), "a b");
    }
}
