//! Whole answers.

use serde_json::{Value, json};

use super::super::{
    AnswerContext, TranslationError,
    fields::Object,
    neutral::{Answer, Ending, Part, Thought, ToolUse},
    signature,
    tools::{arguments_object, arguments_text},
};
use crate::{Dialect, usage};

/// Reads an answer.
pub(in super::super) fn read_answer(mut body: Object) -> Result<Answer, TranslationError> {
    let mut parts = Vec::new();
    for mut block in body.objects("content")? {
        match block.required("type")?.as_str() {
            "text" => parts.extend(block.text("text")?.filter(|text| !text.is_empty()).map(Part::Text)),
            "thinking" => parts.push(Part::Thought(Thought {
                text: block.text("thinking")?.unwrap_or_default(),
                signature: block.text("signature")?.filter(|signature| !signature.is_empty()),
                is_redacted: false,
            })),
            "redacted_thinking" => parts.push(Part::Thought(Thought {
                text: String::new(),
                signature: block.text("data")?,
                is_redacted: true,
            })),
            "tool_use" => parts.push(Part::Call(ToolUse {
                id: block.text("id")?.unwrap_or_default(),
                name: block.required("name")?,
                arguments: arguments_text(&block.take("input").unwrap_or_default()),
            })),
            // What the provider's own tools did has no place in another dialect; the text after it says the result.
            _ => {}
        }
    }
    let ending = read_ending(body.peek("stop_reason"), body.peek("stop_sequence"));
    let usage = body.take("usage").map(|raw| usage::read(Dialect::Messages, &raw));
    Ok(Answer { id: body.text("id")?, model: body.text("model")?, parts, ending, usage })
}

/// Reads a stop reason.
pub(super) fn read_ending(reason: &str, sequence: &str) -> Ending {
    match reason {
        "max_tokens" | "model_context_window_exceeded" => Ending::Length,
        "stop_sequence" => Ending::StopSequence(Some(sequence.to_owned()).filter(|text| !text.is_empty())),
        "refusal" => Ending::Filtered,
        _ => Ending::Done,
    }
}

/// Writes a stop reason.
pub(super) fn write_ending(ending: &Ending, has_calls: bool) -> (&'static str, Option<&str>) {
    match ending {
        Ending::Length => ("max_tokens", None),
        Ending::Filtered => ("refusal", None),
        Ending::StopSequence(sequence) => ("stop_sequence", sequence.as_deref()),
        Ending::Done if has_calls => ("tool_use", None),
        Ending::Done => ("end_turn", None),
    }
}

/// The message around the content.
pub(super) fn envelope(id: String, model: String) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    })
}

/// Writes an answer.
pub(in super::super) fn write_answer(answer: Answer, context: &AnswerContext) -> Value {
    let mut has_calls = false;
    let mut content = Vec::new();
    for part in answer.parts {
        match part {
            Part::Text(text) | Part::Refusal(text) => content.push(json!({"type": "text", "text": text})),
            Part::Thought(thought) => {
                let native = thought.signature.unwrap_or_default();
                let signature = write_signature(&native, thought.is_redacted, context);
                content.push(json!({"type": "thinking", "thinking": thought.text, "signature": signature}));
            }
            Part::Call(call) => {
                has_calls = true;
                content.push(json!({
                    "type": "tool_use",
                    "id": call.id,
                    "name": context.origin(&call.name).name,
                    "input": arguments_object(&call.arguments),
                }));
            }
            Part::Image(_) | Part::Document(_) | Part::Result(_) => {}
        }
    }
    let (reason, sequence) = write_ending(&answer.ending, has_calls);
    let mut message = envelope(context.answer_id(answer.id), context.model(answer.model));
    message["content"] = Value::Array(content);
    message["stop_reason"] = json!(reason);
    message["stop_sequence"] = json!(sequence);
    message["usage"] = usage::write(Dialect::Messages, &answer.usage.unwrap_or_default());
    message
}

/// The signature of a thinking block: the upstream's, wrapped; empty if the upstream signs nothing.
pub(super) fn write_signature(native: &str, is_redacted: bool, context: &AnswerContext) -> String {
    match native {
        "" => String::new(),
        native => signature::wrap(context.upstream, native, is_redacted, ""),
    }
}
