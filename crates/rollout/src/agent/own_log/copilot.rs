//! The events of a session of Copilot CLI. What it prints has no tokens, so this is its file.

use serde_json::Value;

use super::{Builder, cost, count, list, string, text_of};
use rollout_core::{message::Message, response::TokenUsage};

pub(super) fn event(log: &mut Builder, event: &Value) {
    let data = &event["data"];
    // Events of a sub-agent.
    if data["parentToolCallId"].is_string() {
        return;
    }
    match string(&event["type"]) {
        "system.message" => log.input(Message::system(string(&data["content"]))),
        "user.message" => log.input(Message::user(string(&data["content"]))),
        "assistant.turn_start" => log.turn(None),
        "assistant.message" => {
            log.model(data["model"].as_str());
            log.reasoning(string(&data["reasoningText"]));
            log.text(string(&data["content"]));
            for call in list(&data["toolRequests"]) {
                log.call(string(&call["toolCallId"]), string(&call["name"]), &call["arguments"]);
            }
        }
        "tool.execution_complete" => {
            let result = &data["result"]["content"];
            let answer = if result.is_null() { &data["error"]["message"] } else { result };
            log.answer(string(&data["toolCallId"]), text_of(answer));
        }
        "session.usage_record" => {
            let usage = &data["usage"];
            let cached = count(&usage["cacheReadTokens"]);
            log.add_usage(&TokenUsage {
                prompt_tokens: count(&usage["inputTokens"]).saturating_sub(cached),
                cached_tokens: cached,
                completion_tokens: count(&usage["outputTokens"]),
                cost: cost(&usage["cost"]),
                ..TokenUsage::default()
            });
        }
        _ => {}
    }
}
