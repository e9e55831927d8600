//! The events of `opencode run --format json`.

use serde_json::Value;

use super::{Builder, cost, count, string, text_of};
use rollout_core::response::TokenUsage;

pub(super) fn event(log: &mut Builder, event: &Value) {
    let part = &event["part"];
    match string(&event["type"]) {
        "step_start" => log.turn(None),
        "text" => log.text(string(&part["text"])),
        "reasoning" => log.reasoning(string(&part["text"])),
        "tool_use" => {
            let (id, state) = (string(&part["callID"]), &part["state"]);
            log.call(id, string(&part["tool"]), &state["input"]);
            let output = if state["output"].is_null() { &state["error"] } else { &state["output"] };
            log.answer(id, text_of(output));
        }
        "step_finish" => {
            let tokens = &part["tokens"];
            let (input, cached) = (count(&tokens["input"]), count(&tokens["cache"]["read"]));
            let written = count(&tokens["cache"]["write"]);
            let prompt = input.saturating_add(cached).saturating_add(written);
            // Only the total shows whether a version counts reasoning as output.
            let output = match tokens["total"].as_u64() {
                Some(total) => total.saturating_sub(prompt),
                None => count(&tokens["output"]).saturating_add(count(&tokens["reasoning"])),
            };
            let used = TokenUsage {
                prompt_tokens: input,
                cached_tokens: cached,
                cache_write_tokens: written,
                completion_tokens: output,
                reasoning_tokens: count(&tokens["reasoning"]),
                cost: cost(&part["cost"]),
            };
            log.turn_usage(used);
            log.add_usage(&used);
        }
        _ => {}
    }
}
