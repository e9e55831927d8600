//! The messages that `kimi --output-format stream-json` prints, in the form of Chat Completions, and the records of
//! usage in the files of its session.

use serde_json::Value;

use super::{Builder, count, list, string, text_of};
use rollout_core::{message::Message, response::TokenUsage};

pub(super) fn event(log: &mut Builder, event: &Value) {
    match string(&event["role"]) {
        "user" => log.input(Message::user(text_of(&event["content"]))),
        "assistant" => {
            log.turn(None);
            log.reasoning(string(&event["reasoning_content"]));
            log.text(&text_of(&event["content"]));
            for call in list(&event["tool_calls"]) {
                let function = &call["function"];
                log.call(string(&call["id"]), string(&function["name"]), &function["arguments"]);
            }
        }
        "tool" => log.answer(string(&event["tool_call_id"]), text_of(&event["content"])),
        _ if event["type"] == "usage.record" => {
            let usage = &event["usage"];
            log.add_usage(&TokenUsage {
                prompt_tokens: count(&usage["inputOther"]),
                cached_tokens: count(&usage["inputCacheRead"]),
                cache_write_tokens: count(&usage["inputCacheCreation"]),
                completion_tokens: count(&usage["output"]),
                ..TokenUsage::default()
            });
        }
        _ => {}
    }
}
