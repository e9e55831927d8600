//! The rules of OpenAI's chat completions.

use serde_json::Value;

use super::{check_flag, check_number, check_schema, check_text, check_tool_name, list};

pub(super) fn validate(body: &Value) -> Result<(), String> {
    check_text("model", &body["model"])?;
    check_number(body, "temperature", 0.0..=2.0)?;
    check_number(body, "top_p", 0.0..=1.0)?;
    check_number(body, "max_tokens", 1.0..=f64::MAX)?;
    check_number(body, "max_completion_tokens", 1.0..=f64::MAX)?;
    if present(body, "max_tokens") && present(body, "max_completion_tokens") {
        return Err("max_tokens: cannot be set together with max_completion_tokens".to_owned());
    }
    for flag in ["stream", "logprobs", "parallel_tool_calls"] {
        check_flag(body, flag)?;
    }
    if present(body, "stream_options") && body["stream"] != true {
        return Err("stream_options: only allowed when stream is enabled".to_owned());
    }
    if present(body, "top_logprobs") && body["logprobs"] != true {
        return Err("top_logprobs: only allowed when logprobs is enabled".to_owned());
    }
    if present(body, "tools") {
        for (index, tool) in list("tools", &body["tools"])?.iter().enumerate() {
            check_tool(index, tool)?;
        }
    } else if let Some(field) = ["tool_choice", "parallel_tool_calls"].iter().find(|name| present(body, name))
    {
        return Err(format!("{field}: only allowed when tools are specified"));
    }
    check_conversation(list("messages", &body["messages"])?)
}

fn present(body: &Value, name: &str) -> bool {
    body.get(name).is_some_and(|value| !value.is_null())
}

fn check_tool(index: usize, tool: &Value) -> Result<(), String> {
    if tool["type"] != "function" {
        return Err(format!("tools[{index}].type: expected \"function\""));
    }
    let function = &tool["function"];
    check_tool_name(&format!("tools[{index}].function.name"), &function["name"])?;
    if !matches!(function.get("description"), None | Some(Value::String(_))) {
        return Err(format!("tools[{index}].function.description: expected a string"));
    }
    match function.get("parameters") {
        Some(schema) => check_schema(&format!("tools[{index}].function.parameters"), schema),
        None => Ok(()),
    }
}

/// Checks the messages: all calls of a message must be answered right after it, and by nothing else.
fn check_conversation(messages: &[Value]) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let place = format!("messages[{index}]");
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str();
            let Some(at) = open.iter().position(|open| Some(*open) == id) else {
                return Err(format!(
                    "{place}: messages with role \"tool\" must answer a call of the preceding message with \"tool_calls\""
                ));
            };
            open.remove(at);
            check_content(&place, &message["content"], &["text"])?;
            continue;
        }
        check_answered(&open)?;
        match message["role"].as_str() {
            Some("system" | "developer") => check_content(&place, &message["content"], &["text"])?,
            Some("user") => {
                check_content(&place, &message["content"], &["text", "image_url", "input_audio", "file"])?;
            }
            Some("assistant") => open = check_assistant(&place, message)?,
            _ => {
                return Err(format!(
                    "{place}.role: expected one of system, developer, user, assistant, tool; got {}",
                    message["role"]
                ));
            }
        }
    }
    check_answered(&open)
}

fn check_answered(open: &[&str]) -> Result<(), String> {
    if open.is_empty() {
        return Ok(());
    }
    Err(format!(
        "an assistant message with \"tool_calls\" must be followed by tool messages for each call; missing: {}",
        open.join(", ")
    ))
}

fn check_assistant<'a>(place: &str, message: &'a Value) -> Result<Vec<&'a str>, String> {
    let mut ids = Vec::new();
    if present(message, "tool_calls") {
        for (index, call) in list(&format!("{place}.tool_calls"), &message["tool_calls"])?.iter().enumerate()
        {
            let place = format!("{place}.tool_calls[{index}]");
            check_text(&format!("{place}.id"), &call["id"])?;
            if call["type"] != "function" {
                return Err(format!("{place}.type: expected \"function\""));
            }
            check_tool_name(&format!("{place}.function.name"), &call["function"]["name"])?;
            if !call["function"]["arguments"].is_string() {
                return Err(format!("{place}.function.arguments: expected a string"));
            }
            ids.extend(call["id"].as_str());
        }
    }
    if present(message, "content") {
        check_content(place, &message["content"], &["text", "refusal"])?;
    } else if ids.is_empty() && !present(message, "refusal") {
        return Err(format!("{place}: an assistant message has content or tool_calls"));
    }
    Ok(ids)
}

