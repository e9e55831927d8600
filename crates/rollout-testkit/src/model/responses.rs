//! Replies in the format of OpenAI's responses.

use serde_json::{Value, json};

use super::{
    chat::halves,
    render::{Event, Rendering},
    reply::{ScriptedMessage, Tokens, Usage},
    token::words,
};

const CREATED: i64 = 1_700_000_000;

/// The whole reply at once.
pub(super) fn body(said: &ScriptedMessage, rendering: &Rendering) -> Value {
    let output: Vec<Value> = items(said, rendering).into_iter().map(|item| item.whole).collect();
    finished(said, rendering, &output)
}

/// The reply as the events of a stream.
pub(super) fn events(said: &ScriptedMessage, rendering: &Rendering) -> Vec<Event> {
    let mut events = Vec::new();
    let begun = envelope(said, rendering, "in_progress");
    add(&mut events, "response.created", json!({"response": begun}));
    add(&mut events, "response.in_progress", json!({"response": begun}));
    let mut output = Vec::new();
    for (index, item) in items(said, rendering).into_iter().enumerate() {
        add(&mut events, "response.output_item.added", json!({"output_index": index, "item": item.start}));
        for (name, mut data) in item.events {
            data["output_index"] = json!(index);
            data["item_id"] = item.whole["id"].clone();
            add(&mut events, name, data);
        }
        add(&mut events, "response.output_item.done", json!({"output_index": index, "item": item.whole}));
        output.push(item.whole);
    }
    let whole = finished(said, rendering, &output);
    let name = if whole["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
    add(&mut events, name, json!({"response": whole}));
    events
}

/// The event of an error in a stream.
pub(super) fn failure(message: &str) -> Event {
    let error = json!({"code": "server_error", "message": message});
    let data = json!({
        "type": "response.failed",
        "response": {"id": "resp-failed", "object": "response", "status": "failed", "error": error, "output": []},
    });
    Event { name: Some("response.failed"), data: data.to_string() }
}

fn add(events: &mut Vec<Event>, name: &'static str, mut data: Value) {
    data["type"] = json!(name);
    data["sequence_number"] = json!(events.len());
    events.push(Event { name: Some(name), data: data.to_string() });
}

struct Item {
    whole: Value,
    start: Value,
    events: Vec<(&'static str, Value)>,
}

fn items(said: &ScriptedMessage, rendering: &Rendering) -> Vec<Item> {
    let mut items = Vec::new();
    if let Some((_, thoughts)) = &said.reasoning {
        let item =
            |summary: Value| json!({"type": "reasoning", "id": rendering.id("rs"), "summary": summary});
        let part = json!({"type": "summary_text", "text": thoughts});
        let mut events = vec![(
            "response.reasoning_summary_part.added",
            json!({"summary_index": 0, "part": {"type": "summary_text", "text": ""}}),
        )];
        let deltas = words(thoughts).map(|word| json!({"summary_index": 0, "delta": word}));
        events.extend(deltas.map(|delta| ("response.reasoning_summary_text.delta", delta)));
        events.push(("response.reasoning_summary_text.done", json!({"summary_index": 0, "text": thoughts})));
        events.push(("response.reasoning_summary_part.done", json!({"summary_index": 0, "part": part})));
        items.push(Item { whole: item(json!([part])), start: item(json!([])), events });
    }
    for text in said.text.iter().chain(&said.refusal) {
        items.push(message(text, said, rendering));
    }
    for (index, call) in said.calls.iter().enumerate() {
        let id = format!("fc_{}_{index}", rendering.number);
        let item = |arguments: &str, status: &str| {
            json!({"type": "function_call", "id": id, "call_id": rendering.call_id(call, index), "name": call.name,
                "arguments": arguments, "status": status})
        };
        let pieces = words(&call.arguments).flat_map(halves).map(|piece| json!({"delta": piece}));
        let mut events: Vec<_> =
            pieces.map(|delta| ("response.function_call_arguments.delta", delta)).collect();
        events.push((
            "response.function_call_arguments.done",
            json!({"name": call.name, "arguments": call.arguments}),
        ));
        items.push(Item {
            whole: item(&call.arguments, "completed"),
            start: item("", "in_progress"),
            events,
        });
    }
    items
}

fn message(text: &str, said: &ScriptedMessage, rendering: &Rendering) -> Item {
    let logprobs = match rendering.asked.logprobs {
        true => logprobs(&rendering.tokens(said)),
        false => json!([]),
    };
    let part = |text: &str, logprobs: &Value| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs});
    let whole = part(text, &logprobs);
    let item = |content: Value, status: &str| json!({"type": "message", "id": rendering.id("msg"), "role": "assistant", "status": status, "content": content});
    let mut events =
        vec![("response.content_part.added", json!({"content_index": 0, "part": part("", &json!([]))}))];
    let deltas = words(text).map(|word| json!({"content_index": 0, "delta": word, "logprobs": []}));
    events.extend(deltas.map(|delta| ("response.output_text.delta", delta)));
    events.push((
        "response.output_text.done",
        json!({"content_index": 0, "text": text, "logprobs": logprobs.clone()}),
    ));
    events.push(("response.content_part.done", json!({"content_index": 0, "part": whole.clone()})));
    Item { whole: item(json!([whole]), "completed"), start: item(json!([]), "in_progress"), events }
}

fn logprobs(tokens: &Tokens) -> Value {
    let each = tokens.completion.iter().zip(&tokens.logprobs);
    each.map(
        |(id, logprob)| json!({"token": format!("<{id}>"), "logprob": logprob, "bytes": [], "top_logprobs": []}),
    )
    .collect()
}

fn envelope(said: &ScriptedMessage, rendering: &Rendering, status: &str) -> Value {
    let mut envelope = json!({
        "id": rendering.id("resp"),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "metadata": {},
        "model": rendering.model,
        "output": [],
        "parallel_tool_calls": true,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": null,
    });
    for (name, value) in &said.fields {
        envelope[name] = value.clone();
    }
    envelope
}

fn finished(said: &ScriptedMessage, rendering: &Rendering, output: &[Value]) -> Value {
    let is_cut = said.finished() == "length";
    let mut whole = envelope(said, rendering, if is_cut { "incomplete" } else { "completed" });
    if is_cut {
        whole["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    whole["output"] = json!(output);
    whole["usage"] = usage(said, &rendering.tokens(said));
    whole
}

fn usage(said: &ScriptedMessage, tokens: &Tokens) -> Value {
    let counts = match &said.usage {
        Usage::Given(counts) => *counts,
        Usage::Counted => tokens.counts(),
        Usage::Raw(usage) => return usage.clone(),
        Usage::Absent => return Value::Null,
    };
    json!({
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    })
}
