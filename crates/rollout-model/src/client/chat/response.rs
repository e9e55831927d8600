//! A chat completion response, whole or streamed.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Assembly;
use crate::{
    Error, ErrorKind,
    client::{
        exchange::Answer,
        lenient::Number,
        tokens::{Logprobs, TokenFields},
    },
};
use rollout_core::{
    message::{Content, Message, Role, ToolCall},
    response::{FinishReason, Response, TokenUsage},
};

/// A response in the form of the server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::client) struct Completion {
    pub(super) id: Option<String>,
    pub(super) created: Number,
    pub(super) model: Option<String>,
    pub(super) choices: Option<Vec<Choice>>,
    pub(super) usage: Option<Usage>,
    pub(super) prompt_token_ids: Option<Vec<Number>>,
    /// Some servers return an error with a success status.
    pub(super) error: Option<Value>,
    #[serde(flatten)]
    pub(super) extra: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Choice {
    pub(super) message: Option<Said>,
    pub(super) finish_reason: Option<FinishReason>,
    pub(super) logprobs: Option<Logprobs>,
    pub(super) prompt_token_ids: Option<Vec<Number>>,
    #[serde(alias = "output_ids")]
    pub(super) token_ids: Option<Vec<Number>>,
    pub(super) routed_experts: Option<Value>,
    #[serde(flatten)]
    pub(super) extra: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Said {
    pub(super) content: Option<Content>,
    pub(super) reasoning_content: Option<Value>,
    pub(super) reasoning: Option<Value>,
    pub(super) thinking_blocks: Option<Value>,
    pub(super) tool_calls: Option<Vec<ToolCall>>,
    pub(super) prompt_token_ids: Option<Vec<Number>>,
    pub(super) completion_token_ids: Option<Vec<Number>>,
    #[serde(flatten)]
    pub(super) extra: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    prompt_tokens: Number,
    completion_tokens: Number,
    total_tokens: Number,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    /// Where DeepSeek reports cached tokens.
    prompt_cache_hit_tokens: Number,
    cost: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Number,
    cache_write_tokens: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Number,
}

impl Usage {
    /// The same with separate counts for the parts of the prompt.
    fn normalised(&self) -> TokenUsage {
        let prompt = self.prompt_tokens.count();
        let mut completion = self.completion_tokens.count();
        let details = self.prompt_tokens_details.as_ref();
        let cached = details.map_or(0, |details| details.cached_tokens.count());
        let cached = cached.max(self.prompt_cache_hit_tokens.count()).min(prompt);
        let written = details.map_or(0, |details| details.cache_write_tokens.count()).min(prompt - cached);
        let reasoning =
            self.completion_tokens_details.as_ref().map_or(0, |details| details.reasoning_tokens.count());
        // Some servers do not count reasoning as part of the completion. Only the total shows this.
        if reasoning > 0
            && self.total_tokens.count() == prompt.saturating_add(completion).saturating_add(reasoning)
        {
            completion = completion.saturating_add(reasoning);
        }
        TokenUsage {
            prompt_tokens: prompt - cached - written,
            cached_tokens: cached,
            cache_write_tokens: written,
            completion_tokens: completion,
            reasoning_tokens: reasoning.min(completion),
            cost: self.cost.amount(),
        }
    }
}

impl Answer for Completion {
    type Pieces = Assembly;

    fn error(&self) -> Option<&Value> {
        self.error.as_ref()
    }

    fn reasoning_field(&self) -> Option<&'static str> {
        let said = self.choices.as_ref()?.first()?.message.as_ref()?;
        let is_text = |value: &Option<Value>| value.as_ref().is_some_and(Value::is_string);
        if is_text(&said.reasoning_content) {
            Some("reasoning_content")
        } else {
            is_text(&said.reasoning).then_some("reasoning")
        }
    }

    /// There must be exactly one choice, and it must not be empty.
    fn into_response(self, asked: &str) -> Result<Response, Error> {
        let mut choices = self.choices.unwrap_or_default();
        let (Some(choice), true) = (choices.pop(), choices.is_empty()) else {
            let count =
                if choices.is_empty() { "none".to_owned() } else { format!("{} choices", choices.len() + 1) };
            return Err(Error::new(
                ErrorKind::InvalidModelResponse,
                format!("expected one choice, found {count}"),
            ));
        };
        let said = choice.message.unwrap_or_default();
        let usage = self.usage.as_ref().map(Usage::normalised);
        let fields = TokenFields {
            prompt: self.prompt_token_ids.or(choice.prompt_token_ids).or(said.prompt_token_ids),
            completion: choice.token_ids.or(said.completion_token_ids),
            routed_experts: choice.routed_experts,
        };
        let tokens = fields.with(choice.logprobs.as_ref());

        let mut extra = self.extra;
        extra.retain(|key, value| key != "object" && !value.is_null());
        extra.extend(choice.extra.into_iter().filter(|(key, value)| key != "index" && !value.is_null()));
        // With complete tokens, the probabilities are stored there.
        if tokens.is_none()
            && let Some(logprobs @ Logprobs { content: Some(_) }) = &choice.logprobs
            && let Ok(logprobs) = serde_json::to_value(logprobs)
        {
            extra.insert("logprobs".to_owned(), logprobs);
        }

        let message = Said { prompt_token_ids: None, completion_token_ids: None, ..said }.into_message();
        let reasoned = usage.is_some_and(|usage| usage.reasoning_tokens > 0);
        if !reasoned && says_nothing(&message) {
            let reason = choice.finish_reason.as_ref().map_or("no reason given", FinishReason::as_str);
            return Err(Error::new(
                ErrorKind::EmptyModelResponse,
                format!(
                    "the response is empty: no text, no tool call, no reasoning (finish reason: {reason})"
                ),
            ));
        }
        Ok(Response {
            id: self.id.unwrap_or_default(),
            created: match self.created.count() {
                0 => jiff::Timestamp::now().as_second(),
                seconds => i64::try_from(seconds).unwrap_or(i64::MAX),
            },
            model: self.model.unwrap_or_else(|| asked.to_owned()),
            usage,
            message,
            finish_reason: choice.finish_reason,
            tokens,
            extra,
        })
    }
}

