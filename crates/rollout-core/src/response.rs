//! Responses of models, in one form for all server APIs.

use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value};

use crate::message::Message;

/// One response of a model.
///
/// In records, some fields are inside the message: `{id, created, model, usage, message: {role, content, …,
/// finish_reason, is_truncated, tokens}}`. Other fields of the server are beside these.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "Record")]
pub struct Response {
    /// The server's id.
    pub id: String,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// The model that the server reported.
    pub model: String,
    /// Token usage, if the server reported it.
    pub usage: Option<TokenUsage>,
    /// The message.
    pub message: Message,
    /// Why the model stopped, if the server reported it.
    pub finish_reason: Option<FinishReason>,
    /// The tokens, if the server returned all of them.
    pub tokens: Option<ResponseTokens>,
    /// Other fields of the server.
    pub extra: Map<String, Value>,
}

impl Response {
    /// The version of the policy that sampled it: `policy_version` or `weight_version` of the server, beside the
    /// message or in its `meta_info`; else the name of the model that the server reported.
    pub fn policy_version(&self) -> Option<String> {
        policy_version(&self.extra).or_else(|| (!self.model.is_empty()).then(|| self.model.clone()))
    }

    /// Whether the response was truncated.
    pub fn is_truncated(&self) -> bool {
        self.finish_reason == Some(FinishReason::Length)
    }
}

/// The field names of the version of the weights.
const VERSIONS: [&str; 2] = ["policy_version", "weight_version"];

