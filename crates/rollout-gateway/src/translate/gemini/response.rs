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
    let mut parts: Vec<Part> = Vec::new();
    let mut ending = match body.object("promptFeedback")? {
        Some(feedback) if feedback.has("blockReason") => Ending::Filtered,
        _ => Ending::Done,
    };
    if let Some(mut candidate) = body.objects("candidates")?.into_iter().next() {
        ending = read_ending(candidate.peek("finishReason"));
        if let Some(mut content) = candidate.object("content")? {
            for part in content.objects("parts")? {
                read_part(part, &mut parts)?;
            }
        }
    }
    let usage = body.take("usageMetadata").map(|raw| usage::read(Dialect::Gemini, &raw));
    Ok(Answer { id: body.text("responseId")?, model: body.text("modelVersion")?, parts, ending, usage })
}

/// Reads a part. Texts that follow each other are one text, as in a stream.
fn read_part(mut part: Object, parts: &mut Vec<Part>) -> Result<(), TranslationError> {
    let is_thought = part.flag("thought")?.unwrap_or_default();
    let signature = part.text("thoughtSignature")?;
    if let Some(mut call) = part.object("functionCall")? {
        sign(parts, signature);
        parts.push(Part::Call(ToolUse {
            id: call.text("id")?.unwrap_or_default(),
            name: call.required("name")?,
            arguments: arguments_text(&call.take("args").unwrap_or_default()),
        }));
    } else if let Some(text) = part.text("text")? {
        match (is_thought, parts.last_mut()) {
            _ if text.is_empty() => {}
            (true, Some(Part::Thought(last))) if last.signature.is_none() => last.text.push_str(&text),
            (true, _) => parts.push(Part::Thought(Thought { text, ..Thought::default() })),
            (false, Some(Part::Text(last))) => last.push_str(&text),
            (false, _) => parts.push(Part::Text(text)),
        }
        if is_thought {
            sign(parts, signature);
        }
    }
    Ok(())
}

fn sign(parts: &mut Vec<Part>, signature: Option<String>) {
    let Some(signature) = signature else { return };
    match parts.last_mut() {
        Some(Part::Thought(thought)) if thought.signature.is_none() => thought.signature = Some(signature),
        _ => parts.push(Part::Thought(Thought { signature: Some(signature), ..Thought::default() })),
    }
}

/// Reads a finish reason.
pub(super) fn read_ending(reason: &str) -> Ending {
    match reason {
        "MAX_TOKENS" => Ending::Length,
        "SAFETY" | "RECITATION" | "LANGUAGE" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII"
        | "IMAGE_SAFETY" => Ending::Filtered,
        _ => Ending::Done,
    }
}

/// Writes a finish reason.
pub(super) fn write_ending(ending: &Ending) -> &'static str {
    match ending {
        Ending::Done | Ending::StopSequence(_) => "STOP",
        Ending::Length => "MAX_TOKENS",
        Ending::Filtered => "SAFETY",
    }
}

/// Writes an answer.
pub(in super::super) fn write_answer(answer: Answer, context: &AnswerContext) -> Value {
    let mut parts: Vec<Value> = Vec::new();
    let mut thought = None;
    for part in answer.parts {
        parts.extend(write_part(part, &mut thought, context));
    }
    let finish_reason = write_ending(&answer.ending);
    json!({
        "candidates": [{
            "content": {"role": "model", "parts": parts},
            "finishReason": finish_reason,
            "index": 0,
        }],
        "usageMetadata": usage::write(Dialect::Gemini, &answer.usage.unwrap_or_default()),
        "modelVersion": context.model(answer.model),
        "responseId": context.answer_id(answer.id),
    })
}

/// A part of the answer. Clients return only the signatures of calls, so a thought travels there as a whole.
pub(super) fn write_part(
    part: Part,
    last_thought: &mut Option<Thought>,
    context: &AnswerContext,
) -> Option<Value> {
    match part {
        Part::Text(text) | Part::Refusal(text) => Some(json!({"text": text})),
        Part::Thought(thought) => {
            let shown = (!thought.text.is_empty()).then(|| json!({"text": thought.text, "thought": true}));
            *last_thought = Some(thought);
            shown
        }
        Part::Call(call) => {
            let args = arguments_object(&call.arguments);
            let name = context.origin(&call.name).name;
            let mut part = json!({"functionCall": {"id": call.id, "name": name, "args": args}});
            if let Some(thought) = last_thought.take() {
                let native = thought.signature.unwrap_or_default();
                let wrapped = signature::wrap(context.upstream, &native, thought.is_redacted, &thought.text);
                part["thoughtSignature"] = json!(wrapped);
            }
            Some(part)
        }
        Part::Image(_) | Part::Document(_) | Part::Result(_) => None,
    }
}