impl Said {
    fn into_message(self) -> Message {
        let mut extra = self.extra;
        // Servers send null for every field that they support and do not use.
        extra.retain(|key, value| {
            let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            key != "role" && !is_empty
        });
        let mut reasoning_content = None;
        for (key, value) in [("reasoning_content", self.reasoning_content), ("reasoning", self.reasoning)] {
            match value {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => {
                    reasoning_content.get_or_insert(text);
                }
                Some(other) => {
                    extra.insert(key.to_owned(), other);
                }
            }
        }
        let reasoning_content = reasoning_content
            .filter(|text| !text.is_empty())
            .or_else(|| reasoning_of_details(extra.get("reasoning_details")?));
        let mut tool_calls = self.tool_calls.unwrap_or_default();
        for call in tool_calls.iter_mut().filter(|call| call.id.is_empty()) {
            // Tool results refer to their call by id, so each call needs a unique one.
            call.id = format!("call_{:016x}", fastrand::u64(..));
        }
        Message {
            role: Role::Assistant,
            content: self.content,
            reasoning_content,
            thinking_blocks: self.thinking_blocks.filter(|blocks| !blocks.is_null()),
            tool_calls,
            tool_call_id: None,
            extra,
        }
    }
}

/// The text of OpenRouter's list of reasoning items. Encrypted items have none.
fn reasoning_of_details(details: &Value) -> Option<String> {
    let words =
        |detail: &Value| Some(detail.get("text").or_else(|| detail.get("summary"))?.as_str()?.to_owned());
    let words: String = details.as_array()?.iter().filter_map(words).collect();
    (!words.is_empty()).then_some(words)
}

fn says_nothing(message: &Message) -> bool {
    let content = match &message.content {
        None => false,
        Some(Content::Text(text)) => !text.is_empty(),
        Some(Content::Parts(parts)) => {
            parts.iter().any(|part| part.get("text").and_then(Value::as_str) != Some("") && !part.is_null())
        }
    };
    let refusal = message.extra.get("refusal").and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    let spoken = message.extra.contains_key("audio") || message.extra.contains_key("images");
    let thought = message.reasoning_content.as_ref().is_some_and(|text| !text.is_empty())
        || message.thinking_blocks.is_some()
        || message.extra.contains_key("reasoning_details");
    !(content || refusal || spoken || thought || !message.tool_calls.is_empty())
}
