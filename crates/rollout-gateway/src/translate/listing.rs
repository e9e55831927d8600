//! Model lists and token counts: the small endpoints beside the answers.

use serde_json::{Value, json};

use super::{Target, Translated, TranslationError, request};
use crate::Dialect;

/// The tokens of an image in an estimate.
const IMAGE: u64 = 1500;

/// The bytes of a token in an estimate. English text has about four, code fewer.
const BYTES: u64 = 4;

/// A list of models.
pub(crate) fn model_list(to: Dialect, models: &[&str], now: i64) -> Value {
    match to {
        Dialect::Chat | Dialect::Responses => {
            let model =
                |id: &&str| json!({"id": id, "object": "model", "created": now, "owned_by": "rollout"});
            json!({"object": "list", "data": models.iter().map(model).collect::<Value>()})
        }
        Dialect::Messages => {
            let model = |id: &&str| json!({"type": "model", "id": id, "display_name": id, "created_at": "2025-01-01T00:00:00Z"});
            json!({
                "data": models.iter().map(model).collect::<Value>(),
                "has_more": false,
                "first_id": models.first(),
                "last_id": models.last(),
            })
        }
        Dialect::Gemini => {
            let methods = ["generateContent", "streamGenerateContent", "countTokens"];
            let model = |id: &&str| json!({"name": format!("models/{id}"), "displayName": id, "supportedGenerationMethods": methods});
            json!({"models": models.iter().map(model).collect::<Value>()})
        }
    }
}

/// Translates a request to count tokens. None if the upstream's dialect has no such request: Chat Completions.
pub(crate) fn count_request(
    client: Dialect,
    upstream: Dialect,
    body: Value,
    target: &Target<'_>,
) -> Result<Option<Translated>, TranslationError> {
    if upstream == Dialect::Chat {
        return Ok(None);
    }
    let mut translated = request(client, upstream, counted(client, body), target)?;
    let sampling: &[&str] = match upstream {
        Dialect::Messages => &["max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream"],
        Dialect::Responses => &["max_output_tokens", "temperature", "top_p", "store", "include", "stream"],
        Dialect::Chat | Dialect::Gemini => &[],
    };
    if let Some(fields) = translated.body.as_object_mut() {
        fields.retain(|key, _| !sampling.contains(&key.as_str()));
    }
    if upstream == Dialect::Gemini {
        translated.body["model"] = json!(format!("models/{}", target.model));
        translated.body = json!({"generateContentRequest": translated.body});
    }
    Ok(Some(translated))
}

/// The request that a client wants counted. Gemini's clients may wrap it.
fn counted(client: Dialect, mut body: Value) -> Value {
    let wrapped = ["generateContentRequest", "generate_content_request"];
    let inner = wrapped.iter().find(|key| body.get(**key).is_some_and(Value::is_object));
    match inner.filter(|_| client == Dialect::Gemini) {
        Some(key) => body[*key].take(),
        None => body,
    }
}

/// The count in an upstream's answer.
pub(crate) fn read_count(upstream: Dialect, body: &Value) -> Option<u64> {
    let key = if upstream == Dialect::Gemini { "totalTokens" } else { "input_tokens" };
    body.get(key)?.as_u64()
}

/// A count as the client's dialect answers it.
pub(crate) fn write_count(client: Dialect, tokens: u64) -> Value {
    match client {
        Dialect::Gemini => json!({"totalTokens": tokens}),
        Dialect::Responses => json!({"object": "response.input_tokens", "input_tokens": tokens}),
        Dialect::Chat | Dialect::Messages => json!({"input_tokens": tokens}),
    }
}

