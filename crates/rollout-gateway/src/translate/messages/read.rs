//! Reads requests.

use serde_json::Value;

use super::super::{
    TranslationError,
    fields::{Notes, Object, objects, shown},
    neutral::{
        Author, ChoiceMode, Conversation, Format, Media, MediaSource, Part, Reasoning, Sampling, Thought,
        ToolChoice, ToolOrigin, ToolResult, ToolSpec, ToolUse, Turn,
    },
    tools::arguments_text,
};

/// Claude Code puts this block first. It may differ with every request, which would defeat the upstream's prefix cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// Reads a request.
pub(in super::super) fn read_request(
    mut body: Object,
    notes: &mut Notes,
) -> Result<Conversation, TranslationError> {
    if body.has("mcp_servers") {
        let servers = body.take("mcp_servers");
        if servers.is_some_and(|servers| servers.as_array().is_none_or(|list| !list.is_empty())) {
            return Err(TranslationError::unsupported(
                "mcp_servers",
                "the provider would have to call these servers",
                "Let the agent connect to its MCP servers itself.",
            ));
        }
    }
    if body.take("container").is_some() {
        return Err(TranslationError::unsupported(
            "container",
            "it is the provider's own sandbox",
            "Leave `container` out.",
        ));
    }
    let mut conversation = Conversation {
        model: body.text("model")?.unwrap_or_default(),
        stream: body.flag("stream")?.unwrap_or_default(),
        keeps_signatures: true,
        wants_usage: true,
        ..Conversation::default()
    };
    let system = read_content(&mut body, "system", notes)?;
    let system: Vec<Part> = system.into_iter().filter_map(without_billing).collect();
    if !system.is_empty() {
        conversation.turns.push(Turn { author: Author::System, parts: system });
    }
    for mut message in body.objects("messages")? {
        let author = match message.required("role")?.as_str() {
            "user" => Author::User,
            "assistant" => Author::Assistant,
            // Claude Code sends these between the others.
            "system" => Author::System,
            _ => return Err(message.invalid("role", "is unknown")),
        };
        let parts = read_content(&mut message, "content", notes)?;
        message.finish(notes);
        conversation.turns.push(Turn { author, parts });
    }
    for tool in body.objects("tools")? {
        conversation.tools.extend(read_tool(tool, notes)?);
    }
    if let Some(mut choice) = body.object("tool_choice")? {
        let (mode, only) = match choice.required("type")?.as_str() {
            "auto" => (ChoiceMode::Auto, Vec::new()),
            "none" => (ChoiceMode::Never, Vec::new()),
            "any" => (ChoiceMode::Required, Vec::new()),
            "tool" => (ChoiceMode::Required, vec![choice.required("name")?]),
            _ => return Err(choice.invalid("type", "is unknown")),
        };
        conversation.choice = Some(ToolChoice { mode, only });
        conversation.parallel = choice.flag("disable_parallel_tool_use")?.map(|disabled| !disabled);
    }
    read_output(&mut body, &mut conversation, notes)?;
    conversation.sampling = Sampling {
        temperature: body.number("temperature")?,
        top_p: body.number("top_p")?,
        top_k: body.count("top_k")?,
        ..Sampling::default()
    };
    conversation.max_tokens = body.count("max_tokens")?;
    conversation.stop = body.texts("stop_sequences")?;
    // Who asks, and where the provider bills, caches or cleans up, means nothing to another upstream. The client keeps
    // the whole conversation, so nothing is lost.
    body.ignore(&[
        "metadata",
        "service_tier",
        "cache_control",
        "context_management",
        "betas",
        "speed",
        "inference_geo",
    ]);
    body.finish(notes);
    Ok(conversation)
}

/// Leaves out the line for the bill.
fn without_billing(part: Part) -> Option<Part> {
    match part {
        Part::Text(text) if text.starts_with(BILLING) => {
            let rest = text.split_once('\n').map(|(_, rest)| rest).filter(|rest| !rest.trim().is_empty());
            rest.map(Part::text)
        }
        part => Some(part),
    }
}

/// Thinking, effort, and the form of the answer.
fn read_output(
    body: &mut Object,
    conversation: &mut Conversation,
    notes: &mut Notes,
) -> Result<(), TranslationError> {
    let mut reasoning = None;
    if let Some(mut thinking) = body.object("thinking")? {
        reasoning = match thinking.required("type")?.as_str() {
            "enabled" => Some(Reasoning { budget: thinking.count("budget_tokens")?, ..Reasoning::default() }),
            "disabled" => Some(Reasoning { effort: Some("none".to_owned()), ..Reasoning::default() }),
            // Adaptive: the model decides, within the effort.
            _ => Some(Reasoning::default()),
        };
        if let Some(reasoning) = &mut reasoning {
            reasoning.is_shown = thinking.text("display")?.is_none_or(|display| display != "omitted");
        }
    }
    let mut format = body.object("output_format")?;
    if let Some(mut output) = body.object("output_config")? {
        if let Some(effort) = output.text("effort")? {
            let reasoning = reasoning.get_or_insert_default();
            reasoning.effort.get_or_insert(effort);
        }
        format = output.object("format")?.or(format);
        output.finish(notes);
    }
    conversation.reasoning = reasoning;
    if let Some(mut format) = format {
        let schema = format.take("schema").ok_or_else(|| format.invalid("schema", "is missing"))?;
        conversation.format =
            Some(Format::Schema { name: None, description: None, schema, strict: Some(true) });
    }
    Ok(())
}

