//! Writes requests.

use serde_json::{Map, Value, json};

use super::super::{
    TranslationError,
    families::{is_openai_reasoner, openai_effort},
    fields::Notes,
    neutral::{
        Author, ChoiceMode, Conversation, Format, Media, MediaSource, Part, ToolResult, Turn, joined_text,
    },
    settle::split_instructions,
    tools::{marked_error, only_chosen, plain_schema},
};

/// Writes a request.
pub(in super::super) fn write_request(
    mut conversation: Conversation,
    notes: &mut Notes,
) -> Result<Value, TranslationError> {
    only_chosen(&mut conversation);
    let reasons = is_openai_reasoner(&conversation.model);
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            body.insert(key.to_owned(), value);
        }
    };
    put("model", json!(conversation.model));
    put("messages", Value::Array(write_messages(conversation.turns)));
    if !conversation.tools.is_empty() {
        let tools = conversation.tools.iter().map(|tool| {
            let mut function = json!({"name": tool.name, "parameters": plain_schema(&tool.schema)});
            if let Some(description) = &tool.description {
                function["description"] = json!(description);
            }
            if let Some(strict) = tool.strict {
                function["strict"] = json!(strict);
            }
            json!({"type": "function", "function": function})
        });
        put("tools", tools.collect());
        if let Some(choice) = &conversation.choice {
            put(
                "tool_choice",
                match (choice.mode, choice.only.as_slice()) {
                    (ChoiceMode::Required, [name]) => json!({"type": "function", "function": {"name": name}}),
                    (ChoiceMode::Required, _) => json!("required"),
                    (ChoiceMode::Auto, _) => json!("auto"),
                    (ChoiceMode::Never, _) => json!("none"),
                },
            );
        }
        put("parallel_tool_calls", json!(conversation.parallel));
    }
    put(
        "response_format",
        match conversation.format {
            None => Value::Null,
            Some(Format::Json) => json!({"type": "json_object"}),
            Some(Format::Schema { name, schema, strict, .. }) => {
                let mut format = json!({"name": name.as_deref().unwrap_or("answer"), "schema": schema});
                if let Some(strict) = strict {
                    format["strict"] = json!(strict);
                }
                json!({"type": "json_schema", "json_schema": format})
            }
        },
    );
    let sampling = conversation.sampling;
    if sampling.top_k.is_some() {
        notes.add("top_k", "Chat Completions has no such parameter");
    }
    if reasons {
        if sampling.temperature.or(sampling.top_p).is_some() {
            notes.add("temperature", "this model takes neither `temperature` nor `top_p`");
        }
        if let Some(reasoning) = &conversation.reasoning {
            put("reasoning_effort", json!(openai_effort(reasoning)));
        }
        put("max_completion_tokens", json!(conversation.max_tokens));
    } else {
        if conversation.reasoning.is_some() {
            notes.add("reasoning", "left out: it is unknown whether this model supports reasoning");
        }
        put("temperature", json!(sampling.temperature));
        put("top_p", json!(sampling.top_p));
        put("max_tokens", json!(conversation.max_tokens));
    }
    put("presence_penalty", json!(sampling.presence_penalty));
    put("frequency_penalty", json!(sampling.frequency_penalty));
    put("seed", json!(sampling.seed));
    if !conversation.stop.is_empty() {
        put("stop", json!(conversation.stop));
    }
    if conversation.stream {
        put("stream", json!(true));
        // The record wants the usage, whether the client does or not.
        put("stream_options", json!({"include_usage": true}));
    }
    Ok(Value::Object(body))
}

/// The instructions are one message at the start: the templates of many open models take no other.
fn write_messages(turns: Vec<Turn>) -> Vec<Value> {
    let (instructions, turns) = split_instructions(turns);
    let mut messages = Vec::new();
    let instructions = joined_text(&instructions);
    if !instructions.is_empty() {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    for turn in turns {
        match turn.author {
            Author::Assistant => messages.push(write_assistant(turn.parts)),
            Author::User | Author::System => write_user(turn.parts, &mut messages),
        }
    }
    messages
}

fn write_assistant(parts: Vec<Part>) -> Value {
    let (mut text, mut thought, mut refusal) = (String::new(), String::new(), String::new());
    let mut calls = Vec::new();
    for part in parts {
        match part {
            Part::Text(more) => text.push_str(&more),
            Part::Thought(more) => thought.push_str(&more.text),
            Part::Refusal(more) => refusal.push_str(&more),
            Part::Call(call) => {
                let arguments = if call.arguments.is_empty() { "{}" } else { &call.arguments };
                let function = json!({"name": call.name, "arguments": arguments});
                calls.push(json!({"id": call.id, "type": "function", "function": function}));
            }
            // A model's own images have no place here.
            Part::Image(_) | Part::Document(_) | Part::Result(_) => {}
        }
    }
    let is_silent = text.is_empty() && !(calls.is_empty() && refusal.is_empty());
    let mut message =
        json!({"role": "assistant", "content": if is_silent { Value::Null } else { json!(text) }});
    if !thought.is_empty() {
        // Upstreams that write this field want it back; the others never wrote one.
        message["reasoning_content"] = json!(thought);
    }
    if !refusal.is_empty() {
        message["refusal"] = json!(refusal);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    message
}

fn write_user(parts: Vec<Part>, messages: &mut Vec<Value>) {
    let mut rest = Vec::new();
    for part in parts {
        match part {
            Part::Result(ToolResult { id, parts, is_error, .. }) => {
                let mut text = joined_text(&parts);
                if text.is_empty() && !parts.is_empty() {
                    text.push_str("The content follows.");
                }
                let text = if is_error { marked_error(text) } else { text };
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
                // A result is text only, so its images follow in a message of the user.
                let media: Vec<Part> = parts
                    .into_iter()
                    .filter(|part| matches!(part, Part::Image(_) | Part::Document(_)))
                    .collect();
                if !media.is_empty() {
                    rest.push(Part::Text(format!("Content of the result of tool call {id}:")));
                    rest.extend(media);
                }
            }
            part => rest.push(part),
        }
    }
    if rest.is_empty() {
        return;
    }
    let is_text = rest.iter().all(|part| matches!(part, Part::Text(_)));
    let content = match is_text {
        true => json!(joined_text(&rest)),
        false => rest.iter().filter_map(write_part).collect(),
    };
    messages.push(json!({"role": "user", "content": content}));
}

fn write_part(part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) => Some(json!({"type": "text", "text": text})),
        Part::Image(image) => {
            let mut url = json!({"url": image.source.to_url()});
            if let Some(detail) = &image.detail {
                url["detail"] = json!(detail);
            }
            Some(json!({"type": "image_url", "image_url": url}))
        }
        Part::Document(Media { source: MediaSource::Url(url), .. }) => {
            Some(json!({"type": "text", "text": format!("Document: {url}")}))
        }
        Part::Document(document) => {
            let name = document.name.as_deref().unwrap_or("document.pdf");
            let file = json!({"filename": name, "file_data": document.source.to_url()});
            Some(json!({"type": "file", "file": file}))
        }
        Part::Thought(_) | Part::Call(_) | Part::Result(_) | Part::Refusal(_) => None,
    }
}