/// A rough count for an upstream that counts only what it answers: a token for every four bytes, and a fixed number for
/// an image. Agents use it to decide when to shorten a conversation.
pub(crate) fn estimate_tokens(body: &Value) -> u64 {
    let mut bytes: u64 = 0;
    let mut images: u64 = 0;
    let mut rest = vec![(None, body)];
    while let Some((key, value)) = rest.pop() {
        match value {
            Value::String(text) => {
                match text.starts_with("data:") || (key == Some("data") && text.len() > 500) {
                    true => images += 1,
                    false => bytes += text.len() as u64,
                }
            }
            Value::Array(list) => rest.extend(list.iter().map(|value| (key, value))),
            Value::Object(fields) => {
                bytes += fields.keys().map(|key| key.len() as u64).sum::<u64>();
                rest.extend(fields.iter().map(|(key, value)| (Some(key.as_str()), value)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => bytes += BYTES,
        }
    }
    bytes.div_ceil(BYTES).saturating_add(images.saturating_mul(IMAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target<'static> {
        Target { model: "up", asked: "asked", stream: false, now: 7 }
    }

    #[test]
    fn lists_of_models_have_the_form_of_their_dialect() {
        let list = |to| model_list(to, &["a", "b"], 7).to_string();
        insta::assert_snapshot!(list(Dialect::Chat), @r#"{"object":"list","data":[{"id":"a","object":"model","created":7,"owned_by":"rollout"},{"id":"b","object":"model","created":7,"owned_by":"rollout"}]}"#);
        insta::assert_snapshot!(list(Dialect::Messages), @r#"{"data":[{"type":"model","id":"a","display_name":"a","created_at":"2025-01-01T00:00:00Z"},{"type":"model","id":"b","display_name":"b","created_at":"2025-01-01T00:00:00Z"}],"has_more":false,"first_id":"a","last_id":"b"}"#);
        insta::assert_snapshot!(list(Dialect::Gemini), @r#"{"models":[{"name":"models/a","displayName":"a","supportedGenerationMethods":["generateContent","streamGenerateContent","countTokens"]},{"name":"models/b","displayName":"b","supportedGenerationMethods":["generateContent","streamGenerateContent","countTokens"]}]}"#);
    }

    #[test]
    fn a_count_is_asked_of_an_upstream_that_can_count() {
        let body =
            json!({"model": "m", "system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]});
        let count = |to| count_request(Dialect::Messages, to, body.clone(), &target()).unwrap();
        assert!(count(Dialect::Chat).is_none());
        insta::assert_snapshot!(count(Dialect::Gemini).unwrap().body, @r#"{"generateContentRequest":{"systemInstruction":{"parts":[{"text":"Be brief."}]},"contents":[{"role":"user","parts":[{"text":"Hi"}]}],"model":"models/up"}}"#);
        insta::assert_snapshot!(count(Dialect::Responses).unwrap().body, @r#"{"model":"up","instructions":"Be brief.","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]}]}"#);
        let wrapped = json!({"generateContentRequest": {"contents": [{"parts": [{"text": "Hi"}]}]}});
        let count = count_request(Dialect::Gemini, Dialect::Messages, wrapped, &target()).unwrap().unwrap();
        assert_eq!(count.body.get("max_tokens"), None);
        assert_eq!(count.body["messages"][0]["content"][0]["text"], "Hi");
    }

    #[test]
    fn counts_are_passed_on_in_the_words_of_the_client() {
        for dialect in [Dialect::Responses, Dialect::Messages, Dialect::Gemini] {
            assert_eq!(read_count(dialect, &write_count(dialect, 42)), Some(42));
        }
        assert_eq!(read_count(Dialect::Gemini, &json!({"input_tokens": 1})), None);
    }

    #[test]
    fn an_estimate_grows_with_the_text_and_not_with_the_bytes_of_images() {
        let text = json!({"messages": [{"role": "user", "content": "a".repeat(4000)}]});
        assert_eq!(estimate_tokens(&text), 1006);
        let image = json!({"type": "base64", "data": "A".repeat(1_000_000)});
        assert_eq!(estimate_tokens(&image), 1504);
    }
}