fn check_content(place: &str, content: &Value, kinds: &[&str]) -> Result<(), String> {
    if content.is_string() {
        return Ok(());
    }
    for (index, part) in list(&format!("{place}.content"), content)?.iter().enumerate() {
        let place = format!("{place}.content[{index}]");
        let Some(kind) = part["type"].as_str().filter(|kind| kinds.contains(kind)) else {
            return Err(format!("{place}.type: expected one of {}; got {}", kinds.join(", "), part["type"]));
        };
        let whole = match kind {
            "text" => part["text"].is_string(),
            "refusal" => part["refusal"].is_string(),
            "image_url" => part["image_url"]["url"].is_string(),
            "input_audio" => {
                part["input_audio"]["data"].is_string() && part["input_audio"]["format"].is_string()
            }
            _ => part[kind].is_object(),
        };
        if !whole {
            return Err(format!("{place}.{kind}: missing or of the wrong type"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        validate(&body).unwrap();
        change(&mut body);
        validate(&body).unwrap_err()
    }

    fn refused_messages(messages: Value) -> String {
        refusal(|body| body["messages"] = messages)
    }

    fn call(id: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "add", "arguments": "{}"}})
    }

    #[test]
    fn a_whole_conversation_with_tools_is_accepted() {
        let body = json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "add"}, {"type": "image_url", "image_url": {"url": "data:"}}]},
                {"role": "assistant", "content": null, "tool_calls": [call("1"), call("2")]},
                {"role": "tool", "tool_call_id": "2", "content": "3"},
                {"role": "tool", "tool_call_id": "1", "content": "3"},
                {"role": "assistant", "content": "3"},
            ],
            "tools": [{"type": "function", "function": {"name": "add", "description": "adds",
                "parameters": {"type": "object", "properties": {}}}}],
            "tool_choice": "auto", "temperature": 0.7, "stream": true, "stream_options": {"include_usage": true},
            "min_p": 0.1,
        });
        assert_eq!(validate(&body), Ok(()));
    }

    #[test]
    fn every_call_must_be_answered_before_other_messages() {
        let user = json!({"role": "user", "content": "hi"});
        let asks = json!({"role": "assistant", "content": null, "tool_calls": [call("1"), call("2")]});
        let answer = json!({"role": "tool", "tool_call_id": "1", "content": "3"});
        assert!(refused_messages(json!([user, asks, answer, user])).ends_with("missing: 2"));
        assert!(refused_messages(json!([user, asks])).ends_with("missing: 1, 2"));
        assert!(
            refused_messages(json!([user, asks, answer, answer]))
                .starts_with("messages[3]: messages with role \"tool\"")
        );
        assert!(refused_messages(json!([user, answer])).starts_with("messages[1]: messages with role"));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        assert_eq!(refused_messages(json!([])), "messages: expected an array that is not empty");
        assert!(refused_messages(json!([{"role": "text", "content": "a"}])).contains("got \"text\""));
        assert!(
            refused_messages(json!([{"role": "user", "content": null}])).starts_with("messages[0].content")
        );
        assert!(
            refused_messages(json!([{"role": "user", "content": [{"type": "text"}]}]))
                .contains("text: missing")
        );
        assert!(
            refused_messages(json!([{"role": "assistant", "content": null}]))
                .contains("has content or tool_calls")
        );
        let flat = json!({"id": "1", "name": "add", "arguments": "{}"});
        let refused = refused_messages(json!([{"role": "assistant", "content": null, "tool_calls": [flat]}]));
        assert_eq!(refused, "messages[0].tool_calls[0].type: expected \"function\"");
        let mut object = call("1");
        object["function"]["arguments"] = json!({});
        let refused =
            refused_messages(json!([{"role": "assistant", "content": null, "tool_calls": [object]}]));
        assert_eq!(refused, "messages[0].tool_calls[0].function.arguments: expected a string");
    }

    #[test]
    fn invalid_settings_are_rejected() {
        assert!(refusal(|body| body["model"] = json!("")).starts_with("model:"));
        assert!(refusal(|body| body["temperature"] = json!(3)).starts_with("temperature: 3 is not between"));
        assert!(refusal(|body| body["stream"] = json!("yes")).starts_with("stream: expected a boolean"));
        assert!(refusal(|body| body["stream_options"] = json!({})).starts_with("stream_options: only"));
        assert!(refusal(|body| body["top_logprobs"] = json!(1)).starts_with("top_logprobs: only"));
        assert!(refusal(|body| body["tool_choice"] = json!("auto")).starts_with("tool_choice: only"));
        assert!(refusal(|body| body["tools"] = json!([])).starts_with("tools: expected an array"));
        let flat = json!([{"name": "add", "parameters": {"type": "object"}}]);
        assert!(refusal(|body| body["tools"] = flat).starts_with("tools[0].type"));
        let named = |name: &str, parameters: Value| json!([{"type": "function", "function": {"name": name, "parameters": parameters}}]);
        assert!(
            refusal(|body| body["tools"] = named("a b", json!({}))).starts_with("tools[0].function.name")
        );
        assert!(refusal(|body| body["tools"] = named("a", json!({}))).contains("type \"object\""));
        let both = |body: &mut Value| {
            body["max_tokens"] = json!(1);
            body["max_completion_tokens"] = json!(1);
        };
        assert!(refusal(both).starts_with("max_tokens: cannot"));
    }
}