fn read_content(holder: &mut Object, key: &str, notes: &mut Notes) -> Result<Vec<Part>, TranslationError> {
    match holder.take(key) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Part::Text(text)]),
        Some(Value::Array(list)) => {
            let mut parts = Vec::new();
            for block in objects(list, &holder.path(key))? {
                parts.extend(read_block(block, notes)?);
            }
            Ok(parts)
        }
        Some(_) => Err(holder.invalid(key, "must be a text or a list")),
    }
}

fn read_block(mut block: Object, notes: &mut Notes) -> Result<Option<Part>, TranslationError> {
    let kind = block.required("type")?;
    let part = match kind.as_str() {
        "text" => Part::Text(block.text("text")?.unwrap_or_default()),
        "image" => Part::Image(read_media(&mut block)?),
        "document" => match read_document(&mut block)? {
            Some(part) => part,
            None => return Ok(None),
        },
        "thinking" => Part::Thought(Thought {
            text: block.text("thinking")?.unwrap_or_default(),
            signature: block.text("signature")?.filter(|signature| !signature.is_empty()),
            is_redacted: false,
        }),
        "redacted_thinking" => {
            Part::Thought(Thought { text: String::new(), signature: block.text("data")?, is_redacted: true })
        }
        "tool_use" => Part::Call(ToolUse {
            id: block.required("id")?,
            name: block.required("name")?,
            arguments: arguments_text(&block.take("input").unwrap_or_default()),
        }),
        "tool_result" => Part::Result(ToolResult {
            id: block.required("tool_use_id")?,
            name: None,
            parts: read_content(&mut block, "content", notes)?,
            is_error: block.flag("is_error")?.unwrap_or_default(),
        }),
        // Claude Code's tool search returns these: every tool is in the request anyway.
        "tool_reference" => Part::Text(format!("Tool `{}` is available.", block.required("tool_name")?)),
        "search_result" => {
            let title = block.text("title")?.unwrap_or_default();
            let source = block.text("source")?.unwrap_or_default();
            let parts = read_texts(&mut block)?;
            Part::Text(format!("{title}\n{source}\n{parts}"))
        }
        "server_tool_use"
        | "web_search_tool_result"
        | "web_fetch_tool_result"
        | "code_execution_tool_result"
        | "bash_code_execution_tool_result"
        | "text_editor_code_execution_tool_result"
        | "mcp_tool_use"
        | "mcp_tool_result"
        | "tool_search_tool_result"
        | "container_upload"
        | "compaction" => {
            notes.add(&kind, "calls and results of the provider's own tools were left out");
            return Ok(None);
        }
        _ => return Err(block.unsupported_type(&kind)),
    };
    block.ignore(&["cache_control", "citations", "caller", "type"]);
    block.finish(notes);
    Ok(Some(part))
}

/// The text of a list of text blocks.
fn read_texts(block: &mut Object) -> Result<String, TranslationError> {
    let texts =
        block.objects("content")?.into_iter().map(|mut text| Ok(text.text("text")?.unwrap_or_default()));
    Ok(texts.collect::<Result<Vec<_>, TranslationError>>()?.join("\n"))
}

fn read_media(block: &mut Object) -> Result<Media, TranslationError> {
    let mut source = block.object("source")?.ok_or_else(|| block.invalid("source", "is missing"))?;
    let source = match source.required("type")?.as_str() {
        "base64" => {
            MediaSource::Base64 { media_type: source.required("media_type")?, data: source.required("data")? }
        }
        "url" => MediaSource::Url(source.required("url")?),
        _ => return Err(block.stored_file("source", "Send the content as base64.")),
    };
    Ok(Media { source, name: block.text("title")?, detail: None })
}

fn read_document(block: &mut Object) -> Result<Option<Part>, TranslationError> {
    block.ignore(&["context"]);
    let mut source = block.object("source")?.ok_or_else(|| block.invalid("source", "is missing"))?;
    match source.peek("type") {
        "text" => Ok(source.text("data")?.map(Part::Text)),
        "content" => Ok(Some(Part::Text(read_texts(&mut source)?))),
        "base64" => Ok(Some(Part::Document(Media {
            source: MediaSource::Base64 {
                media_type: source.required("media_type")?,
                data: source.required("data")?,
            },
            name: block.text("title")?,
            detail: None,
        }))),
        "url" => {
            let source = MediaSource::Url(source.required("url")?);
            Ok(Some(Part::Document(Media { source, name: block.text("title")?, detail: None })))
        }
        _ => Err(block.stored_file("source", "Send the content as base64.")),
    }
}

fn read_tool(mut tool: Object, notes: &mut Notes) -> Result<Option<ToolSpec>, TranslationError> {
    let kind = tool.text("type")?.unwrap_or_else(|| "custom".to_owned());
    if kind != "custom" {
        let run_by_client = ["bash_", "text_editor_", "computer_", "memory_"];
        if run_by_client.iter().any(|start| kind.starts_with(start)) {
            return Err(TranslationError::unsupported(
                &tool.path("type"),
                &format!("only Claude models support `{}`", shown(&kind)),
                "Declare the tool with an `input_schema`.",
            ));
        }
        notes.add("tools", &format!("a tool of type `{}` was left out", shown(&kind)));
        return Ok(None);
    }
    let name = tool.required("name")?;
    let read = ToolSpec {
        origin: ToolOrigin::function(&name),
        name,
        description: tool.text("description")?,
        schema: tool.take("input_schema").unwrap_or_default(),
        strict: tool.flag("strict")?.filter(|strict| *strict),
    };
    // Tools that Claude would only load on demand are there from the start.
    tool.ignore(&[
        "cache_control",
        "defer_loading",
        "eager_input_streaming",
        "allowed_callers",
        "input_examples",
    ]);
    tool.finish(notes);
    Ok(Some(read))
}
