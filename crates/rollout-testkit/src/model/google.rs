//! Replies in the format of Google's generateContent.

use serde_json::{Value, json};

use super::{
    render::{Event, Rendering},
    reply::{ScriptedMessage, Tokens, Usage},
    token::words,
};

/// The whole reply at once.
pub(super) fn body(said: &ScriptedMessage, rendering: &Rendering) -> Value {
    let mut parts = Vec::new();
    if let Some((_, thoughts)) = &said.reasoning {
        parts.push(json!({"text": thoughts, "thought": true}));
    }
    parts.extend(said.text.iter().chain(&said.refusal).map(|text| json!({"text": text})));
    parts.extend(calls(said));
    last(said, rendering, parts)
}

/// The reply as the events of a stream.
pub(super) fn events(said: &ScriptedMessage, rendering: &Rendering) -> Vec<Event> {
    let mut parts = Vec::new();
    if let Some((_, thoughts)) = &said.reasoning {
        parts.extend(words(thoughts).map(|word| json!({"text": word, "thought": true})));
    }
    for text in said.text.iter().chain(&said.refusal) {
        parts.extend(words(text).map(|word| json!({"text": word})));
    }
    parts.extend(calls(said));
    let end = parts.pop();
    let chunk = |part: Value| envelope(said, rendering, json!({"content": content(vec![part]), "index": 0}));
    let mut events: Vec<Event> = parts.into_iter().map(|part| Event::data(&chunk(part))).collect();
    events.push(Event::data(&last(said, rendering, end.into_iter().collect())));
    events
}

/// An error with its status.
pub(super) fn error(status: u16, message: &str) -> Value {
    let word = match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        400..=499 => "INVALID_ARGUMENT",
        _ => "INTERNAL",
    };
    json!({"error": {"code": status, "message": message, "status": word}})
}

fn calls(said: &ScriptedMessage) -> impl Iterator<Item = Value> {
    said.calls.iter().map(|call| {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        json!({"functionCall": {"name": call.name, "args": arguments}})
    })
}

fn content(parts: Vec<Value>) -> Value {
    json!({"role": "model", "parts": parts})
}

fn envelope(said: &ScriptedMessage, rendering: &Rendering, candidate: Value) -> Value {
    let mut envelope = json!({
        "candidates": [candidate],
        "modelVersion": rendering.model,
        "responseId": rendering.id("gen"),
    });
    for (name, value) in &said.fields {
        envelope[name] = value.clone();
    }
    envelope
}

fn last(said: &ScriptedMessage, rendering: &Rendering, parts: Vec<Value>) -> Value {
    let tokens = rendering.tokens(said);
    let reason = match said.finished().as_str() {
        Some("length") => "MAX_TOKENS",
        Some("content_filter") => "SAFETY",
        _ => "STOP",
    };
    let mut candidate = json!({"content": content(parts), "finishReason": reason, "index": 0});
    if rendering.asked.logprobs {
        let chosen = tokens.completion.iter().zip(&tokens.logprobs).map(
            |(id, logprob)| json!({"token": format!("<{id}>"), "tokenId": id, "logProbability": logprob}),
        );
        candidate["logprobsResult"] = json!({"chosenCandidates": chosen.collect::<Value>()});
    }
    let mut whole = envelope(said, rendering, candidate);
    if let Some(usage) = usage(said, &tokens) {
        whole["usageMetadata"] = usage;
    }
    whole
}

fn usage(said: &ScriptedMessage, tokens: &Tokens) -> Option<Value> {
    let counts = match &said.usage {
        Usage::Given(counts) => *counts,
        Usage::Counted => tokens.counts(),
        Usage::Raw(usage) => return Some(usage.clone()),
        Usage::Absent => return None,
    };
    Some(json!({
        "promptTokenCount": counts.prompt,
        "cachedContentTokenCount": counts.cached,
        "candidatesTokenCount": counts.completion.saturating_sub(counts.reasoning),
        "thoughtsTokenCount": counts.reasoning,
        "totalTokenCount": counts.prompt + counts.completion,
    }))
}
