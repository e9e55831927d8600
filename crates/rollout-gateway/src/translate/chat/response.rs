//! Whole answers.

use serde_json::{Value, json};

use super::super::{
    AnswerContext, TranslationError,
    fields::Object,
    neutral::{Answer, Ending, Part, Thought, ToolKind, ToolUse},
    tools::custom_input,
};
use crate::{Dialect, usage};

/// Reads an answer.
pub(in super::super) fn read_answer(mut body: Object) -> Result<Answer, TranslationError> {
    let choice = body.objects("choices")?.into_iter().next();
    let mut choice = choice.ok_or_else(|| body.invalid("choices", "is empty"))?;
    let mut message = choice.object("message")?.ok_or_else(|| choice.invalid("message", "is missing"))?;
    let mut parts = Vec::new();
    let thought = message.text("reasoning_content").ok().flatten();
    let thought = thought.or(message.text("reasoning").ok().flatten()).filter(|text| !text.is_empty());
    parts.extend(thought.map(|text| Part::Thought(Thought { text, ..Thought::default() })));
    let text = match message.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(list)) => {
            let texts = list.iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<String>()
        }
        _ => String::new(),
    };
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    parts.extend(message.text("refusal")?.filter(|text| !text.is_empty()).map(Part::Refusal));
    for mut call in message.objects("tool_calls")? {
        let id = call.text("id")?.unwrap_or_default();
        let mut function = call.object("function")?.ok_or_else(|| call.invalid("function", "is missing"))?;
        let arguments = match function.take("arguments") {
            Some(Value::String(arguments)) => arguments,
            Some(arguments) => arguments.to_string(),
            None => String::new(),
        };
        parts.push(Part::Call(ToolUse { id, name: function.required("name")?, arguments }));
    }
    let stopped_by = choice.text("stop_reason").ok().flatten();
    let ending = read_ending(choice.peek("finish_reason"), stopped_by);
    let usage = body.take("usage").map(|raw| usage::read(Dialect::Chat, &raw));
    Ok(Answer { id: body.text("id")?, model: body.text("model")?, parts, ending, usage })
}

/// Reads a finish reason. vLLM says beside it which stop sequence it was.
pub(super) fn read_ending(reason: &str, stopped_by: Option<String>) -> Ending {
    match reason {
        "length" => Ending::Length,
        "content_filter" => Ending::Filtered,
        _ if stopped_by.is_some() => Ending::StopSequence(stopped_by),
        _ => Ending::Done,
    }
}

/// Writes a finish reason.
pub(super) fn write_ending(ending: &Ending, has_calls: bool) -> &'static str {
    match ending {
        Ending::Length => "length",
        Ending::Filtered => "content_filter",
        Ending::Done if has_calls => "tool_calls",
        Ending::Done | Ending::StopSequence(_) => "stop",
    }
}

/// A call as the client declared its tool.
pub(super) fn write_call(call: ToolUse, context: &AnswerContext) -> Value {
    let origin = context.origin(&call.name);
    match origin.kind {
        ToolKind::Custom => {
            let custom = json!({"name": origin.name, "input": custom_input(&call.arguments)});
            json!({"id": call.id, "type": "custom", "custom": custom})
        }
        _ => {
            let function = json!({"name": origin.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        }
    }
}

/// Writes an answer.
pub(in super::super) fn write_answer(answer: Answer, context: &AnswerContext) -> Value {
    let (mut text, mut thought, mut refusal) = (String::new(), String::new(), String::new());
    let mut calls = Vec::new();
    for part in answer.parts {
        match part {
            Part::Text(more) => text.push_str(&more),
            Part::Thought(more) => thought.push_str(&more.text),
            Part::Refusal(more) => refusal.push_str(&more),
            Part::Call(call) => calls.push(write_call(call, context)),
            Part::Image(_) | Part::Document(_) | Part::Result(_) => {}
        }
    }
    let text_or_null = |text: String| if text.is_empty() { Value::Null } else { Value::String(text) };
    let finish_reason = write_ending(&answer.ending, !calls.is_empty());
    let mut message =
        json!({"role": "assistant", "content": text_or_null(text), "refusal": text_or_null(refusal)});
    if !thought.is_empty() {
        message["reasoning_content"] = json!(thought);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    json!({
        "id": context.answer_id(answer.id),
        "object": "chat.completion",
        "created": context.now,
        "model": context.model(answer.model),
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason}],
        "usage": usage::write(Dialect::Chat, &answer.usage.unwrap_or_default()),
    })
}
