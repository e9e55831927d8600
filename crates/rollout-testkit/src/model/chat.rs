//! Replies in the format of OpenAI's chat completions.

use serde_json::{Map, Value, json};

use super::{
    render::{Event, Rendering},
    reply::{Call, Reasoning, ScriptedMessage, TokenFields, Tokens, Usage},
    token::words,
};

const CREATED: i64 = 1_700_000_000;

/// The whole reply at once.
pub(super) fn body(said: &ScriptedMessage, rendering: &Rendering) -> Value {
    let tokens = rendering.tokens(said);
    let mut message = json!({"role": "assistant", "content": content(said)});
    if let Some((place, text)) = &said.reasoning {
        message[place.field()] = place.value(text);
    }
    if let Some(refusal) = &said.refusal {
        message["refusal"] = json!(refusal);
    }
    if !said.calls.is_empty() {
        let calls = said.calls.iter().enumerate().map(|(index, call)| {
            json!({
                "id": rendering.call_id(call, index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        });
        message["tool_calls"] = calls.collect();
    }
    for (name, value) in &said.message_fields {
        message[name] = value.clone();
    }
    let mut choice = json!({"index": 0, "message": message, "finish_reason": said.finished()});
    if rendering.asked.logprobs {
        choice["logprobs"] = logprobs(&tokens, rendering, 0..tokens.completion.len());
    }
    if let Some(experts) = &said.routed_experts {
        choice["routed_experts"] = experts.clone();
    }
    let mut body = json!({
        "id": rendering.id("chatcmpl"),
        "object": "chat.completion",
        "created": CREATED,
        "model": rendering.model,
    });
    if rendering.asked.token_ids {
        let (prompt, completion) = (json!(tokens.prompt), json!(tokens.completion));
        match said.token_fields {
            TokenFields::Vllm => {
                body["prompt_token_ids"] = prompt;
                choice["token_ids"] = completion;
            }
            TokenFields::Choice => {
                choice["prompt_token_ids"] = prompt;
                choice["token_ids"] = completion;
            }
            TokenFields::OutputIds => {
                body["prompt_token_ids"] = prompt;
                choice["output_ids"] = completion;
            }
            TokenFields::Message => {
                choice["message"]["prompt_token_ids"] = prompt;
                choice["message"]["completion_token_ids"] = completion;
            }
        }
    }
    body["choices"] = (0..said.choices).map(|index| numbered(&choice, index)).collect();
    if let Some(usage) = usage(said, &tokens) {
        body["usage"] = usage;
    }
    for (name, value) in &said.fields {
        body[name] = value.clone();
    }
    body
}

/// The reply as the events of a stream.
pub(super) fn events(said: &ScriptedMessage, rendering: &Rendering) -> Vec<Event> {
    let asked = rendering.asked;
    let tokens = rendering.tokens(said);
    let mut envelope = json!({
        "id": rendering.id("chatcmpl"),
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": rendering.model,
    });
    for (name, value) in &said.fields {
        envelope[name] = value.clone();
    }
    if asked.include_usage {
        envelope["usage"] = Value::Null;
    }
    let deltas = deltas(said, rendering);
    // The last one has the finish reason and the remaining tokens.
    let count = deltas.len() + 1;
    let mut events = Vec::new();
    for index in 0..said.choices {
        for (place, delta) in deltas.iter().chain([&json!({})]).enumerate() {
            let last = place + 1 == count;
            let of_delta =
                place * tokens.completion.len() / count..(place + 1) * tokens.completion.len() / count;
            let mut choice = json!({"index": 0, "delta": delta, "finish_reason": null});
            if last {
                choice["finish_reason"] = said.finished();
                if let Some(experts) = &said.routed_experts {
                    choice["routed_experts"] = experts.clone();
                }
            }
            if asked.logprobs {
                choice["logprobs"] = logprobs(&tokens, rendering, of_delta.clone());
            }
            let mut chunk = envelope.clone();
            if asked.token_ids {
                let completion = json!(tokens.completion[of_delta]);
                match said.token_fields {
                    TokenFields::Vllm | TokenFields::Choice => choice["token_ids"] = completion,
                    TokenFields::OutputIds => choice["output_ids"] = completion,
                    TokenFields::Message => choice["delta"]["completion_token_ids"] = completion,
                }
                if place == 0 {
                    let prompt = json!(tokens.prompt);
                    match said.token_fields {
                        TokenFields::Vllm | TokenFields::OutputIds => chunk["prompt_token_ids"] = prompt,
                        TokenFields::Choice => choice["prompt_token_ids"] = prompt,
                        TokenFields::Message => choice["delta"]["prompt_token_ids"] = prompt,
                    }
                }
            }
            chunk["choices"] = json!([numbered(&choice, index)]);
            events.push(Event::data(&chunk));
        }
    }
    if asked.include_usage
        && let Some(usage) = usage(said, &tokens)
    {
        envelope["choices"] = json!([]);
        envelope["usage"] = usage;
        events.push(Event::data(&envelope));
    }
    events.push(Event { name: None, data: "[DONE]".to_owned() });
    events
}

/// An error with its status.
pub(super) fn error(status: u16, code: Option<&str>, message: &str) -> Value {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

fn content(said: &ScriptedMessage) -> Value {
    match &said.parts {
        Some(parts) => json!(parts),
        None => json!(said.text),
    }
}

fn deltas(said: &ScriptedMessage, rendering: &Rendering) -> Vec<Value> {
    let mut first = json!({"role": "assistant", "content": ""});
    for (name, value) in &said.message_fields {
        first[name] = value.clone();
    }
    let mut deltas = vec![first];
    if let Some((place, text)) = &said.reasoning {
        deltas.extend(words(text).map(|word| one(place.field(), place.value(word))));
    }
    match &said.parts {
        Some(parts) => deltas.push(json!({"content": parts})),
        None => deltas
            .extend(words(said.text.as_deref().unwrap_or_default()).map(|word| one("content", json!(word)))),
    }
    if let Some(refusal) = &said.refusal {
        deltas.extend(words(refusal).map(|word| one("refusal", json!(word))));
    }
    for (index, call) in said.calls.iter().enumerate() {
        deltas.extend(call_deltas(call, index, &rendering.call_id(call, index)));
    }
    deltas
}

fn call_deltas(call: &Call, index: usize, id: &str) -> Vec<Value> {
    let first = json!({
        "index": index, "id": id, "type": "function", "function": {"name": call.name, "arguments": ""},
    });
    let rest = words(&call.arguments)
        .flat_map(halves)
        .map(|piece| json!({"index": index, "function": {"arguments": piece}}));
    [first].into_iter().chain(rest).map(|call| json!({"tool_calls": [call]})).collect()
}

/// A word in two pieces, so that arguments without spaces also arrive in pieces.
pub(super) fn halves(word: &str) -> impl Iterator<Item = &str> {
    let middle = word.char_indices().nth(word.chars().count() / 2).map_or(0, |(place, _)| place);
    let (first, second) = word.split_at(middle);
    [first, second].into_iter().filter(|piece| !piece.is_empty())
}

fn one(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}

fn numbered(choice: &Value, index: usize) -> Value {
    let mut choice = choice.clone();
    choice["index"] = json!(index);
    choice
}

fn logprobs(tokens: &Tokens, rendering: &Rendering, range: std::ops::Range<usize>) -> Value {
    let content = range.map(|place| {
        let id = tokens.completion[place];
        let token = if rendering.asked.tokens_as_ids { format!("token_id:{id}") } else { format!("<{id}>") };
        json!({"token": token, "logprob": tokens.logprobs[place], "bytes": null, "top_logprobs": []})
    });
    json!({"content": content.collect::<Vec<_>>()})
}

fn usage(said: &ScriptedMessage, tokens: &Tokens) -> Option<Value> {
    let counts = match &said.usage {
        Usage::Given(counts) => *counts,
        Usage::Counted => tokens.counts(),
        Usage::Raw(usage) => return Some(usage.clone()),
        Usage::Absent => return None,
    };
    let mut usage = json!({
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    });
    if let Some(cost) = counts.cost {
        usage["cost"] = json!(cost);
    }
    Some(usage)
}

impl Reasoning {
    fn field(self) -> &'static str {
        match self {
            Self::Reasoning => "reasoning",
            Self::ReasoningContent => "reasoning_content",
            Self::ReasoningDetails => "reasoning_details",
        }
    }

    fn value(self, text: &str) -> Value {
        match self {
            Self::Reasoning | Self::ReasoningContent => json!(text),
            Self::ReasoningDetails => json!([{"type": "reasoning.text", "text": text, "index": 0}]),
        }
    }
}
