//! Replies in the format of Anthropic's messages.

use serde_json::{Value, json};

use super::{
    chat::halves,
    render::{Event, Rendering},
    reply::{ScriptedMessage, Tokens, Usage},
    token::words,
};

/// The server's signature of thoughts, which clients must send back with them.
const SIGNATURE: &str = "c2lnbmVkIGJ5IHRoZSBzY3JpcHQ=";

/// The whole reply at once.
pub(super) fn body(said: &ScriptedMessage, rendering: &Rendering) -> Value {
    let tokens = rendering.tokens(said);
    let mut body = envelope(said, rendering);
    body["content"] = blocks(said, rendering).into_iter().map(|block| block.whole).collect();
    body["stop_reason"] = stop_reason(said);
    match usage(said, &tokens) {
        Some(usage) => body["usage"] = usage,
        None => body["usage"] = Value::Null,
    }
    body
}

/// The reply as the events of a stream.
pub(super) fn events(said: &ScriptedMessage, rendering: &Rendering) -> Vec<Event> {
    let tokens = rendering.tokens(said);
    let usage = usage(said, &tokens);
    let mut message = envelope(said, rendering);
    message["content"] = json!([]);
    message["stop_reason"] = Value::Null;
    if let Some(mut usage) = usage.clone() {
        // The output is not known yet.
        usage["output_tokens"] = json!(1);
        message["usage"] = usage;
    }
    let mut events = vec![event("message_start", json!({"message": message})), event("ping", json!({}))];
    for (index, block) in blocks(said, rendering).into_iter().enumerate() {
        let with = |mut value: Value| {
            value["index"] = json!(index);
            value
        };
        events.push(event("content_block_start", with(json!({"content_block": block.start}))));
        let deltas = block.deltas.into_iter().map(|delta| with(json!({"delta": delta})));
        events.extend(deltas.map(|delta| event("content_block_delta", delta)));
        events.push(event("content_block_stop", with(json!({}))));
    }
    let mut end = json!({"delta": {"stop_reason": stop_reason(said), "stop_sequence": null}});
    if let Some(usage) = usage {
        end["usage"] = json!({"output_tokens": usage["output_tokens"]});
    }
    events.push(event("message_delta", end));
    events.push(event("message_stop", json!({})));
    events
}

/// An error with its status.
pub(super) fn error(status: u16, message: &str) -> Value {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

/// One event of a stream, whose data repeats its name.
pub(super) fn event(name: &'static str, mut data: Value) -> Event {
    data["type"] = json!(name);
    Event { name: Some(name), data: data.to_string() }
}

fn envelope(said: &ScriptedMessage, rendering: &Rendering) -> Value {
    let mut envelope = json!({
        "id": rendering.id("msg"),
        "type": "message",
        "role": "assistant",
        "model": rendering.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    });
    for (name, value) in said.fields.iter().chain(&said.message_fields) {
        envelope[name] = value.clone();
    }
    envelope
}

struct Block {
    whole: Value,
    start: Value,
    deltas: Vec<Value>,
}

fn blocks(said: &ScriptedMessage, rendering: &Rendering) -> Vec<Block> {
    let mut blocks = Vec::new();
    if let Some((_, thoughts)) = &said.reasoning {
        let mut deltas: Vec<Value> =
            words(thoughts).map(|word| json!({"type": "thinking_delta", "thinking": word})).collect();
        deltas.push(json!({"type": "signature_delta", "signature": SIGNATURE}));
        blocks.push(Block {
            whole: json!({"type": "thinking", "thinking": thoughts, "signature": SIGNATURE}),
            start: json!({"type": "thinking", "thinking": "", "signature": ""}),
            deltas,
        });
    }
    for text in said.text.iter().chain(&said.refusal) {
        blocks.push(Block {
            whole: json!({"type": "text", "text": text}),
            start: json!({"type": "text", "text": ""}),
            deltas: words(text).map(|word| json!({"type": "text_delta", "text": word})).collect(),
        });
    }
    for part in said.parts.iter().flatten() {
        blocks.push(Block { whole: part.clone(), start: part.clone(), deltas: Vec::new() });
    }
    for (index, call) in said.calls.iter().enumerate() {
        let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!(call.arguments));
        let block = |input: Value| json!({"type": "tool_use", "id": rendering.call_id(call, index), "name": call.name, "input": input});
        let pieces = words(&call.arguments).flat_map(halves);
        blocks.push(Block {
            whole: block(input),
            start: block(json!({})),
            deltas: pieces.map(|piece| json!({"type": "input_json_delta", "partial_json": piece})).collect(),
        });
    }
    blocks
}

fn stop_reason(said: &ScriptedMessage) -> Value {
    match said.finished().as_str() {
        None => Value::Null,
        Some("stop") if said.refusal.is_some() => json!("refusal"),
        Some("stop") => json!("end_turn"),
        Some("length") => json!("max_tokens"),
        Some("tool_calls") => json!("tool_use"),
        Some("content_filter") => json!("refusal"),
        Some(other) => json!(other),
    }
}

fn usage(said: &ScriptedMessage, tokens: &Tokens) -> Option<Value> {
    let counts = match &said.usage {
        Usage::Given(counts) => *counts,
        Usage::Counted => tokens.counts(),
        Usage::Raw(usage) => return Some(usage.clone()),
        Usage::Absent => return None,
    };
    Some(json!({
        "input_tokens": counts.prompt.saturating_sub(counts.cached + counts.cache_write),
        "cache_read_input_tokens": counts.cached,
        "cache_creation_input_tokens": counts.cache_write,
        "output_tokens": counts.completion,
    }))
}
