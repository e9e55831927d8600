//! Token counts of a response in any dialect, in one form.
//!
//! Anthropic counts cached tokens beside the prompt's, OpenAI and Google within them. Google counts thoughts beside the
//! answer's tokens, the others within them. The provider's own object is kept too.

pub(crate) mod tokens;

use rollout_core::response::TokenUsage;
use serde_json::{Map, Value, json};

use crate::Dialect;

/// The tokens of one call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallUsage {
    /// In the form that every record uses.
    pub(crate) tokens: TokenUsage,
    /// As the provider wrote it.
    pub(crate) raw: Value,
}

/// The usage of a whole response.
pub(crate) fn of_response(dialect: Dialect, body: &Value) -> Option<CallUsage> {
    let raw = object(dialect, body)?;
    Some(CallUsage { tokens: read(dialect, raw), raw: raw.clone() })
}

/// Collects the usage of a stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamUsage {
    dialect: Dialect,
    raw: Map<String, Value>,
}

impl StreamUsage {
    /// For a stream of this dialect.
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self { dialect, raw: Map::new() }
    }

    /// Takes an event. A later count of the same name replaces an earlier one.
    pub(crate) fn feed(&mut self, event: &Value) {
        let body = match self.dialect {
            Dialect::Messages => event.get("message").unwrap_or(event),
            Dialect::Responses => event.get("response").unwrap_or(event),
            Dialect::Chat | Dialect::Gemini => event,
        };
        if let Some(Value::Object(raw)) = object(self.dialect, body) {
            let counts = raw.iter().filter(|(_, count)| !count.is_null());
            self.raw.extend(counts.map(|(name, count)| (name.clone(), count.clone())));
        }
    }

    /// The usage so far, if the provider reported any.
    pub(crate) fn usage(&self) -> Option<CallUsage> {
        if self.raw.is_empty() {
            return None;
        }
        let raw = Value::Object(self.raw.clone());
        Some(CallUsage { tokens: read(self.dialect, &raw), raw })
    }
}

fn object(dialect: Dialect, body: &Value) -> Option<&Value> {
    let key = if dialect == Dialect::Gemini { "usageMetadata" } else { "usage" };
    // Moonshot puts it into the choice.
    let places = [body.get(key), body.pointer("/choices/0/usage")];
    places.into_iter().flatten().find(|usage| usage.is_object())
}

/// A count as servers write it: whole, as a float, or not at all.
fn count(usage: &Value, path: &str) -> u64 {
    let number = usage.pointer(path);
    let whole = number.and_then(Value::as_u64);
    whole.or_else(|| number?.as_f64().map(|n| n.max(0.0) as u64)).unwrap_or_default()
}

/// Reads the provider's object.
pub(crate) fn read(dialect: Dialect, usage: &Value) -> TokenUsage {
    let count = |path| count(usage, path);
    let within = |all: u64, cached: u64, written: u64| TokenUsage {
        prompt_tokens: all.saturating_sub(cached.saturating_add(written)),
        cached_tokens: cached,
        cache_write_tokens: written,
        ..TokenUsage::default()
    };
    let cost = || usage.get("cost").and_then(Value::as_f64).filter(|cost| *cost >= 0.0);
    match dialect {
        Dialect::Chat => {
            let cached =
                ["/prompt_tokens_details/cached_tokens", "/prompt_cache_hit_tokens", "/cached_tokens"];
            let cached = cached.into_iter().map(count).find(|cached| *cached > 0).unwrap_or_default();
            TokenUsage {
                completion_tokens: count("/completion_tokens"),
                reasoning_tokens: count("/completion_tokens_details/reasoning_tokens"),
                cost: cost(),
                ..within(count("/prompt_tokens"), cached, count("/prompt_tokens_details/cache_write_tokens"))
            }
        }
        Dialect::Responses => TokenUsage {
            completion_tokens: count("/output_tokens"),
            reasoning_tokens: count("/output_tokens_details/reasoning_tokens"),
            cost: cost(),
            ..within(
                count("/input_tokens"),
                count("/input_tokens_details/cached_tokens"),
                count("/input_tokens_details/cache_write_tokens"),
            )
        },
        Dialect::Messages => TokenUsage {
            prompt_tokens: count("/input_tokens"),
            cached_tokens: count("/cache_read_input_tokens"),
            cache_write_tokens: count("/cache_creation_input_tokens"),
            completion_tokens: count("/output_tokens"),
            reasoning_tokens: count("/output_tokens_details/thinking_tokens"),
            cost: cost(),
        },
        Dialect::Gemini => {
            let thoughts = count("/thoughtsTokenCount");
            let prompt = count("/promptTokenCount").saturating_add(count("/toolUsePromptTokenCount"));
            TokenUsage {
                completion_tokens: count("/candidatesTokenCount").saturating_add(thoughts),
                reasoning_tokens: thoughts,
                ..within(prompt, count("/cachedContentTokenCount"), 0)
            }
        }
    }
}

