//! Reads requests.

use serde_json::{Value, json};

use super::{
    super::{
        TranslationError,
        fields::{Notes, Object, objects, shown},
        names,
        neutral::{
            Author, Conversation, Format, Media, MediaSource, Part, Reasoning, Sampling, Thought, ToolResult,
            ToolUse, Turn,
        },
        tools::{arguments_text, custom_arguments},
    },
    tools::{LOCAL_SHELL, TOOL_SEARCH, read_choice, read_tool},
};

/// Reads a request.
pub(in super::super) fn read_request(
    mut body: Object,
    notes: &mut Notes,
) -> Result<Conversation, TranslationError> {
    refuse_stored(&mut body)?;
    let mut conversation = Conversation {
        model: body.text("model")?.unwrap_or_default(),
        stream: body.flag("stream")?.unwrap_or_default(),
        keeps_signatures: true,
        wants_usage: true,
        ..Conversation::default()
    };
    if let Some(instructions) = body.text("instructions")? {
        conversation.push(Author::System, Part::Text(instructions));
    }
    // Before the input, which may add tools: what is declared keeps its place, so that the upstream's cache holds.
    for tool in body.objects("tools")? {
        read_tool(tool, &mut conversation.tools, notes)?;
    }
    match body.take("input") {
        None => {}
        Some(Value::String(text)) => conversation.push(Author::User, Part::Text(text)),
        Some(Value::Array(list)) => {
            for item in objects(list, "input")? {
                read_item(item, &mut conversation, notes)?;
            }
        }
        Some(_) => return Err(body.invalid("input", "must be a text or a list")),
    }
    keep_first_of_each_name(&mut conversation);
    conversation.choice = read_choice(&mut body)?;
    conversation.parallel = body.flag("parallel_tool_calls")?;
    if let Some(mut text) = body.object("text")? {
        conversation.format = read_format(text.object("format")?)?;
        text.finish(notes);
    }
    if let Some(mut reasoning) = body.object("reasoning")? {
        let effort = reasoning.text("effort")?;
        let summary = reasoning.text("summary")?.or(reasoning.text("generate_summary")?);
        conversation.reasoning = Some(Reasoning { effort, budget: None, is_shown: summary.is_some() });
        reasoning.finish(notes);
    }
    conversation.sampling = Sampling {
        temperature: body.number("temperature")?,
        top_p: body.number("top_p")?,
        ..Sampling::default()
    };
    conversation.max_tokens = body.count("max_output_tokens")?;
    // Nothing is stored here either way; the encrypted reasoning of `include` is always returned; the rest is for the
    // provider's cache and bill.
    body.ignore(&[
        "store",
        "include",
        "user",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stream_options",
        "client_metadata",
        "background",
    ]);
    body.finish(notes);
    Ok(conversation)
}

/// Refuses what only a provider that stores conversations can do.
fn refuse_stored(body: &mut Object) -> Result<(), TranslationError> {
    for field in ["previous_response_id", "conversation", "prompt"] {
        if body.take(field).is_some() {
            return Err(TranslationError::unsupported(
                field,
                "this model server stores no conversations",
                "Send the whole conversation in `input`.",
            ));
        }
    }
    if body.flag("background")? == Some(true) {
        return Err(TranslationError::unsupported(
            "background",
            "this model server stores no answers",
            "Wait for the answer.",
        ));
    }
    Ok(())
}

/// A tool that a search found may be declared again later.
fn keep_first_of_each_name(conversation: &mut Conversation) {
    let mut seen = std::collections::BTreeSet::new();
    conversation.tools.retain(|tool| seen.insert(tool.name.clone()));
}