fn policy_version(extra: &Map<String, Value>) -> Option<String> {
    let nested = extra.get("meta_info").and_then(Value::as_object);
    let found = VERSIONS.iter().find_map(|key| extra.get(*key).or_else(|| nested?.get(*key)))?;
    match found {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl Serialize for Response {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const OWN: [&str; 5] = ["id", "created", "model", "usage", "message"];
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("created", &self.created)?;
        map.serialize_entry("model", &self.model)?;
        map.serialize_entry("usage", &self.usage)?;
        map.serialize_entry("message", &MessageRecord(self))?;
        for (key, value) in self.extra.iter().filter(|(key, _)| !OWN.contains(&key.as_str())) {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

struct MessageRecord<'a>(&'a Response);

impl Serialize for MessageRecord<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a> {
            #[serde(flatten)]
            message: &'a Message,
            finish_reason: &'a Option<FinishReason>,
            is_truncated: bool,
            tokens: &'a Option<ResponseTokens>,
        }
        let Self(response) = self;
        let Response { message, finish_reason, tokens, .. } = response;
        Flat { message, finish_reason, is_truncated: response.is_truncated(), tokens }.serialize(serializer)
    }
}

/// A response in records. Only the message is required.
#[derive(Deserialize)]
struct Record {
    #[serde(default)]
    id: String,
    #[serde(default)]
    created: i64,
    #[serde(default)]
    model: String,
    #[serde(default)]
    usage: Option<TokenUsage>,
    message: Message,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

impl From<Record> for Response {
    fn from(record: Record) -> Self {
        let Record { id, created, model, usage, mut message, extra } = record;
        // Fields with an unexpected form belong to the server; the turn is still used.
        let finish_reason = take(&mut message.extra, "finish_reason");
        let tokens = take(&mut message.extra, "tokens");
        message.extra.remove("is_truncated");
        Self { id, created, model, usage, message, finish_reason, tokens, extra }
    }
}

fn take<T: serde::de::DeserializeOwned>(from: &mut Map<String, Value>, key: &str) -> Option<T> {
    from.remove(key).and_then(|value| serde_json::from_value(value).ok())
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum FinishReason {
    /// The response is complete.
    Stop,
    /// The token limit was reached.
    Length,
    /// The model calls tools.
    ToolCalls,
    /// The server's content filter stopped it.
    ContentFilter,
    /// Another reason of the server.
    Other(String),
}

impl FinishReason {
    /// The name in records.
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

/// Token usage and cost of one response. The three counts of the prompt are disjoint.
///
/// Records use the convention of servers: `prompt_tokens` are all tokens of the prompt, and there are `total_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "UsageRecord", into = "UsageRecord")]
pub struct TokenUsage {
    /// Tokens of the prompt that were not cached.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were read from a cache.
    pub cached_tokens: u64,
    /// Tokens of the prompt that were written to a cache.
    pub cache_write_tokens: u64,
    /// Tokens of the response, including reasoning.
    pub completion_tokens: u64,
    /// Tokens of the response that are reasoning.
    pub reasoning_tokens: u64,
    /// Cost in US dollars, if the server reported it or a price is configured.
    pub cost: Option<f64>,
}

impl TokenUsage {
    /// All tokens of the prompt.
    pub fn input_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.cached_tokens).saturating_add(self.cache_write_tokens)
    }

    /// All tokens of the prompt and the response.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens().saturating_add(self.completion_tokens)
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct UsageRecord {
    prompt_tokens: u64,
    cached_tokens: u64,
    cache_write_tokens: u64,
    completion_tokens: u64,
    reasoning_tokens: u64,
    total_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

impl From<TokenUsage> for UsageRecord {
    fn from(usage: TokenUsage) -> Self {
        Self {
            prompt_tokens: usage.input_tokens(),
            cached_tokens: usage.cached_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            completion_tokens: usage.completion_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            total_tokens: usage.total_tokens(),
            cost: usage.cost,
        }
    }
}

impl From<UsageRecord> for TokenUsage {
    fn from(record: UsageRecord) -> Self {
        let elsewhere = record.cached_tokens.saturating_add(record.cache_write_tokens);
        Self {
            prompt_tokens: record.prompt_tokens.saturating_sub(elsewhere),
            cached_tokens: record.cached_tokens,
            cache_write_tokens: record.cache_write_tokens,
            completion_tokens: record.completion_tokens,
            reasoning_tokens: record.reasoning_tokens,
            cost: record.cost,
        }
    }
}

/// The tokens of a prompt and its completion, for training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ResponseTokens {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// The completion.
    pub completion_ids: Vec<u32>,
    /// The log-probability of each completion token.
    pub completion_logprobs: Vec<f64>,
    /// The experts of each token, layer by layer, for mixture-of-experts models.
    #[serde(default)]
    pub routed_experts: Option<RoutedExperts>,
}

/// The experts of tokens in a mixture-of-experts model: their numbers for each token and layer.
pub type RoutedExperts = Vec<Vec<Vec<u32>>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn response() -> Response {
        Response {
            id: "r1".into(),
            created: 5,
            model: "m".into(),
            usage: Some(TokenUsage {
                prompt_tokens: 3,
                cached_tokens: 4,
                cache_write_tokens: 1,
                completion_tokens: 2,
                reasoning_tokens: 1,
                cost: Some(0.5),
            }),
            message: Message::assistant("hi"),
            finish_reason: Some(FinishReason::Length),
            tokens: Some(ResponseTokens {
                prompt_ids: vec![1],
                completion_ids: vec![2],
                completion_logprobs: vec![-0.5],
                routed_experts: None,
            }),
            extra: Map::from_iter([("system_fingerprint".to_owned(), "f".into())]),
        }
    }

    #[test]
    fn a_record_holds_the_whole_response() {
        insta::assert_json_snapshot!(response(), @r#"
        {
          "id": "r1",
          "created": 5,
          "model": "m",
          "usage": {
            "prompt_tokens": 8,
            "cached_tokens": 4,
            "cache_write_tokens": 1,
            "completion_tokens": 2,
            "reasoning_tokens": 1,
            "total_tokens": 10,
            "cost": 0.5
          },
          "message": {
            "role": "assistant",
            "content": "hi",
            "finish_reason": "length",
            "is_truncated": true,
            "tokens": {
              "prompt_ids": [
                1
              ],
              "completion_ids": [
                2
              ],
              "completion_logprobs": [
                -0.5
              ],
              "routed_experts": null
            }
          },
          "system_fingerprint": "f"
        }
        "#);
        let text = serde_json::to_string(&response()).unwrap();
        assert_eq!(serde_json::from_str::<Response>(&text).unwrap(), response());
    }

    #[test]
    fn the_version_of_the_policy_is_what_the_server_reports_or_its_model() {
        let with = |key: &str, value: Value| Response {
            extra: Map::from_iter([(key.to_owned(), value)]),
            ..response()
        };
        let version = |response: Response| response.policy_version();
        assert_eq!(version(with("policy_version", 12.into())).as_deref(), Some("12"));
        assert_eq!(version(with("weight_version", "step-3".into())).as_deref(), Some("step-3"));
        let nested = serde_json::json!({"weight_version": "v7", "id": "x"});
        assert_eq!(version(with("meta_info", nested)).as_deref(), Some("v7"));
        assert_eq!(version(response()).as_deref(), Some("m"));
        assert_eq!(version(Response { model: String::new(), ..response() }), None);
    }

    #[test]
    fn a_record_of_only_a_message_is_a_response() {
        let text =
            r#"{"message": {"role": "assistant", "content": "hi", "finish_reason": null, "tokens": null}}"#;
        let response: Response = serde_json::from_str(text).unwrap();
        assert_eq!(response.message, Message::assistant("hi"));
        assert_eq!((response.finish_reason, response.tokens, response.usage), (None, None, None));
    }
}