/// Writes the counts as a provider of a dialect would.
pub(crate) fn write(dialect: Dialect, tokens: &TokenUsage) -> Value {
    let TokenUsage { cached_tokens: cached, cache_write_tokens: written, .. } = *tokens;
    let (output, reasoning) = (tokens.completion_tokens, tokens.reasoning_tokens);
    let (input, total) = (tokens.input_tokens(), tokens.total_tokens());
    match dialect {
        Dialect::Chat => json!({
            "prompt_tokens": input,
            "completion_tokens": output,
            "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }),
        Dialect::Responses => json!({
            "input_tokens": input,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": total,
        }),
        Dialect::Messages => json!({
            "input_tokens": tokens.prompt_tokens,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": cached,
            "output_tokens": output,
        }),
        Dialect::Gemini => json!({
            "promptTokenCount": input,
            "cachedContentTokenCount": cached,
            "candidatesTokenCount": output.saturating_sub(reasoning),
            "thoughtsTokenCount": reasoning,
            "totalTokenCount": total,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 tokens read, of which 40 came from a cache; 30 written, of which 10 are thoughts.
    fn expected() -> TokenUsage {
        TokenUsage {
            prompt_tokens: 60,
            cached_tokens: 40,
            cache_write_tokens: 0,
            completion_tokens: 30,
            reasoning_tokens: 10,
            cost: None,
        }
    }

    #[test]
    fn every_dialect_counts_the_same_call_alike() {
        for (dialect, usage) in [
            (
                Dialect::Chat,
                json!({"prompt_tokens": 100, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 40},
                       "completion_tokens_details": {"reasoning_tokens": 10}}),
            ),
            (
                Dialect::Responses,
                json!({"input_tokens": 100, "output_tokens": 30, "input_tokens_details": {"cached_tokens": 40},
                       "output_tokens_details": {"reasoning_tokens": 10}}),
            ),
            (
                Dialect::Messages,
                json!({"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 30,
                       "output_tokens_details": {"thinking_tokens": 10}}),
            ),
            (
                Dialect::Gemini,
                json!({"promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 20,
                       "thoughtsTokenCount": 10}),
            ),
        ] {
            assert_eq!(read(dialect, &usage), expected(), "{dialect:?}");
            let again = read(dialect, &write(dialect, &expected()));
            assert_eq!(again.total_tokens(), expected().total_tokens(), "{dialect:?}");
            let written = TokenUsage { cache_write_tokens: 5, ..expected() };
            let again = read(dialect, &write(dialect, &written));
            assert_eq!(again.input_tokens(), written.input_tokens(), "{dialect:?}");
        }
    }

    #[test]
    fn the_usage_of_a_response_is_found_where_its_dialect_has_it() {
        let body = json!({"usageMetadata": {"promptTokenCount": 5}, "usage": {"prompt_tokens": 7}});
        assert_eq!(of_response(Dialect::Gemini, &body).unwrap().tokens.input_tokens(), 5);
        assert_eq!(of_response(Dialect::Chat, &body).unwrap().raw, json!({"prompt_tokens": 7}));
        assert_eq!(of_response(Dialect::Chat, &json!({"usage": null})), None);
        let moonshot = json!({"choices": [{"usage": {"prompt_tokens": 9}}]});
        assert_eq!(of_response(Dialect::Chat, &moonshot).unwrap().tokens.input_tokens(), 9);
    }

    #[test]
    fn counts_that_make_no_sense_are_survived() {
        for usage in [
            json!({"prompt_tokens": -5, "completion_tokens": "many"}),
            json!({"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 18446744073709551615u64}}),
            json!({"prompt_tokens": 1e300}),
            json!([]),
        ] {
            read(Dialect::Chat, &usage).total_tokens();
        }
    }

    #[test]
    fn a_stream_of_messages_joins_the_counts_of_its_start_and_its_end() {
        let mut usage = StreamUsage::new(Dialect::Messages);
        assert_eq!(usage.usage(), None);
        usage.feed(&json!({"type": "message_start", "message": {"usage":
            {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 1}}}));
        usage.feed(&json!({"type": "message_delta", "delta": {}, "usage": {"input_tokens": null, "output_tokens": 30}}));
        let usage = usage.usage().unwrap();
        assert_eq!((usage.tokens.input_tokens(), usage.tokens.completion_tokens), (100, 30));
        assert_eq!(
            usage.raw,
            json!({"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 30})
        );
    }
}
