//! What a model answers, in one form whichever dialect its server speaks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Message;

/// One response of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// The server's name for it.
    pub id: String,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// The model that the server says it used.
    pub model: String,
    /// What it took, where the server says.
    pub usage: Option<TokenUsage>,
    /// What the model said.
    pub message: Message,
    /// Why it stopped, where the server says.
    pub finish_reason: Option<FinishReason>,
    /// The tokens behind it, where the server gives them all.
    pub tokens: Option<ResponseTokens>,
    /// What else the server said.
    pub extra: Map<String, Value>,
}

impl Response {
    /// Whether the model was cut off.
    pub fn is_truncated(&self) -> bool {
        self.finish_reason == Some(FinishReason::Length)
    }
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum FinishReason {
    /// It was done.
    Stop,
    /// It was cut off at the limit of tokens.
    Length,
    /// It wants tools called.
    ToolCalls,
    /// Its server did not let it go on.
    ContentFilter,
    /// Something that only its server knows.
    Other(String),
}

impl FinishReason {
    /// The word for it in records.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
            Self::Other(reason) => reason,
        }
    }
}

impl From<String> for FinishReason {
    fn from(reason: String) -> Self {
        match reason.as_str() {
            "stop" => Self::Stop,
            "length" => Self::Length,
            "tool_calls" => Self::ToolCalls,
            "content_filter" => Self::ContentFilter,
            _ => Self::Other(reason),
        }
    }
}

impl From<FinishReason> for String {
    fn from(reason: FinishReason) -> Self {
        reason.as_str().to_owned()
    }
}

/// The tokens and the money of one response. The three counts of the prompt are disjoint.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenUsage {
    /// Tokens of the prompt that no cache had.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that came from a cache.
    pub cached_tokens: u64,
    /// Tokens of the prompt that were put into a cache.
    pub cache_write_tokens: u64,
    /// Tokens that the model wrote, its reasoning included.
    pub completion_tokens: u64,
    /// Of those, the reasoning.
    pub reasoning_tokens: u64,
    /// What it cost in US dollars, where the server or a price table says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

impl TokenUsage {
    /// All tokens of the prompt, wherever they came from.
    pub fn input_tokens(&self) -> u64 {
        self.prompt_tokens + self.cached_tokens + self.cache_write_tokens
    }

    /// All tokens.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens() + self.completion_tokens
    }
}

/// The tokens of a prompt and its completion, for training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ResponseTokens {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// The completion.
    pub completion_ids: Vec<u32>,
    /// The logarithm of each completion token's probability.
    pub completion_logprobs: Vec<f64>,
    /// The experts that each token went through, layer by layer, where the model has some.
    #[serde(default)]
    pub routed_experts: Option<Vec<Vec<Vec<u32>>>>,
}
