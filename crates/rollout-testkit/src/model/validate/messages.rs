//! The rules of Anthropic's messages.

use serde_json::Value;

use super::{check_flag, check_number, check_schema, check_text, check_tool_name, list};

pub(super) fn validate(body: &Value) -> Result<(), String> {
    check_text("model", &body["model"])?;
    if body["max_tokens"].as_u64().is_none_or(|tokens| tokens == 0) {
        return Err("max_tokens: field required, a positive integer".to_owned());
    }
    check_number(body, "temperature", 0.0..=1.0)?;
    check_number(body, "top_p", 0.0..=1.0)?;
    check_flag(body, "stream")?;
    for openai in ["stream_options", "logprobs", "max_completion_tokens", "parallel_tool_calls", "n"] {
        if body.get(openai).is_some() {
            return Err(format!("{openai}: Extra inputs are not permitted"));
        }
    }
    match body.get("system") {
        None => (),
        Some(Value::String(_)) => (),
        Some(blocks) => {
            for (index, block) in list("system", blocks)?.iter().enumerate() {
                check_block(&format!("system.{index}"), block, &["text"])?;
            }
        }
    }
    if let Some(tools) = body.get("tools") {
        for (index, tool) in list("tools", tools)?.iter().enumerate() {
            check_tool_name(&format!("tools.{index}.name"), &tool["name"])?;
            check_schema(&format!("tools.{index}.input_schema"), &tool["input_schema"])?;
        }
    } else if body.get("tool_choice").is_some() {
        return Err("tool_choice: only allowed with tools".to_owned());
    }
    check_conversation(list("messages", &body["messages"])?)
}

/// Checks the messages: uses of tools must be answered at the beginning of the next one.
fn check_conversation(messages: &[Value]) -> Result<(), String> {
    if messages[0]["role"] != "user" {
        return Err("messages: first message must use the \"user\" role".to_owned());
    }
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let place = format!("messages.{index}");
        let blocks = match &message["content"] {
            Value::String(text) if text.is_empty() => {
                return Err(format!("{place}: all messages must have non-empty content"));
            }
            Value::String(_) => &[],
            content => list(&format!("{place}.content"), content)?,
        };
        let (kinds, answers): (&[&str], bool) = match message["role"].as_str() {
            Some("user") => (&["text", "image", "document", "tool_result"], true),
            Some("assistant") => (&["text", "thinking", "redacted_thinking", "tool_use"], false),
            // Claude Code adds to its instructions in the middle of a conversation.
            Some("system") if index > 0 => {
                for (index, block) in blocks.iter().enumerate() {
                    check_block(&format!("{place}.content.{index}"), block, &["text"])?;
                }
                continue;
            }
            _ => return Err(format!("{place}.role: expected \"user\" or \"assistant\"")),
        };
        for (index, block) in blocks.iter().enumerate() {
            check_block(&format!("{place}.content.{index}"), block, kinds)?;
        }
        let ids = |kind: &str, field: &'static str| {
            let of_kind = blocks.iter().filter(move |block| block["type"] == kind);
            of_kind.filter_map(|block| block[field].as_str()).collect::<Vec<_>>()
        };
        let answered = if answers { ids("tool_result", "tool_use_id") } else { Vec::new() };
        if let Some(missing) = open.iter().find(|id| !answered.contains(id)) {
            return Err(format!(
                "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}",
                index - 1
            ));
        }
        if let Some(stray) = answered.iter().find(|id| !open.contains(id)) {
            return Err(format!("{place}: unexpected `tool_use_id` found in `tool_result` blocks: {stray}"));
        }
        open = ids("tool_use", "id");
    }
    match open.first() {
        None => Ok(()),
        Some(missing) => Err(format!(
            "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}",
            messages.len() - 1
        )),
    }
}

fn check_block(place: &str, block: &Value, kinds: &[&str]) -> Result<(), String> {
    let Some(kind) = block["type"].as_str().filter(|kind| kinds.contains(kind)) else {
        return Err(format!("{place}.type: expected one of {}; got {}", kinds.join(", "), block["type"]));
    };
    let whole = match kind {
        "text" => match block["text"].as_str() {
            Some("") => return Err(format!("{place}: text content blocks must be non-empty")),
            text => text.is_some(),
        },
        "thinking" => {
            block["thinking"].is_string() && block["signature"].as_str().is_some_and(|text| !text.is_empty())
        }
        "redacted_thinking" => block["data"].is_string(),
        "tool_use" => block["id"].is_string() && block["name"].is_string() && block["input"].is_object(),
        "tool_result" => {
            let content = block.get("content");
            block["tool_use_id"].is_string()
                && content.is_none_or(|content| content.is_string() || content.is_array())
        }
        _ => block["source"].is_object(),
    };
    if whole { Ok(()) } else { Err(format!("{place}: a field of `{kind}` is missing or of the wrong type")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        validate(&body).unwrap();
        change(&mut body);
        validate(&body).unwrap_err()
    }

    fn refused_messages(messages: Value) -> String {
        refusal(|body| body["messages"] = messages)
    }

    #[test]
    fn a_whole_conversation_with_tools_is_accepted() {
        let body = json!({
            "model": "m", "max_tokens": 100, "system": "be brief",
            "messages": [
                {"role": "user", "content": "add"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "1", "name": "add", "input": {}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "3"}]},
            ],
            "tools": [{"name": "add", "description": "adds", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"}, "stream": true,
        });
        assert_eq!(validate(&body), Ok(()));
    }

    #[test]
    fn every_use_of_a_tool_must_be_answered_in_the_next_message() {
        let user = json!({"role": "user", "content": "hi"});
        let uses = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "add", "input": {}}]});
        let answer = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]});
        assert!(refused_messages(json!([user, uses, user])).starts_with("messages.1: `tool_use` ids"));
        assert!(refused_messages(json!([user, uses])).starts_with("messages.1: `tool_use` ids"));
        assert!(refused_messages(json!([user, answer])).starts_with("messages.1: unexpected `tool_use_id`"));
    }

    #[test]
    fn fields_of_openai_are_rejected() {
        assert!(refused_messages(json!([{"role": "system", "content": "a"}])).starts_with("messages: first"));
        let user = json!({"role": "user", "content": "hi"});
        let tool = json!({"role": "tool", "tool_call_id": "1", "content": "a"});
        assert!(refused_messages(json!([user, tool])).starts_with("messages.1.role"));
        assert!(refusal(|body| body["stream_options"] = json!({})).contains("not permitted"));
        let nested = json!([{"type": "function", "function": {"name": "add"}}]);
        assert!(refusal(|body| body["tools"] = nested).starts_with("tools.0.name"));
    }

    #[test]
    fn missing_and_empty_fields_are_rejected() {
        assert!(refusal(|body| body["max_tokens"] = Value::Null).starts_with("max_tokens: field required"));
        assert!(refusal(|body| body["temperature"] = json!(1.5)).starts_with("temperature"));
        assert!(refused_messages(json!([{"role": "user", "content": ""}])).contains("non-empty"));
        let empty = json!([{"role": "user", "content": [{"type": "text", "text": ""}]}]);
        assert!(refused_messages(empty).contains("text content blocks must be non-empty"));
        let unsigned = json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}]});
        let user = json!({"role": "user", "content": "hi"});
        assert!(refused_messages(json!([user, unsigned])).contains("`thinking`"));
    }
}