fn read_item(
    mut item: Object,
    conversation: &mut Conversation,
    notes: &mut Notes,
) -> Result<(), TranslationError> {
    item.ignore(&["id", "status", "phase", "internal_chat_message_metadata_passthrough"]);
    let kind = item.text("type")?.unwrap_or_else(|| "message".to_owned());
    let name = |item: &mut Object| {
        let namespace = item.text("namespace")?;
        Ok::<_, TranslationError>(names::flat(namespace.as_deref(), &item.required("name")?))
    };
    match kind.as_str() {
        "message" => read_message(&mut item, conversation, notes)?,
        "reasoning" => {
            let texts = |item: &mut Object, key: &str| {
                let texts = item.objects(key)?.into_iter();
                let texts = texts.map(|mut part| Ok(part.text("text")?.unwrap_or_default()));
                Ok::<_, TranslationError>(texts.collect::<Result<Vec<_>, TranslationError>>()?.join("\n\n"))
            };
            let (summary, content) = (texts(&mut item, "summary")?, texts(&mut item, "content")?);
            let text = if summary.is_empty() { content } else { summary };
            let signature = item.text("encrypted_content")?;
            if !(text.is_empty() && signature.is_none()) {
                let thought = Thought { text, signature, is_redacted: false };
                conversation.push(Author::Assistant, Part::Thought(thought));
            }
        }
        "function_call" => {
            let call = ToolUse {
                id: item.required("call_id")?,
                name: name(&mut item)?,
                arguments: item.text("arguments")?.unwrap_or_default(),
            };
            conversation.push(Author::Assistant, Part::Call(call));
        }
        "custom_tool_call" => {
            let call = ToolUse {
                id: item.required("call_id")?,
                name: name(&mut item)?,
                arguments: custom_arguments(&item.text("input")?.unwrap_or_default()),
            };
            conversation.push(Author::Assistant, Part::Call(call));
        }
        "local_shell_call" => {
            let mut action = item.take("action").unwrap_or_else(|| json!({}));
            if let Some(fields) = action.as_object_mut() {
                fields.shift_remove("type");
            }
            let id = item.required("call_id")?;
            let call = ToolUse { id, name: LOCAL_SHELL.to_owned(), arguments: arguments_text(&action) };
            conversation.push(Author::Assistant, Part::Call(call));
        }
        "tool_search_call" => {
            if let Some(id) = item.text("call_id")? {
                let arguments = arguments_text(&item.take("arguments").unwrap_or_default());
                let call = ToolUse { id, name: TOOL_SEARCH.to_owned(), arguments };
                conversation.push(Author::Assistant, Part::Call(call));
            }
            item.ignore(&["execution"]);
        }
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            let id = item.required("call_id")?;
            let parts = read_content(&mut item, "output", notes)?;
            item.ignore(&["name", "namespace"]);
            let result = ToolResult { id, parts, ..ToolResult::default() };
            conversation.push(Author::User, Part::Result(result));
        }
        "tool_search_output" | "additional_tools" => {
            let before = conversation.tools.len();
            for tool in item.objects("tools")? {
                read_tool(tool, &mut conversation.tools, notes)?;
            }
            let found: Vec<&str> =
                conversation.tools[before..].iter().map(|tool| tool.name.as_str()).collect();
            let text = match found.is_empty() {
                true => "No tools were found.".to_owned(),
                false => format!("These tools are now available: {}", found.join(", ")),
            };
            if let Some(id) = item.text("call_id")? {
                let result = ToolResult { id, parts: vec![Part::Text(text)], ..ToolResult::default() };
                conversation.push(Author::User, Part::Result(result));
            }
            item.ignore(&["execution"]);
        }
        "web_search_call"
        | "file_search_call"
        | "code_interpreter_call"
        | "image_generation_call"
        | "mcp_call"
        | "mcp_list_tools"
        | "mcp_approval_request"
        | "mcp_approval_response" => {
            notes.add(&kind, "calls and results of the provider's own tools were left out");
            return Ok(());
        }
        "item_reference" => {
            return Err(TranslationError::unsupported(
                &item.path("type"),
                "this model server stores no conversations",
                "Send the item itself.",
            ));
        }
        _ => {
            return Err(TranslationError::unsupported(
                &item.path("type"),
                &format!("items of type `{}` are not supported", shown(&kind)),
                "Send messages, function calls and their outputs.",
            ));
        }
    }
    item.finish(notes);
    Ok(())
}

fn read_message(
    item: &mut Object,
    conversation: &mut Conversation,
    notes: &mut Notes,
) -> Result<(), TranslationError> {
    let author = match item.required("role")?.as_str() {
        "system" | "developer" => Author::System,
        "user" => Author::User,
        "assistant" => Author::Assistant,
        _ => return Err(item.invalid("role", "is unknown")),
    };
    let parts = read_content(item, "content", notes)?;
    match author {
        Author::Assistant => parts.into_iter().for_each(|part| conversation.push(author, part)),
        author => conversation.turns.push(Turn { author, parts }),
    }
    Ok(())
}

fn read_content(item: &mut Object, key: &str, notes: &mut Notes) -> Result<Vec<Part>, TranslationError> {
    match item.take(key) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Part::Text(text)]),
        Some(Value::Array(list)) => {
            let parts = objects(list, &item.path(key))?;
            parts.into_iter().map(|part| read_part(part, notes)).collect()
        }
        Some(value) => Ok(vec![Part::Text(value.to_string())]),
    }
}

fn read_part(mut part: Object, notes: &mut Notes) -> Result<Part, TranslationError> {
    let kind = part.required("type")?;
    let stored = |part: &Object| part.stored_file("file_id", "Send the content itself.");
    let read = match kind.as_str() {
        "input_text" | "output_text" | "text" | "summary_text" => {
            Part::Text(part.text("text")?.unwrap_or_default())
        }
        "refusal" => Part::Refusal(part.text("refusal")?.unwrap_or_default()),
        "input_image" => {
            let url = part.text("image_url")?.ok_or_else(|| stored(&part))?;
            Part::Image(Media {
                source: MediaSource::from_url(url),
                name: None,
                detail: part.text("detail")?.filter(|detail| detail != "auto"),
            })
        }
        "input_file" => {
            let url = part.text("file_data")?.or(part.text("file_url")?).ok_or_else(|| stored(&part))?;
            Part::Document(Media {
                source: MediaSource::from_url(url),
                name: part.text("filename")?,
                detail: None,
            })
        }
        _ => return Err(part.unsupported_type(&kind)),
    };
    part.ignore(&["annotations", "logprobs"]);
    part.finish(notes);
    Ok(read)
}

fn read_format(format: Option<Object>) -> Result<Option<Format>, TranslationError> {
    let Some(mut format) = format else { return Ok(None) };
    match format.required("type")?.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Format::Json)),
        "json_schema" => Ok(Some(Format::Schema {
            name: format.text("name")?,
            description: format.text("description")?,
            strict: format.flag("strict")?,
            schema: format.take("schema").unwrap_or_else(|| json!({"type": "object"})),
        })),
        _ => Err(TranslationError::unsupported(
            &format.path("type"),
            "this response format is unknown",
            "Use `json_schema`.",
        )),
    }
}
