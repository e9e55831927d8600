//! Reads requests.

use serde_json::{Value, json};

use super::super::{
    TranslationError,
    fields::{Notes, Object, objects, shown},
    neutral::{
        Author, ChoiceMode, Conversation, Format, Media, MediaSource, Part, Reasoning, Sampling, Thought,
        ToolChoice, ToolKind, ToolOrigin, ToolResult, ToolSpec, ToolUse, Turn,
    },
    tools::{custom_arguments, custom_tool},
};

/// Reads a request.
pub(in super::super) fn read_request(
    mut body: Object,
    notes: &mut Notes,
) -> Result<Conversation, TranslationError> {
    if body.count("n")?.is_some_and(|n| n > 1) {
        return Err(TranslationError::unsupported("n", "only one answer can be requested", "Leave `n` out."));
    }
    if body.take("audio").is_some() {
        return Err(TranslationError::unsupported("audio", "audio output is not supported", "Request text."));
    }
    let mut conversation = Conversation {
        model: body.text("model")?.unwrap_or_default(),
        stream: body.flag("stream")?.unwrap_or_default(),
        ..Conversation::default()
    };
    if let Some(mut options) = body.object("stream_options")? {
        conversation.wants_usage = options.flag("include_usage")?.unwrap_or_default();
    }
    for message in body.objects("messages")? {
        read_message(message, &mut conversation, notes)?;
    }
    for tool in body.objects("tools")?.into_iter().chain(body.objects("functions")?) {
        conversation.tools.extend(read_tool(tool, notes)?);
    }
    conversation.choice = read_choice(&mut body)?;
    conversation.parallel = body.flag("parallel_tool_calls")?;
    conversation.format = read_format(body.object("response_format")?)?;
    let effort = body.text("reasoning_effort")?;
    conversation.reasoning =
        effort.map(|effort| Reasoning { effort: Some(effort), is_shown: true, ..Reasoning::default() });
    conversation.sampling = Sampling {
        temperature: body.number("temperature")?,
        top_p: body.number("top_p")?,
        top_k: body.count("top_k").ok().flatten(),
        presence_penalty: body.number("presence_penalty")?,
        frequency_penalty: body.number("frequency_penalty")?,
        seed: body.take("seed").and_then(|seed| seed.as_i64()),
    };
    let limit = body.count("max_completion_tokens")?;
    conversation.max_tokens = limit.or(body.count("max_tokens")?);
    conversation.stop = body.texts("stop")?;
    // Who asks, and where the provider bills or caches it, means nothing to another upstream.
    body.ignore(&["user", "store", "metadata", "prompt_cache_key", "safety_identifier", "service_tier"]);
    if body.flag("logprobs").ok().flatten() == Some(true) {
        notes.add("logprobs", "log-probabilities are not translated");
        body.ignore(&["top_logprobs"]);
    }
    body.finish(notes);
    Ok(conversation)
}

fn read_message(
    mut message: Object,
    conversation: &mut Conversation,
    notes: &mut Notes,
) -> Result<(), TranslationError> {
    let role = message.required("role")?;
    let author = match role.as_str() {
        "system" | "developer" => Author::System,
        "user" => Author::User,
        "assistant" => Author::Assistant,
        "tool" | "function" => {
            let id = message.text("tool_call_id")?;
            let name = message.text("name")?;
            // A function of the old form has no id: its name stands for it.
            let id = id.or(name).ok_or_else(|| message.invalid("tool_call_id", "is missing"))?;
            let parts = read_content(&mut message, notes)?;
            let result = ToolResult { id, parts, ..ToolResult::default() };
            conversation.push(Author::User, Part::Result(result));
            message.finish(notes);
            return Ok(());
        }
        _ => return Err(message.invalid("role", "is unknown")),
    };
    let mut parts = Vec::new();
    let thought = message.text("reasoning_content").ok().flatten();
    let thought = thought.or(message.text("reasoning").ok().flatten()).filter(|text| !text.is_empty());
    parts.extend(thought.map(|text| Part::Thought(Thought { text, ..Thought::default() })));
    parts.extend(read_content(&mut message, notes)?);
    parts.extend(message.text("refusal")?.map(Part::Refusal));
    for call in message.objects("tool_calls")? {
        parts.push(Part::Call(read_call(call, notes)?));
    }
    if let Some(mut call) = message.object("function_call")? {
        let name = call.required("name")?;
        let arguments = call.text("arguments")?.unwrap_or_default();
        parts.push(Part::Call(ToolUse { id: name.clone(), name, arguments }));
    }
    message.ignore(&["name", "annotations", "audio", "function_call", "index", "cache_control"]);
    message.finish(notes);
    // Not joined with the turn before, except where the author is the assistant, whose calls belong together.
    match author {
        Author::Assistant => parts.into_iter().for_each(|part| conversation.push(author, part)),
        author => conversation.turns.push(Turn { author, parts }),
    }
    Ok(())
}

fn read_content(message: &mut Object, notes: &mut Notes) -> Result<Vec<Part>, TranslationError> {
    match message.take("content") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Part::Text(text)]),
        Some(Value::Array(list)) => {
            let parts = objects(list, &message.path("content"))?;
            parts.into_iter().map(|part| read_part(part, notes)).collect()
        }
        Some(_) => Err(message.invalid("content", "must be a text or a list")),
    }
}

