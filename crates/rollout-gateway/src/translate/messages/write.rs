//! Writes requests.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::{
    TranslationError,
    families::{ClaudeThinking, budget_of, claude_max_tokens, claude_thinking},
    fields::Notes,
    neutral::{
        Author, ChoiceMode, Conversation, Format, Media, MediaSource, Part, Reasoning, Thought, ToolChoice,
        ToolOrigin, ToolResult, ToolSpec, Turn, joined_text,
    },
    settle::split_instructions,
    tools::{arguments_object, only_chosen, plain_schema},
};

/// The least that Anthropic accepts as a budget of thoughts.
const LEAST_BUDGET: u64 = 1024;

/// Writes a request.
pub(in super::super) fn write_request(
    mut conversation: Conversation,
    notes: &mut Notes,
) -> Result<Value, TranslationError> {
    only_chosen(&mut conversation);
    declare_called(&mut conversation, notes);
    let max_tokens = conversation.max_tokens.unwrap_or_else(|| claude_max_tokens(&conversation.model));
    let thinking = thinking(&conversation, max_tokens, notes);
    let is_thinking = thinking.is_some();
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            body.insert(key.to_owned(), value);
        }
    };
    put("model", json!(conversation.model));
    put("max_tokens", json!(max_tokens));
    let (instructions, turns) = split_instructions(conversation.turns);
    let instructions = joined_text(&instructions);
    if !instructions.is_empty() {
        let block = json!({"type": "text", "text": instructions, "cache_control": {"type": "ephemeral"}});
        put("system", json!([block]));
    }
    let mut messages = write_turns(turns, notes);
    mark_cache(&mut messages);
    put("messages", Value::Array(messages));
    if !conversation.tools.is_empty() {
        let tools = conversation.tools.iter().map(|tool| {
            let mut written = json!({"name": tool.name, "input_schema": plain_schema(&tool.schema)});
            if let Some(description) = &tool.description {
                written["description"] = json!(description);
            }
            written
        });
        put("tools", tools.collect());
        let mut choice =
            conversation.choice.as_ref().map(|choice| match (choice.mode, choice.only.as_slice()) {
                (ChoiceMode::Required, [name]) => json!({"type": "tool", "name": name}),
                (ChoiceMode::Required, _) => json!({"type": "any"}),
                (ChoiceMode::Auto, _) => json!({"type": "auto"}),
                (ChoiceMode::Never, _) => json!({"type": "none"}),
            });
        if conversation.parallel == Some(false) {
            let choice = choice.get_or_insert_with(|| json!({"type": "auto"}));
            if choice["type"] != "none" {
                choice["disable_parallel_tool_use"] = json!(true);
            }
        }
        put("tool_choice", json!(choice));
    }
    let mut output = Map::new();
    if let Some((thinking, effort)) = thinking {
        put("thinking", thinking);
        output.extend(effort.map(|effort| ("effort".to_owned(), json!(effort))));
    }
    match conversation.format {
        None => {}
        Some(Format::Json) => notes.add("response_format", "Messages has no JSON mode without a schema"),
        Some(Format::Schema { schema, .. }) => {
            output.insert("format".to_owned(), json!({"type": "json_schema", "schema": schema}));
        }
    }
    if !output.is_empty() {
        put("output_config", Value::Object(output));
    }
    let sampling = conversation.sampling;
    if is_thinking {
        if sampling.temperature.or(sampling.top_p).is_some() {
            notes.add("temperature", "a model that thinks takes neither `temperature` nor `top_p`");
        }
    } else {
        let temperature = sampling.temperature.map(|temperature| temperature.min(1.0));
        if temperature != sampling.temperature {
            notes.add("temperature", "lowered to 1, the maximum of Messages");
        }
        put("temperature", json!(temperature));
        match (temperature, sampling.top_p) {
            (Some(_), Some(_)) => {
                notes.add("top_p", "newer models take only one of `temperature` and `top_p`")
            }
            (_, top_p) => put("top_p", json!(top_p)),
        }
        put("top_k", json!(sampling.top_k));
    }
    for (name, is_set) in [
        ("presence_penalty", sampling.presence_penalty.is_some_and(|penalty| penalty != 0.0)),
        ("frequency_penalty", sampling.frequency_penalty.is_some_and(|penalty| penalty != 0.0)),
        ("seed", sampling.seed.is_some()),
    ] {
        if is_set {
            notes.add(name, "Messages has no such parameter");
        }
    }
    let stop: Vec<&String> = conversation.stop.iter().filter(|stop| !stop.trim().is_empty()).collect();
    if stop.len() < conversation.stop.len() {
        return Err(TranslationError::unsupported(
            "stop",
            "Messages rejects stop sequences that contain only white space",
            "Use another stop sequence.",
        ));
    }
    if !stop.is_empty() {
        put("stop_sequences", json!(stop));
    }
    if conversation.stream {
        put("stream", json!(true));
    }
    Ok(Value::Object(body))
}

