//! A messages response, whole or streamed.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Assembly;
use crate::{
    Error, ErrorKind,
    client::{exchange::Answer, lenient::Number},
};
use rollout_core::{
    message::{Content, Message, Role, ToolCall},
    response::{FinishReason, Response, TokenUsage},
};

/// A response in the form of the server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::client) struct Reply {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) content: Option<Vec<Map<String, Value>>>,
    pub(super) stop_reason: Option<String>,
    pub(super) usage: Option<Usage>,
    pub(super) error: Option<Value>,
    #[serde(flatten)]
    pub(super) extra: Map<String, Value>,
}

/// Token counts. They do not overlap.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    input_tokens: Number,
    cache_creation_input_tokens: Number,
    cache_read_input_tokens: Number,
    output_tokens: Number,
    cost: Number,
}

impl Usage {
    /// The same, updated with later values. Counts are for the whole response, never for a piece of it.
    pub(super) fn updated(self, later: Self) -> Self {
        let newest = |earlier: Number, later: Number| Number(later.0.or(earlier.0));
        Self {
            input_tokens: newest(self.input_tokens, later.input_tokens),
            cache_creation_input_tokens: newest(
                self.cache_creation_input_tokens,
                later.cache_creation_input_tokens,
            ),
            cache_read_input_tokens: newest(self.cache_read_input_tokens, later.cache_read_input_tokens),
            output_tokens: newest(self.output_tokens, later.output_tokens),
            cost: newest(self.cost, later.cost),
        }
    }
}

impl From<Usage> for TokenUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.input_tokens.count(),
            cached_tokens: usage.cache_read_input_tokens.count(),
            cache_write_tokens: usage.cache_creation_input_tokens.count(),
            completion_tokens: usage.output_tokens.count(),
            reasoning_tokens: 0,
            cost: usage.cost.amount(),
        }
    }
}

impl Answer for Reply {
    type Pieces = Assembly;

    fn error(&self) -> Option<&Value> {
        self.error.as_ref()
    }

    /// The response must not be empty.
    fn into_response(self, asked: &str) -> Result<Response, Error> {
        let Some(blocks) = self.content else {
            return Err(Error::new(ErrorKind::InvalidModelResponse, "the response has no `content`"));
        };
        let message = message(blocks);
        let refused = self.stop_reason.as_deref() == Some("refusal");
        let is_empty = message.text().is_empty()
            && !matches!(&message.content, Some(Content::Parts(_)))
            && message.thinking_blocks.is_none()
            && message.tool_calls.is_empty();
        if is_empty && !refused {
            let reason = self.stop_reason.as_deref().unwrap_or("none given");
            return Err(Error::new(
                ErrorKind::EmptyModelResponse,
                format!("the response is empty: no text, no tool call, no reasoning (stop reason: {reason})"),
            ));
        }
        let mut extra = self.extra;
        extra.retain(|key, value| !["type", "role"].contains(&key.as_str()) && !value.is_null());
        Ok(Response {
            id: self.id.unwrap_or_default(),
            created: jiff::Timestamp::now().as_second(),
            model: self.model.unwrap_or_else(|| asked.to_owned()),
            usage: self.usage.map(TokenUsage::from),
            message,
            finish_reason: self.stop_reason.map(finish_reason),
            tokens: None,
            extra,
        })
    }
}

fn finish_reason(reason: String) -> FinishReason {
    match reason.as_str() {
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "tool_use" => FinishReason::ToolCalls,
        "refusal" => FinishReason::ContentFilter,
        _ => FinishReason::Other(reason),
    }
}

/// Joins all blocks into one message. Plain texts become one text; with other blocks, like citations or results of the
/// server's own tools, they stay separate parts.
fn message(blocks: Vec<Map<String, Value>>) -> Message {
    let mut thinking = Vec::new();
    let mut reasoning = String::new();
    let mut tool_calls = Vec::new();
    let mut parts = Vec::new();
    let mut plain = true;
    for mut block in blocks {
        block.retain(|_, value| !value.is_null());
        match block.get("type").and_then(Value::as_str) {
            Some("thinking" | "redacted_thinking") => {
                reasoning.push_str(block.get("thinking").and_then(Value::as_str).unwrap_or_default());
                thinking.push(Value::Object(block));
            }
            Some("tool_use") => {
                let mut text = |key| match block.remove(key) {
                    Some(Value::String(text)) => text,
                    _ => String::new(),
                };
                let (id, name) = (text("id"), text("name"));
                let arguments = match block.remove("input") {
                    Some(Value::String(text)) => text,
                    Some(input) => input.to_string(),
                    None => "{}".to_owned(),
                };
                tool_calls.push(ToolCall::new(id, name, arguments));
            }
            kind => {
                plain &= kind == Some("text") && block.len() == 2;
                parts.push(Value::Object(block));
            }
        }
    }
    let content = match (parts.is_empty(), plain) {
        (true, _) => None,
        (false, true) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            Some(Content::Text(texts.collect()))
        }
        (false, false) => Some(Content::Parts(parts)),
    };
    Message {
        role: Role::Assistant,
        content,
        reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
        thinking_blocks: (!thinking.is_empty()).then_some(Value::Array(thinking)),
        tool_calls,
        tool_call_id: None,
        extra: Map::new(),
    }
}
