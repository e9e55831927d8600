//! Requests of real agents, answers and streams through every pair of dialects.

mod chat_and_messages;
mod gemini_pairs;
mod properties;
mod responses_pairs;

use serde_json::{Value, json};

use super::*;

pub(super) fn target(model: &str) -> Target<'_> {
    Target { model, asked: "asked-model", stream: false, now: 1_700_000_000 }
}

/// Translates a request, and returns the body and the notes.
pub(super) fn translated(from: Dialect, to: Dialect, model: &str, body: Value) -> Translated {
    request(from, to, body, &target(model)).unwrap()
}

/// What a pair of dialects does with an answer to a request.
pub(super) fn context(client: Dialect, upstream: Dialect, body: Value) -> AnswerContext {
    translated(client, upstream, "m", body).context
}

/// The request of a client that has nothing to say.
pub(super) fn plain_request(client: Dialect) -> Value {
    match client {
        Dialect::Chat => {
            json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": true,
                   "stream_options": {"include_usage": true}})
        }
        Dialect::Responses => json!({"model": "m", "input": "Hi", "stream": true}),
        Dialect::Messages => {
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "stream": true})
        }
        Dialect::Gemini => json!({"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}),
    }
}

/// Feeds a stream's events, and returns the client's bytes as text.
pub(super) fn streamed(context: &AnswerContext, events: &[Value]) -> String {
    let mut translator = context.stream();
    let mut bytes = Vec::new();
    for event in events {
        bytes.extend(translator.feed(event.to_string().as_bytes()).unwrap());
    }
    bytes.extend(translator.finish().unwrap());
    String::from_utf8(bytes).unwrap()
}

/// JSON as people read it: a line for each field, and for each element of a list in it.
pub(super) fn pretty(value: &Value) -> String {
    let line = |(key, value): (&String, &Value)| match value {
        Value::Array(list) if !list.is_empty() => {
            let elements: Vec<String> = list.iter().map(|element| format!("  {element}")).collect();
            format!("{key}:\n{}", elements.join("\n"))
        }
        value => format!("{key}: {value}"),
    };
    value.as_object().unwrap().iter().map(line).collect::<Vec<_>>().join("\n")
}
