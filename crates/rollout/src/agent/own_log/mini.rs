//! The trajectory file of mini-swe-agent: one JSON document, with the messages in the form of Chat Completions.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{Builder, MAX_LINE_BYTES, OwnLog, OwnLogError, cost, count, list, string, text_of};
use rollout_core::{message::Message, response::TokenUsage};

#[derive(Deserialize)]
struct File<'a> {
    // Read one by one, because a whole file of small values takes many times its size.
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

pub(super) fn read(bytes: &[u8]) -> Result<OwnLog, OwnLogError> {
    let file: File<'_> = serde_json::from_slice(bytes)?;
    let mut log = Builder::default();
    for raw in file.messages.into_iter().map(RawValue::get).filter(|raw| raw.len() <= MAX_LINE_BYTES) {
        if let Ok(value) = serde_json::from_str(raw) {
            message(&mut log, &value);
        }
    }
    log.finish()
}

fn message(log: &mut Builder, message: &Value) {
    let text = text_of(&message["content"]);
    match string(&message["role"]) {
        "system" => log.input(Message::system(text)),
        "user" => log.input(Message::user(text)),
        "assistant" => {
            let extra = &message["extra"];
            let response = &extra["response"];
            log.model(response["model"].as_str());
            log.turn(None);
            log.reasoning(string(&message["reasoning_content"]));
            log.text(&text);
            for call in list(&message["tool_calls"]) {
                let function = &call["function"];
                log.call(string(&call["id"]), string(&function["name"]), &function["arguments"]);
            }
            if let Some(usage) = response["usage"].as_object() {
                let of = |key: &str| usage.get(key).unwrap_or(&Value::Null);
                let cached = count(&of("prompt_tokens_details")["cached_tokens"]);
                let used = TokenUsage {
                    prompt_tokens: count(of("prompt_tokens")).saturating_sub(cached),
                    cached_tokens: cached,
                    completion_tokens: count(of("completion_tokens")),
                    cost: cost(&extra["cost"]),
                    ..TokenUsage::default()
                };
                log.turn_usage(used);
                log.add_usage(&used);
            }
        }
        "tool" => log.answer(string(&message["tool_call_id"]), text),
        _ => {}
    }
}
