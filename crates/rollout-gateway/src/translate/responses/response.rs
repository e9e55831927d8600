//! Whole answers.

use serde_json::{Value, json};

use super::super::{
    AnswerContext, TranslationError,
    error::read_error,
    fields::Object,
    neutral::{Answer, Ending, Part, Thought, ToolKind, ToolUse},
    signature,
    tools::{arguments_object, custom_input},
};
use crate::{Dialect, usage};

/// Reads an answer.
pub(in super::super) fn read_answer(mut body: Object) -> Result<Answer, TranslationError> {
    if body.peek("status") == "failed" {
        let (kind, message) = read_error(500, &json!({"error": body.take("error")}));
        return Err(TranslationError::Failed { kind, message });
    }
    let mut parts = Vec::new();
    for item in body.objects("output")? {
        read_item(item, &mut parts)?;
    }
    let reason = body.object("incomplete_details")?.map(|details| details.peek("reason").to_owned());
    let ending = read_ending(body.peek("status"), reason.as_deref());
    let usage = body.take("usage").map(|raw| usage::read(Dialect::Responses, &raw));
    Ok(Answer { id: body.text("id")?, model: body.text("model")?, parts, ending, usage })
}

fn read_item(mut item: Object, parts: &mut Vec<Part>) -> Result<(), TranslationError> {
    match item.required("type")?.as_str() {
        "message" => {
            for mut part in item.objects("content")? {
                match part.peek("type") {
                    "refusal" => parts.extend(part.text("refusal")?.map(Part::Refusal)),
                    _ => parts.extend(part.text("text")?.filter(|text| !text.is_empty()).map(Part::Text)),
                }
            }
        }
        "reasoning" => {
            let text = reasoning_text(&mut item)?;
            let signature = item.text("encrypted_content")?;
            if !(text.is_empty() && signature.is_none()) {
                parts.push(Part::Thought(Thought { text, signature, is_redacted: false }));
            }
        }
        "function_call" => parts.push(Part::Call(ToolUse {
            id: item.text("call_id")?.unwrap_or_default(),
            name: item.required("name")?,
            arguments: item.text("arguments")?.unwrap_or_default(),
        })),
        // What the provider's own tools did has no place in another dialect; the text after it says the result.
        _ => {}
    }
    Ok(())
}

/// The summary of a reasoning item, or its text where the server shows it.
pub(super) fn reasoning_text(item: &mut Object) -> Result<String, TranslationError> {
    for key in ["summary", "content"] {
        let texts = item.objects(key)?.into_iter().map(|mut part| Ok(part.text("text")?.unwrap_or_default()));
        let text = texts.collect::<Result<Vec<_>, TranslationError>>()?.join("\n\n");
        if !text.is_empty() {
            return Ok(text);
        }
    }
    Ok(String::new())
}

/// Reads a status and the reason of an incomplete answer.
pub(super) fn read_ending(status: &str, reason: Option<&str>) -> Ending {
    match (status, reason) {
        ("incomplete", Some("content_filter")) => Ending::Filtered,
        ("incomplete", _) => Ending::Length,
        _ => Ending::Done,
    }
}

/// The response around the output. `usage` is null until the end.
pub(super) fn envelope(id: &str, model: &str, context: &AnswerContext) -> Value {
    json!({
        "id": id,
        "object": "response",
        "created_at": context.now,
        "status": "in_progress",
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "store": false,
        "temperature": null,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": null,
        "truncation": "disabled",
        "usage": null,
    })
}

/// Completes a response. Returns the status.
pub(super) fn complete(
    response: &mut Value,
    answer: Answer,
    output: Vec<Value>,
    has_refused: bool,
) -> &'static str {
    let (status, reason) = match answer.ending {
        Ending::Length => ("incomplete", Some("max_output_tokens")),
        // A refusal in words is an answer.
        Ending::Filtered if !has_refused => ("incomplete", Some("content_filter")),
        _ => ("completed", None),
    };
    response["status"] = json!(status);
    response["incomplete_details"] = reason.map_or(Value::Null, |reason| json!({"reason": reason}));
    response["output"] = Value::Array(output);
    response["usage"] = usage::write(Dialect::Responses, &answer.usage.unwrap_or_default());
    status
}

/// Writes an answer.
pub(in super::super) fn write_answer(mut answer: Answer, context: &AnswerContext) -> Value {
    let id = context.answer_id(answer.id.take());
    let mut response = envelope(&id, &context.model(answer.model.take()), context);
    let parts = std::mem::take(&mut answer.parts);
    let has_refused = parts.iter().any(|part| matches!(part, Part::Refusal(_)));
    let items = parts.iter().enumerate().filter_map(|(at, part)| write_item(part, &id, at, context));
    let items = items.collect();
    complete(&mut response, answer, items, has_refused);
    response
}

/// An item of the output, complete. Its id is made of the answer's and its place.
pub(super) fn write_item(part: &Part, id: &str, at: usize, context: &AnswerContext) -> Option<Value> {
    match part {
        Part::Text(_) | Part::Refusal(_) => Some(json!({
            "id": format!("msg_{id}_{at}"),
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [write_content(part)],
        })),
        Part::Thought(thought) => {
            let summary = match thought.text.as_str() {
                "" => json!([]),
                text => json!([{"type": "summary_text", "text": text}]),
            };
            let encrypted = thought
                .signature
                .as_ref()
                .map(|native| signature::wrap(context.upstream, native, thought.is_redacted, ""));
            Some(json!({
                "id": format!("rs_{id}_{at}"),
                "type": "reasoning",
                "summary": summary,
                "encrypted_content": encrypted,
            }))
        }
        Part::Call(call) => Some(write_call(call, id, at, context)),
        Part::Image(_) | Part::Document(_) | Part::Result(_) => None,
    }
}

/// The content of a message.
pub(super) fn write_content(part: &Part) -> Value {
    match part {
        Part::Refusal(text) => json!({"type": "refusal", "refusal": text}),
        Part::Text(text) => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
        _ => Value::Null,
    }
}

/// A call in the form of its tool.
fn write_call(call: &ToolUse, id: &str, at: usize, context: &AnswerContext) -> Value {
    let origin = context.origin(&call.name);
    let mut item = match origin.kind {
        ToolKind::Function => json!({
            "id": format!("fc_{id}_{at}"),
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": origin.name,
            "arguments": call.arguments,
        }),
        ToolKind::Custom => json!({
            "id": format!("ctc_{id}_{at}"),
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": call.id,
            "name": origin.name,
            "input": custom_input(&call.arguments),
        }),
        ToolKind::ToolSearch => json!({
            "id": format!("tsc_{id}_{at}"),
            "type": "tool_search_call",
            "status": "completed",
            "call_id": call.id,
            "execution": "client",
            "arguments": arguments_object(&call.arguments),
        }),
        ToolKind::LocalShell => {
            let mut action = arguments_object(&call.arguments);
            action["type"] = json!("exec");
            if !action["env"].is_object() {
                action["env"] = json!({});
            }
            json!({
                "id": format!("lsh_{id}_{at}"),
                "type": "local_shell_call",
                "status": "completed",
                "call_id": call.id,
                "action": action,
            })
        }
    };
    if let Some(namespace) = origin.namespace {
        item["namespace"] = json!(namespace);
    }
    item
}
