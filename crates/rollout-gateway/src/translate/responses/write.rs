//! Writes requests.

use serde_json::{Map, Value, json};

use super::super::{
    TranslationError,
    families::{is_openai_reasoner, openai_effort},
    fields::Notes,
    neutral::{
        Author, ChoiceMode, Conversation, Format, Media, MediaSource, Part, ToolResult, ToolSpec, Turn,
        joined_text,
    },
    tools::{marked_error, only_chosen, plain_schema},
};

/// Writes a request.
pub(in super::super) fn write_request(
    mut conversation: Conversation,
    notes: &mut Notes,
) -> Result<Value, TranslationError> {
    if !conversation.stop.is_empty() {
        return Err(TranslationError::unsupported(
            "stop",
            "Responses has no stop sequences",
            "Leave them out, or use a Chat Completions upstream.",
        ));
    }
    only_chosen(&mut conversation);
    let reasons = is_openai_reasoner(&conversation.model);
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            body.insert(key.to_owned(), value);
        }
    };
    put("model", json!(conversation.model));
    let mut turns = conversation.turns;
    if turns.first().is_some_and(|turn| turn.author == Author::System) {
        put("instructions", json!(joined_text(&turns.remove(0).parts)));
    }
    put("input", Value::Array(write_items(turns, notes)));
    if !conversation.tools.is_empty() {
        put("tools", conversation.tools.iter().map(write_tool).collect());
        if let Some(choice) = &conversation.choice {
            put(
                "tool_choice",
                match (choice.mode, choice.only.as_slice()) {
                    (ChoiceMode::Required, [name]) => json!({"type": "function", "name": name}),
                    (ChoiceMode::Required, _) => json!("required"),
                    (ChoiceMode::Auto, _) => json!("auto"),
                    (ChoiceMode::Never, _) => json!("none"),
                },
            );
        }
        put("parallel_tool_calls", json!(conversation.parallel));
    }
    match conversation.format {
        None => {}
        Some(Format::Json) => put("text", json!({"format": {"type": "json_object"}})),
        Some(Format::Schema { name, schema, strict, .. }) => {
            let name = name.as_deref().unwrap_or("answer");
            let strict = strict.unwrap_or_default();
            let format = json!({"type": "json_schema", "name": name, "schema": schema, "strict": strict});
            put("text", json!({"format": format}));
        }
    }
    let sampling = conversation.sampling;
    if reasons {
        if sampling.temperature.or(sampling.top_p).is_some() {
            notes.add("temperature", "this model takes neither `temperature` nor `top_p`");
        }
        let reasoning = conversation.reasoning.unwrap_or_default();
        if let Some(effort) = openai_effort(&reasoning) {
            put("reasoning", json!({"effort": effort}));
        }
        put("include", json!(["reasoning.encrypted_content"]));
    } else {
        if conversation.reasoning.is_some() {
            notes.add("reasoning", "left out: it is unknown whether this model supports reasoning");
        }
        put("temperature", json!(sampling.temperature));
        put("top_p", json!(sampling.top_p));
    }
    for (name, is_set) in [
        ("top_k", sampling.top_k.is_some()),
        ("presence_penalty", sampling.presence_penalty.is_some_and(|penalty| penalty != 0.0)),
        ("frequency_penalty", sampling.frequency_penalty.is_some_and(|penalty| penalty != 0.0)),
        ("seed", sampling.seed.is_some()),
    ] {
        if is_set {
            notes.add(name, "Responses has no such parameter");
        }
    }
    put("max_output_tokens", json!(conversation.max_tokens));
    put("store", json!(false));
    if conversation.stream {
        put("stream", json!(true));
    }
    Ok(Value::Object(body))
}

fn write_tool(tool: &ToolSpec) -> Value {
    // Unlike Chat Completions, Responses takes a missing `strict` for true.
    let strict = tool.strict.unwrap_or_default();
    let mut written = json!({
        "type": "function",
        "name": tool.name,
        "parameters": plain_schema(&tool.schema),
        "strict": strict,
    });
    if let Some(description) = &tool.description {
        written["description"] = json!(description);
    }
    written
}

fn write_items(turns: Vec<Turn>, notes: &mut Notes) -> Vec<Value> {
    let mut items = Vec::new();
    for Turn { author, parts } in turns {
        match author {
            Author::Assistant => items.extend(parts.into_iter().filter_map(|part| write_output(part, notes))),
            Author::System => {
                items.push(message("developer", parts.iter().filter_map(write_input).collect()))
            }
            Author::User => {
                let mut content = Vec::new();
                for part in parts {
                    match part {
                        Part::Result(result) => items.push(write_result(result)),
                        part => content.extend(write_input(&part)),
                    }
                }
                if !content.is_empty() {
                    items.push(message("user", content));
                }
            }
        }
    }
    items
}

fn message(role: &str, content: Vec<Value>) -> Value {
    json!({"type": "message", "role": role, "content": content})
}

fn write_output(part: Part, notes: &mut Notes) -> Option<Value> {
    match part {
        Part::Text(text) | Part::Refusal(text) if text.is_empty() => None,
        // A text, because a list would be an item of the server's own, with an id.
        Part::Text(text) | Part::Refusal(text) => {
            Some(json!({"type": "message", "role": "assistant", "content": text}))
        }
        Part::Thought(thought) => match thought.signature {
            Some(signature) => {
                let summary = match thought.text.as_str() {
                    "" => json!([]),
                    text => json!([{"type": "summary_text", "text": text}]),
                };
                Some(json!({"type": "reasoning", "summary": summary, "encrypted_content": signature}))
            }
            None => {
                notes.add("thoughts", "left out: this upstream takes only thoughts that it encrypted");
                None
            }
        },
        Part::Call(call) => {
            let arguments = if call.arguments.is_empty() { "{}" } else { &call.arguments };
            Some(
                json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}),
            )
        }
        Part::Image(_) | Part::Document(_) | Part::Result(_) => None,
    }
}

fn write_input(part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) | Part::Refusal(text) => Some(json!({"type": "input_text", "text": text})),
        Part::Image(image) => {
            let detail = image.detail.as_deref().unwrap_or("auto");
            Some(json!({"type": "input_image", "image_url": image.source.to_url(), "detail": detail}))
        }
        Part::Document(Media { source: MediaSource::Url(url), .. }) => {
            Some(json!({"type": "input_file", "file_url": url}))
        }
        Part::Document(document) => {
            let name = document.name.as_deref().unwrap_or("document.pdf");
            Some(json!({"type": "input_file", "filename": name, "file_data": document.source.to_url()}))
        }
        Part::Thought(_) | Part::Call(_) | Part::Result(_) => None,
    }
}

fn write_result(result: ToolResult) -> Value {
    let ToolResult { id, parts, is_error, .. } = result;
    let is_text = parts.iter().all(|part| matches!(part, Part::Text(_)));
    let output = match is_text {
        true if is_error => json!(marked_error(joined_text(&parts))),
        true => json!(joined_text(&parts)),
        false => parts.iter().filter_map(write_input).collect(),
    };
    json!({"type": "function_call_output", "call_id": id, "output": output})
}
