//! The events that `openhands --json` prints, and the usage in the state of its conversation, which is a file.

use serde_json::Value;

use super::{Builder, cost, count, string, text_of};
use rollout_core::{message::Message, response::TokenUsage};

pub(super) fn event(log: &mut Builder, event: &Value) {
    match string(&event["kind"]) {
        "MessageEvent" => {
            let message = &event["llm_message"];
            let text = text_of(&message["content"]);
            if event["source"] == "agent" {
                response(log, event);
                log.reasoning(string(&message["reasoning_content"]));
                log.text(&text);
            } else {
                log.input(Message::user(text));
            }
        }
        "ActionEvent" => {
            response(log, event);
            log.reasoning(string(&event["reasoning_content"]));
            log.text(&text_of(&event["thought"]));
            let call = &event["tool_call"];
            log.call(string(&event["tool_call_id"]), string(&call["name"]), &call["arguments"]);
        }
        "ObservationEvent" => {
            log.answer(string(&event["tool_call_id"]), text_of(&event["observation"]["content"]));
        }
        "AgentErrorEvent" => log.answer(string(&event["tool_call_id"]), string(&event["error"]).to_owned()),
        _ => usage(log, &event["stats"]["usage_to_metrics"]),
    }
}

/// Several calls of tools in one response are several events.
fn response(log: &mut Builder, event: &Value) {
    log.turn(event["llm_response_id"].as_str());
}

fn usage(log: &mut Builder, metrics: &Value) {
    for metrics in metrics.as_object().into_iter().flat_map(|metrics| metrics.values()) {
        log.model(metrics["model_name"].as_str());
        let used = &metrics["accumulated_token_usage"];
        let (cached, written) = (count(&used["cache_read_tokens"]), count(&used["cache_write_tokens"]));
        if used.is_object() {
            log.add_usage(&TokenUsage {
                prompt_tokens: count(&used["prompt_tokens"]).saturating_sub(cached).saturating_sub(written),
                cached_tokens: cached,
                cache_write_tokens: written,
                completion_tokens: count(&used["completion_tokens"]),
                cost: cost(&metrics["accumulated_cost"]),
                ..TokenUsage::default()
            });
        }
    }
}
