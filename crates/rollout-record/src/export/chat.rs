//! Functions shared by the formats with conversations.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use crate::{identity, saved::SavedJob};
use rollout_core::message::{Content, ToolCall};

/// The prefixes of image URLs.
const IMAGE_URLS: [&str; 3] = ["https://", "http://", "data:image/"];

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text. A part that is neither text nor an image is JSON text.
    Text(Cow<'a, str>),
    /// An image by its web URL or data URL. Never a path, which would be read on the reader's machine.
    Image(Cow<'a, str>),
}

/// Returns the parts of a message.
pub(super) fn parts(content: &Content) -> Vec<Part<'_>> {
    match content {
        Content::Text(text) => vec![Part::Text(text.into())],
        Content::Parts(parts) => parts.iter().map(part).collect(),
    }
}

fn part(part: &Value) -> Part<'_> {
    let text = |value: &'_ Value| value.as_str().map(str::to_owned);
    let image = || match part["type"].as_str()? {
        "image_url" => text(&part["image_url"]["url"]).or_else(|| text(&part["image_url"])),
        "image" => {
            let source = &part["source"];
            let embedded = || {
                let (kind, data) = (source["media_type"].as_str()?, source["data"].as_str()?);
                Some(format!("data:{kind};base64,{data}"))
            };
            text(&source["url"]).or_else(embedded)
        }
        _ => None,
    };
    match part {
        Value::String(text) => Part::Text(text.into()),
        Value::Object(fields) if fields.get("type").is_none_or(|kind| kind == "text") => {
            match fields.get("text") {
                Some(Value::String(text)) => Part::Text(text.into()),
                _ => Part::Text(part.to_string().into()),
            }
        }
        _ => match image().filter(|url| IMAGE_URLS.iter().any(|start| url.starts_with(start))) {
            Some(url) => Part::Image(url.into()),
            None => Part::Text(part.to_string().into()),
        },
    }
}

/// Returns the arguments of a call as an object. None if they are not an object, or contain an integer that would be
/// rounded.
pub(super) fn arguments(call: &ToolCall) -> Option<Map<String, Value>> {
    if call.arguments.trim().is_empty() {
        return Some(Map::new());
    }
    serde_json::from_str(&call.arguments).ok().filter(|_| has_exact_integers(&call.arguments))
}

/// Whether every integer in a JSON text fits into 64 bits. Readers round larger integers.
fn has_exact_integers(json: &str) -> bool {
    let mut rest = json;
    while let Some(start) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        rest = &rest[start..];
        if let Some(text) = rest.strip_prefix('"') {
            rest = after_text(text);
            continue;
        }
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        let (number, after) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
        rest = after;
        let is_integer = !number.contains(['.', 'e', 'E']);
        if is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
            return false;
        }
    }
    true
}

/// Returns the rest of a JSON text after the end of a string.
fn after_text(text: &str) -> &str {
    let mut is_escaped = false;
    let end = text.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    end.map_or("", |end| &text[end + 1..])
}

/// Returns the time this many seconds later, or the same time if the number is missing or out of range.
pub(super) fn later(now: Timestamp, seconds: Option<f64>) -> Timestamp {
    let length = seconds.and_then(|seconds| SignedDuration::try_from_secs_f64(seconds).ok());
    length.and_then(|length| now.checked_add(length).ok()).unwrap_or(now)
}

/// Returns the name of an agent's model on its server, or None if the agent is not a model.
pub(super) fn model_of<'a>(job: &'a SavedJob, agent: &str) -> Option<&'a str> {
    let config = job.config();
    let agents = config["agents"].as_array().into_iter().flatten();
    let model =
        agents.filter(|entry| entry["name"] == agent).find_map(|entry| entry["model"]["name"].as_str());
    model.or_else(|| identity::model_name(config))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_and_images_of_every_dialect_are_recognized() {
        let content = Content::Parts(vec![
            json!({"type": "text", "text": "look"}),
            json!("here"),
            json!({"type": "image_url", "image_url": {"url": "https://host/a.png"}}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}),
            json!({"type": "image_url"}),
            json!({"type": "image_url", "image_url": "file:///etc/passwd"}),
            json!({"type": "text", "text": 4}),
        ]);
        assert_eq!(
            parts(&content),
            [
                Part::Text("look".into()),
                Part::Text("here".into()),
                Part::Image("https://host/a.png".into()),
                Part::Image("data:image/png;base64,AA==".into()),
                Part::Text(r#"{"type":"image_url"}"#.into()),
                Part::Text(r#"{"type":"image_url","image_url":"file:///etc/passwd"}"#.into()),
                Part::Text(r#"{"type":"text","text":4}"#.into()),
            ]
        );
    }

    #[test]
    fn only_an_object_whose_numbers_survive_is_arguments() {
        for (text, expected) in [
            (r#"{"x": 1}"#, Some(json!({"x": 1}))),
            ("", Some(json!({}))),
            ("  ", Some(json!({}))),
            ("[1]", None),
            ("{\"x\": ", None),
            (r#"{"x": "\ud800"}"#, None),
            (r#"{"x": [12345678901234567890123]}"#, None),
            (r#"{"x": -9223372036854775809}"#, None),
            (
                r#"{"x": [18446744073709551615, -9223372036854775808, 1.5, 1e25, -0]}"#,
                Some(json!({"x": [u64::MAX, i64::MIN, 1.5, 1e25, -0.0]})),
            ),
            (
                r#"{"12345678901234567890123": "a\\\"12345678901234567890123", "y": "\\", "z": true}"#,
                Some(
                    json!({"12345678901234567890123": "a\\\"12345678901234567890123", "y": "\\", "z": true}),
                ),
            ),
        ] {
            let arguments = arguments(&ToolCall::new("1", "f", text)).map(Value::Object);
            assert_eq!(arguments, expected, "{text}");
        }
    }
}
