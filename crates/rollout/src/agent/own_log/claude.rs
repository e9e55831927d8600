//! The events of `claude --output-format stream-json`, which Qwen Code, Amp and the CLI of Cursor also print.
//!
//! A response of the model is several events with the same message id, one for each block. Sub-agents have events of
//! their own, which are not part of the conversation.

use serde_json::Value;

use super::{Builder, cost, count, list, string, text_of};
use rollout_core::{message::Message, response::TokenUsage, result::AgentUsage};

pub(super) fn event(log: &mut Builder, event: &Value) {
    if event["parent_tool_use_id"].is_string() {
        return;
    }
    let message = &event["message"];
    match string(&event["type"]) {
        "system" => log.model(event["model"].as_str()),
        // Claude Code writes about errors as if they were responses.
        "assistant" if message["model"] == "<synthetic>" => {}
        "assistant" => response(log, message),
        "user" => input(log, message),
        "tool_call" => tool_call(log, event),
        "result" => result(log, event),
        _ => {}
    }
}

fn response(log: &mut Builder, message: &Value) {
    log.model(message["model"].as_str());
    let id = message["id"].as_str().filter(|id| !id.is_empty());
    // Without ids, a turn ends with the answers to its calls.
    if id.is_some() {
        log.turn(id);
    }
    for block in list(&message["content"]) {
        match string(&block["type"]) {
            "text" => log.text(string(&block["text"])),
            "thinking" => log.reasoning(string(&block["thinking"])),
            "tool_use" => log.call(string(&block["id"]), string(&block["name"]), &block["input"]),
            _ => {}
        }
    }
    let usage = &message["usage"];
    if usage.is_object() {
        log.turn_usage(TokenUsage {
            prompt_tokens: count(&usage["input_tokens"]),
            cached_tokens: count(&usage["cache_read_input_tokens"]),
            cache_write_tokens: count(&usage["cache_creation_input_tokens"]),
            completion_tokens: count(&usage["output_tokens"]),
            ..TokenUsage::default()
        });
    }
}

fn input(log: &mut Builder, message: &Value) {
    if let Some(text) = message["content"].as_str() {
        return log.input(Message::user(text));
    }
    for block in list(&message["content"]) {
        match string(&block["type"]) {
            "tool_result" => log.answer(string(&block["tool_use_id"]), text_of(&block["content"])),
            "text" => log.input(Message::user(string(&block["text"]))),
            _ => {}
        }
    }
}

/// Cursor: the start or the end of a call, as `{"someToolCall": {"args": …, "result": …}}`.
fn tool_call(log: &mut Builder, event: &Value) {
    let id = string(&event["call_id"]);
    let Some((name, call)) = event["tool_call"].as_object().and_then(|calls| calls.iter().next()) else {
        return;
    };
    log.call(id, name.strip_suffix("ToolCall").unwrap_or(name), &call["args"]);
    if event["subtype"] == "completed" {
        log.answer(id, text_of(&call["result"]));
    }
}

fn result(log: &mut Builder, event: &Value) {
    let cost_usd = cost(&event["total_cost_usd"]);
    let sum = |values: &[u64]| values.iter().fold(0, |sum: u64, value| sum.saturating_add(*value));
    // The sums by model also count sub-agents and background calls.
    if let Some(models) = event["modelUsage"].as_object().filter(|models| !models.is_empty()) {
        let of =
            |key: &str| models.values().fold(0, |sum: u64, model| sum.saturating_add(count(&model[key])));
        let cached = of("cacheReadInputTokens");
        return log.usage(AgentUsage {
            input_tokens: Some(sum(&[of("inputTokens"), cached, of("cacheCreationInputTokens")])),
            output_tokens: Some(of("outputTokens")),
            cached_tokens: Some(cached),
            cost_usd,
        });
    }
    let usage = &event["usage"];
    if !usage.is_object() {
        return;
    }
    let cached = count(&usage["cache_read_input_tokens"]);
    let (read, written) = (count(&usage["input_tokens"]), count(&usage["output_tokens"]));
    // Qwen Code counts cached tokens among those of the input, which its total shows.
    let input = match usage["total_tokens"].as_u64() {
        Some(total) => total.saturating_sub(written),
        None => sum(&[read, cached, count(&usage["cache_creation_input_tokens"])]),
    };
    log.usage(AgentUsage {
        input_tokens: Some(input),
        output_tokens: Some(written),
        cached_tokens: Some(cached),
        cost_usd,
    });
}