/// Declares the tools that were called earlier, for a client that declares none any more: Anthropic rejects calls
/// without tools. The model may not call them.
fn declare_called(conversation: &mut Conversation, notes: &mut Notes) {
    if !conversation.tools.is_empty() {
        return;
    }
    let parts = conversation.turns.iter().flat_map(|turn| &turn.parts);
    let called: BTreeSet<String> = parts
        .filter_map(|part| match part {
            Part::Call(call) => Some(call.name.clone()),
            _ => None,
        })
        .collect();
    if called.is_empty() {
        return;
    }
    notes.add("tools", "the tools of earlier calls were declared, but may not be called");
    conversation.tools.extend(called.into_iter().map(|name| ToolSpec {
        description: None,
        schema: Value::Null,
        strict: None,
        origin: ToolOrigin::function(&name),
        name,
    }));
    conversation.choice = Some(ToolChoice { mode: ChoiceMode::Never, only: Vec::new() });
}

/// The `thinking` field and the effort, if the model shall think and can.
fn thinking(
    conversation: &Conversation,
    max_tokens: u64,
    notes: &mut Notes,
) -> Option<(Value, Option<String>)> {
    let Reasoning { effort, budget, .. } = conversation.reasoning.as_ref()?;
    if effort.as_deref() == Some("none") || *budget == Some(0) {
        return None;
    }
    let choice = conversation.choice.as_ref();
    if choice.is_some_and(|choice| choice.mode == ChoiceMode::Required) {
        notes.add("reasoning", "left out: Messages does not support thinking if a tool call is required");
        return None;
    }
    match claude_thinking(&conversation.model) {
        ClaudeThinking::Adaptive => {
            // Words that Anthropic does not know become the nearest one.
            let effort = effort.as_deref().map(|effort| match effort {
                "minimal" => "low",
                "xhigh" => "max",
                effort => effort,
            });
            Some((json!({"type": "adaptive"}), effort.map(str::to_owned)))
        }
        ClaudeThinking::Budget if conversation.keeps_signatures && may_think(&conversation.turns) => {
            let budget = budget.unwrap_or_else(|| budget_of(effort.as_deref().unwrap_or("medium")));
            let budget = budget.min(max_tokens.saturating_sub(1)).max(LEAST_BUDGET);
            if budget >= max_tokens {
                notes.add("reasoning", "left out: the token limit is too low for thinking");
                return None;
            }
            Some((json!({"type": "enabled", "budget_tokens": budget}), None))
        }
        ClaudeThinking::Budget => {
            notes.add("reasoning", "left out: the client does not send signed thoughts back");
            None
        }
        ClaudeThinking::Never => {
            notes.add("reasoning", "left out: it is unknown whether this model supports reasoning");
            None
        }
    }
}

/// Whether every call since the last question has the signed thought before it that Anthropic requires.
fn may_think(turns: &[Turn]) -> bool {
    let is_question = |turn: &Turn| {
        turn.author == Author::User && !turn.parts.iter().any(|part| matches!(part, Part::Result(_)))
    };
    let start = turns.iter().rposition(is_question).unwrap_or_default();
    let mut answers = turns[start..].iter().filter(|turn| turn.author == Author::Assistant);
    let is_signed = |part: &Part| matches!(part, Part::Thought(Thought { signature: Some(_), .. }));
    answers.all(|turn| turn.parts.iter().any(is_signed))
}

