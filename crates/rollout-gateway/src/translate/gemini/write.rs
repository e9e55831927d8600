//! Writes requests.

use serde_json::{Map, Value, json};

use super::super::{
    TranslationError,
    families::{GeminiThinking, budget_of, effort_of, gemini_budget, gemini_thinking},
    fields::Notes,
    neutral::{
        Author, ChoiceMode, Conversation, Format, Media, MediaSource, Part, Reasoning, ToolResult, Turn,
        joined_text,
    },
    settle::split_instructions,
    tools::{arguments_object, plain_schema},
};

/// What Google accepts in the place of a signature that is lost.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// Writes a request. The model goes into the path.
pub(in super::super) fn write_request(
    conversation: Conversation,
    notes: &mut Notes,
) -> Result<Value, TranslationError> {
    let thinking = gemini_thinking(&conversation.model);
    let mut body = Map::new();
    let config = write_config(&conversation, thinking, notes);
    let (instructions, turns) = split_instructions(conversation.turns);
    let instructions = joined_text(&instructions);
    if !instructions.is_empty() {
        body.insert("systemInstruction".to_owned(), json!({"parts": [{"text": instructions}]}));
    }
    let needs_signature = thinking == GeminiThinking::Level;
    let mut contents: Vec<Value> =
        turns.into_iter().filter_map(|turn| write_turn(turn, needs_signature, notes)).collect();
    if contents.first().is_some_and(|first| first["role"] == "model") {
        notes.add("contents", "a first message of the user was added");
        contents.insert(0, json!({"role": "user", "parts": [{"text": "Continue."}]}));
    }
    body.insert("contents".to_owned(), Value::Array(contents));
    if !conversation.tools.is_empty() {
        let declarations = conversation.tools.iter().map(|tool| {
            let mut written = json!({"name": tool.name, "parametersJsonSchema": plain_schema(&tool.schema)});
            if let Some(description) = &tool.description {
                written["description"] = json!(description);
            }
            written
        });
        let declarations: Value = declarations.collect();
        body.insert("tools".to_owned(), json!([{"functionDeclarations": declarations}]));
        if let Some(choice) = &conversation.choice {
            let mode = match choice.mode {
                ChoiceMode::Auto => "AUTO",
                ChoiceMode::Never => "NONE",
                ChoiceMode::Required => "ANY",
            };
            let mut config = json!({"mode": mode});
            if !choice.only.is_empty() {
                config["allowedFunctionNames"] = json!(choice.only);
            }
            body.insert("toolConfig".to_owned(), json!({"functionCallingConfig": config}));
        }
        if conversation.parallel == Some(false) {
            notes.add("parallel_tool_calls", "Gemini has no setting that forbids several calls at once");
        }
    }
    if !config.is_empty() {
        body.insert("generationConfig".to_owned(), Value::Object(config));
    }
    Ok(Value::Object(body))
}

fn write_config(
    conversation: &Conversation,
    thinking: GeminiThinking,
    notes: &mut Notes,
) -> Map<String, Value> {
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            config.insert(key.to_owned(), value);
        }
    };
    let sampling = &conversation.sampling;
    put("temperature", json!(sampling.temperature));
    put("topP", json!(sampling.top_p));
    put("topK", json!(sampling.top_k));
    put("presencePenalty", json!(sampling.presence_penalty));
    put("frequencyPenalty", json!(sampling.frequency_penalty));
    put("seed", json!(sampling.seed));
    put("maxOutputTokens", json!(conversation.max_tokens));
    if !conversation.stop.is_empty() {
        put("stopSequences", json!(conversation.stop));
    }
    match &conversation.format {
        None => {}
        Some(Format::Json) => put("responseMimeType", json!("application/json")),
        Some(Format::Schema { schema, .. }) => {
            put("responseMimeType", json!("application/json"));
            put("responseJsonSchema", plain_schema(schema));
        }
    }
    if let Some(Reasoning { effort, budget, is_shown }) = &conversation.reasoning {
        let mut asked = Map::new();
        match thinking {
            GeminiThinking::Budget => {
                let budget = budget.or(effort.as_deref().map(budget_of));
                let budget = budget.map(|budget| gemini_budget(&conversation.model, budget));
                asked.extend(budget.map(|budget| ("thinkingBudget".to_owned(), json!(budget))));
            }
            GeminiThinking::Level => {
                let effort = effort.as_deref().or(budget.map(effort_of));
                let level = effort
                    .map(|effort| if ["none", "minimal", "low"].contains(&effort) { "low" } else { "high" });
                asked.extend(level.map(|level| ("thinkingLevel".to_owned(), json!(level))));
            }
            GeminiThinking::Never => {
                notes.add("reasoning", "left out: it is unknown whether this model supports reasoning")
            }
        }
        if thinking != GeminiThinking::Never {
            if *is_shown {
                asked.insert("includeThoughts".to_owned(), json!(true));
            }
            if !asked.is_empty() {
                put("thinkingConfig", Value::Object(asked));
            }
        }
    }
    config
}

