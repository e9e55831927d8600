//! The events of `goose run --output-format stream-json`.

use serde_json::Value;

use super::{Builder, count, list, string, text_of};
use rollout_core::{message::Message, result::AgentUsage};

pub(super) fn event(log: &mut Builder, event: &Value) {
    match string(&event["type"]) {
        "message" => message(log, &event["message"]),
        "complete" if event["input_tokens"].is_u64() => log.usage(AgentUsage {
            input_tokens: Some(count(&event["input_tokens"])),
            output_tokens: Some(count(&event["output_tokens"])),
            cached_tokens: Some(count(&event["cache_read_input_tokens"])),
            cost_usd: None,
        }),
        _ => {}
    }
}

fn message(log: &mut Builder, message: &Value) {
    let is_input = message["role"] == "user";
    // The parts of a response have the same id.
    if let Some(id) = message["id"].as_str().filter(|_| !is_input) {
        log.turn(Some(id));
    }
    for part in list(&message["content"]) {
        let id = string(&part["id"]);
        match string(&part["type"]) {
            "text" if is_input => log.input(Message::user(string(&part["text"]))),
            "text" => log.text(string(&part["text"])),
            "thinking" => log.reasoning(string(&part["thinking"])),
            "toolRequest" => {
                let call = &part["toolCall"]["value"];
                log.call(id, string(&call["name"]), &call["arguments"]);
            }
            "toolResponse" => {
                let result = &part["toolResult"];
                let content = &result["value"]["content"];
                log.answer(id, text_of(if content.is_null() { &result["error"] } else { content }));
            }
            _ => {}
        }
    }
}
