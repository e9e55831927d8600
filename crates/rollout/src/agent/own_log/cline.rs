//! The events of `cline --json`.

use serde_json::Value;

use super::{Builder, cost, count, string, text_of};
use rollout_core::{response::TokenUsage, result::AgentUsage};

pub(super) fn event(log: &mut Builder, event: &Value) {
    match string(&event["type"]) {
        "agent_event" => inner(log, &event["event"]),
        "run_result" => {
            log.model(event["model"]["id"].as_str());
            let all = &event["aggregateUsage"];
            let usage = if all.is_object() { all } else { &event["usage"] };
            if usage.is_object() {
                log.usage(AgentUsage {
                    input_tokens: Some(count(&usage["inputTokens"])),
                    output_tokens: Some(count(&usage["outputTokens"])),
                    cached_tokens: Some(count(&usage["cacheReadTokens"])),
                    cost_usd: cost(&usage["totalCost"]),
                });
            }
        }
        _ => {}
    }
}

fn inner(log: &mut Builder, event: &Value) {
    let (call, ended) = (string(&event["toolCallId"]), event["type"] == "content_end");
    match (string(&event["type"]), string(&event["contentType"])) {
        ("iteration_start", _) => log.turn(None),
        ("content_start" | "content_end", "tool") => {
            log.call(call, string(&event["toolName"]), &event["input"]);
            if ended {
                let output = &event["output"];
                log.answer(call, text_of(if output.is_null() { &event["error"] } else { output }));
            }
        }
        ("content_end", "text") => log.text(string(&event["text"])),
        ("content_end", "reasoning") => log.reasoning(string(&event["reasoning"])),
        ("usage", _) => {
            let cached = count(&event["cacheReadTokens"]);
            log.turn_usage(TokenUsage {
                prompt_tokens: count(&event["inputTokens"]).saturating_sub(cached),
                cached_tokens: cached,
                completion_tokens: count(&event["outputTokens"]),
                ..TokenUsage::default()
            });
        }
        _ => {}
    }
}