fn read_part(mut part: Object, notes: &mut Notes) -> Result<Part, TranslationError> {
    let kind = part.text("type")?.unwrap_or_else(|| "text".to_owned());
    let read = match kind.as_str() {
        "text" => Part::Text(part.text("text")?.unwrap_or_default()),
        "refusal" => Part::Refusal(part.text("refusal")?.unwrap_or_default()),
        "image_url" => {
            let (url, detail) = match part.take("image_url") {
                Some(Value::String(url)) => (url, None),
                Some(value) => {
                    let mut image = Object::new(value, part.path("image_url"))?;
                    (image.required("url")?, image.text("detail")?.filter(|detail| detail != "auto"))
                }
                None => return Err(part.invalid("image_url", "is missing")),
            };
            Part::Image(Media { source: MediaSource::from_url(url), name: None, detail })
        }
        "file" => {
            let mut file = part.object("file")?.ok_or_else(|| part.invalid("file", "is missing"))?;
            let Some(data) = file.text("file_data")? else {
                return Err(part.stored_file("file", "Send `file_data`."));
            };
            Part::Document(Media {
                source: MediaSource::from_url(data),
                name: file.text("filename")?,
                detail: None,
            })
        }
        _ => return Err(part.unsupported_type(&kind)),
    };
    part.ignore(&["cache_control"]);
    part.finish(notes);
    Ok(read)
}

fn read_call(mut call: Object, notes: &mut Notes) -> Result<ToolUse, TranslationError> {
    let id = call.text("id")?.unwrap_or_default();
    let read = if let Some(mut custom) = call.object("custom")? {
        let arguments = custom_arguments(&custom.text("input")?.unwrap_or_default());
        ToolUse { id, name: custom.required("name")?, arguments }
    } else {
        let mut function = call.object("function")?.ok_or_else(|| call.invalid("function", "is missing"))?;
        let arguments = match function.take("arguments") {
            Some(Value::String(arguments)) => arguments,
            Some(arguments) => arguments.to_string(),
            None => String::new(),
        };
        ToolUse { id, name: function.required("name")?, arguments }
    };
    call.ignore(&["type", "index", "extra_content"]);
    call.finish(notes);
    Ok(read)
}

fn read_tool(mut tool: Object, notes: &mut Notes) -> Result<Option<ToolSpec>, TranslationError> {
    let kind = tool.text("type")?;
    tool.ignore(&["cache_control"]);
    match kind.as_deref() {
        Some("custom") => {
            let mut custom = tool.object("custom")?.ok_or_else(|| tool.invalid("custom", "is missing"))?;
            let name = custom.required("name")?;
            let origin = ToolOrigin { namespace: None, name: name.clone(), kind: ToolKind::Custom };
            let format = custom.take("format").map(|mut format| format["grammar"].take());
            Ok(Some(custom_tool(name, custom.text("description")?, format, origin)))
        }
        Some("function") | None => {
            // The old form has the function itself in the list.
            let mut function = tool.object("function")?.unwrap_or(tool);
            let name = function.required("name")?;
            let read = ToolSpec {
                origin: ToolOrigin::function(&name),
                name,
                description: function.text("description")?,
                schema: function
                    .take("parameters")
                    .unwrap_or_else(|| json!({"type": "object", "properties": {}})),
                strict: function.flag("strict")?.filter(|strict| *strict),
            };
            function.finish(notes);
            Ok(Some(read))
        }
        Some(kind) => {
            notes.add("tools", &format!("a tool of type `{}` was left out", shown(kind)));
            Ok(None)
        }
    }
}

fn read_choice(body: &mut Object) -> Result<Option<ToolChoice>, TranslationError> {
    let choice = body.take("tool_choice").or(body.take("function_call"));
    let named = |value: &Value| {
        let name =
            ["/function/name", "/custom/name", "/name"].iter().find_map(|path| value.pointer(path)?.as_str());
        name.map(str::to_owned)
    };
    let mode = |word: &str| match word {
        "auto" => Some(ChoiceMode::Auto),
        "none" => Some(ChoiceMode::Never),
        "required" | "any" => Some(ChoiceMode::Required),
        _ => None,
    };
    let invalid = || body.invalid("tool_choice", "is unknown");
    match choice {
        None => Ok(None),
        Some(Value::String(word)) => {
            Ok(Some(ToolChoice { mode: mode(&word).ok_or_else(invalid)?, only: Vec::new() }))
        }
        Some(value) => match value.get("allowed_tools") {
            Some(allowed) => {
                let tools = allowed.get("tools").and_then(Value::as_array);
                let only = tools.into_iter().flatten().filter_map(named).collect();
                let word = allowed.get("mode").and_then(Value::as_str).unwrap_or("auto");
                Ok(Some(ToolChoice { mode: mode(word).ok_or_else(invalid)?, only }))
            }
            None => {
                let name = named(&value).ok_or_else(invalid)?;
                Ok(Some(ToolChoice { mode: ChoiceMode::Required, only: vec![name] }))
            }
        },
    }
}

fn read_format(format: Option<Object>) -> Result<Option<Format>, TranslationError> {
    let Some(mut format) = format else { return Ok(None) };
    match format.required("type")?.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Format::Json)),
        "json_schema" => {
            let mut schema =
                format.object("json_schema")?.ok_or_else(|| format.invalid("json_schema", "is missing"))?;
            Ok(Some(Format::Schema {
                name: schema.text("name")?,
                description: schema.text("description")?,
                strict: schema.flag("strict")?,
                schema: schema.take("schema").unwrap_or_else(|| json!({"type": "object"})),
            }))
        }
        _ => Err(TranslationError::unsupported(
            &format.path("type"),
            "this response format is unknown",
            "Use `json_schema`.",
        )),
    }
}