fn write_turn(turn: Turn, needs_signature: bool, notes: &mut Notes) -> Option<Value> {
    let role = if turn.author == Author::Assistant { "model" } else { "user" };
    let (results, rest): (Vec<Part>, Vec<Part>) =
        turn.parts.into_iter().partition(|part| matches!(part, Part::Result(_)));
    let mut parts = Vec::new();
    let mut media = Vec::new();
    for result in results {
        if let Part::Result(result) = result {
            parts.push(write_result(&result));
            media.extend(result.parts.iter().filter_map(write_media));
        }
    }
    parts.append(&mut media);
    let mut signature = None;
    let mut is_first = true;
    for part in rest {
        match part {
            Part::Text(text) | Part::Refusal(text) if text.is_empty() => {}
            Part::Text(text) | Part::Refusal(text) => parts.push(json!({"text": text})),
            // The upstream needs only the signature, with the call after it.
            Part::Thought(thought) => signature = thought.signature.or(signature),
            Part::Call(call) => {
                let args = arguments_object(&call.arguments);
                let mut part = json!({"functionCall": {"id": call.id, "name": call.name, "args": args}});
                if needs_signature && is_first && signature.is_none() {
                    notes.add(
                        "thoughtSignature",
                        "a missing signature was replaced by the value that turns off the check",
                    );
                    signature = Some(NO_SIGNATURE.to_owned());
                }
                is_first = false;
                if let Some(signature) = signature.take() {
                    part["thoughtSignature"] = json!(signature);
                }
                parts.push(part);
            }
            part => parts.extend(write_media(&part)),
        }
    }
    (!parts.is_empty()).then(|| json!({"role": role, "parts": parts}))
}

fn write_result(result: &ToolResult) -> Value {
    let key = if result.is_error { "error" } else { "output" };
    let mut response = Map::new();
    response.insert(key.to_owned(), json!(joined_text(&result.parts)));
    let name = result.name.as_deref().unwrap_or(&result.id);
    json!({"functionResponse": {"id": result.id, "name": name, "response": response}})
}

fn write_media(part: &Part) -> Option<Value> {
    let (Part::Image(Media { source, .. }) | Part::Document(Media { source, .. })) = part else {
        return None;
    };
    Some(match source {
        MediaSource::Base64 { media_type, data } => {
            json!({"inlineData": {"mimeType": media_type, "data": data}})
        }
        MediaSource::Url(url) => {
            let mut file = json!({"fileUri": url});
            if let Some(kind) = media_type(url) {
                file["mimeType"] = json!(kind);
            }
            json!({"fileData": file})
        }
    })
}

/// The media type that the end of a URL suggests.
fn media_type(url: &str) -> Option<&'static str> {
    let path = url.split(['?', '#']).next().unwrap_or_default().to_lowercase();
    Some(match path.rsplit('.').next().unwrap_or_default() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        _ => return None,
    })
}