fn write_turns(turns: Vec<Turn>, notes: &mut Notes) -> Vec<Value> {
    let mut messages = Vec::new();
    for Turn { author, mut parts } in turns {
        let role = if author == Author::Assistant { "assistant" } else { "user" };
        think_first(&mut parts);
        // Results must come first in their message.
        let (results, rest): (Vec<Part>, Vec<Part>) =
            parts.into_iter().partition(|part| matches!(part, Part::Result(_)));
        let blocks: Vec<Value> =
            results.into_iter().chain(rest).filter_map(|part| write_part(part, notes)).collect();
        if blocks.is_empty() {
            continue;
        }
        if messages.is_empty() && author == Author::Assistant {
            notes.add("messages", "a first message of the user was added");
            messages.push(json!({"role": "user", "content": "Continue."}));
        }
        messages.push(json!({"role": role, "content": blocks}));
    }
    messages
}

/// Puts the signed thought of a turn first, where Anthropic wrote it and wants it back. Gemini's clients return it with
/// the call after it.
fn think_first(parts: &mut Vec<Part>) {
    let is_signed = |part: &Part| matches!(part, Part::Thought(Thought { signature: Some(_), .. }));
    if let Some(at) = parts.iter().position(is_signed)
        && !parts.iter().take(at).any(|part| matches!(part, Part::Call(_)))
    {
        let thought = parts.remove(at);
        parts.insert(0, thought);
    }
}

/// Asks for a cache up to the end of the conversation. The other providers cache by themselves; Anthropic reads the
/// whole conversation anew with each turn of an agent unless it is asked.
fn mark_cache(messages: &mut [Value]) {
    let last = messages.last_mut().and_then(|message| message["content"].as_array_mut()?.last_mut());
    let Some(block) = last else { return };
    if ["text", "tool_result", "image"].iter().any(|kind| block["type"] == *kind) {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
}

fn write_part(part: Part, notes: &mut Notes) -> Option<Value> {
    match part {
        // Empty blocks are rejected.
        Part::Text(text) | Part::Refusal(text) if text.trim().is_empty() => None,
        Part::Text(text) | Part::Refusal(text) => Some(json!({"type": "text", "text": text})),
        Part::Image(media) => Some(json!({"type": "image", "source": write_source(media.source)})),
        Part::Document(Media { source, name, .. }) => {
            let mut document = json!({"type": "document", "source": write_source(source)});
            if let Some(name) = name {
                document["title"] = json!(name);
            }
            Some(document)
        }
        Part::Thought(Thought { text, signature: Some(signature), is_redacted }) => Some(match is_redacted {
            true => json!({"type": "redacted_thinking", "data": signature}),
            false => json!({"type": "thinking", "thinking": text, "signature": signature}),
        }),
        Part::Thought(_) => {
            notes.add("thoughts", "left out: this upstream takes only thoughts that it signed");
            None
        }
        Part::Call(call) => Some(json!({
            "type": "tool_use",
            "id": fit_id(&call.id),
            "name": call.name,
            "input": arguments_object(&call.arguments),
        })),
        Part::Result(ToolResult { id, parts, is_error, .. }) => {
            let content: Vec<Value> = parts.into_iter().filter_map(|part| write_part(part, notes)).collect();
            let mut result = json!({"type": "tool_result", "tool_use_id": fit_id(&id)});
            if !content.is_empty() {
                result["content"] = Value::Array(content);
            }
            if is_error {
                result["is_error"] = json!(true);
            }
            Some(result)
        }
    }
}

/// Anthropic takes letters, digits, `_` and `-` in ids.
fn fit_id(id: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    if id.is_empty() { "_".to_owned() } else { id.chars().map(letter).collect() }
}

fn write_source(source: MediaSource) -> Value {
    match source {
        MediaSource::Base64 { media_type, data } => {
            json!({"type": "base64", "media_type": media_type, "data": data})
        }
        MediaSource::Url(url) => json!({"type": "url", "url": url}),
    }
}
