//! The events of `gemini --output-format stream-json`.

use serde_json::Value;

use super::{Builder, count, string, text_of};
use rollout_core::{message::Message, result::AgentUsage};

pub(super) fn event(log: &mut Builder, event: &Value) {
    match string(&event["type"]) {
        "init" => log.model(event["model"].as_str()),
        "message" if event["role"] == "user" => log.input(Message::user(string(&event["content"]))),
        "message" => log.text(string(&event["content"])),
        "tool_use" => log.call(string(&event["tool_id"]), string(&event["tool_name"]), &event["parameters"]),
        "tool_result" => {
            let output = &event["output"];
            let answer = if output.is_null() { &event["error"]["message"] } else { output };
            log.answer(string(&event["tool_id"]), text_of(answer));
        }
        "result" if event["stats"].is_object() => {
            let stats = &event["stats"];
            log.usage(AgentUsage {
                input_tokens: Some(count(&stats["input_tokens"])),
                output_tokens: Some(count(&stats["output_tokens"])),
                cached_tokens: Some(count(&stats["cached"])),
                cost_usd: None,
            });
        }
        _ => {}
    }
}
