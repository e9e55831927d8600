//! Reads requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

use super::{
    super::{
        TranslationError,
        fields::{Notes, Object},
        neutral::{
            Author, ChoiceMode, Conversation, Format, Media, MediaSource, Part, Reasoning, Sampling, Thought,
            ToolChoice, ToolOrigin, ToolResult, ToolSpec, ToolUse, Turn,
        },
        sequence::call_id,
        tools::arguments_text,
    },
    schema::to_json_schema,
};

/// Reads a request. The model and whether it streams are in the path, not here.
pub(in super::super) fn read_request(
    body: Object,
    notes: &mut Notes,
) -> Result<Conversation, TranslationError> {
    let mut body = body.into_camel_case();
    if body.take("cachedContent").is_some() {
        return Err(TranslationError::unsupported(
            "cachedContent",
            "this model server has no stored content",
            "Send the whole conversation in `contents`.",
        ));
    }
    let mut conversation =
        Conversation { keeps_signatures: true, wants_usage: true, ..Conversation::default() };
    let mut waiting = Waiting::default();
    if let Some(instruction) = body.take("systemInstruction") {
        let instruction = match instruction {
            Value::String(text) => json!({"parts": [{"text": text}]}),
            instruction => instruction,
        };
        let mut instruction = Object::new(instruction, "systemInstruction")?;
        let mut parts = Vec::new();
        for part in instruction.objects("parts")? {
            read_part(part, &mut parts, &mut waiting, notes)?;
        }
        conversation.turns.push(Turn { author: Author::System, parts });
    }
    for mut content in body.objects("contents")? {
        let author = match content.text("role")?.as_deref() {
            Some("model") => Author::Assistant,
            Some("system") => Author::System,
            _ => Author::User,
        };
        let mut parts = Vec::new();
        for part in content.objects("parts")? {
            read_part(part, &mut parts, &mut waiting, notes)?;
        }
        content.finish(notes);
        conversation.turns.push(Turn { author, parts });
    }
    for tool in body.objects("tools")? {
        read_tools(tool.into_camel_case(), &mut conversation.tools, notes)?;
    }
    if let Some(config) = body.object("toolConfig")? {
        conversation.choice = read_choice(config.into_camel_case())?;
    }
    if let Some(config) = body.object("generationConfig")? {
        read_config(config.into_camel_case(), &mut conversation, notes)?;
    }
    // What the provider filters and bills means nothing to another upstream.
    body.ignore(&["safetySettings", "labels", "model", "serviceTier", "store"]);
    body.finish(notes);
    Ok(conversation)
}

/// Calls that have no response yet. Gemini's calls need no ids: a response belongs to the first call of its name.
#[derive(Default)]
struct Waiting {
    ids: BTreeSet<String>,
    by_name: BTreeMap<String, VecDeque<String>>,
    number: usize,
}

impl Waiting {
    fn call(&mut self, id: Option<String>, name: &str) -> String {
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| call_id(self.number));
        self.number += 1;
        self.ids.insert(id.clone());
        self.by_name.entry(name.to_owned()).or_default().push_back(id.clone());
        id
    }

    fn response(&mut self, id: Option<String>, name: &str) -> String {
        if let Some(id) = id.as_ref().filter(|id| self.ids.remove(*id)) {
            return id.clone();
        }
        while let Some(first) = self.by_name.get_mut(name).and_then(VecDeque::pop_front) {
            // One that was answered by its id still stands here.
            if self.ids.remove(&first) {
                return first;
            }
        }
        id.unwrap_or_else(|| name.to_owned())
    }
}

fn read_part(
    part: Object,
    parts: &mut Vec<Part>,
    waiting: &mut Waiting,
    notes: &mut Notes,
) -> Result<(), TranslationError> {
    let mut part = part.into_camel_case();
    let is_thought = part.flag("thought")?.unwrap_or_default();
    let signature = part.text("thoughtSignature")?;
    if let Some(call) = part.object("functionCall")? {
        let mut call = call.into_camel_case();
        sign(parts, signature);
        let name = call.required("name")?;
        let id = call.text("id")?;
        let id = waiting.call(id, &name);
        let arguments = arguments_text(&call.take("args").unwrap_or_default());
        parts.push(Part::Call(ToolUse { id, name, arguments }));
    } else if let Some(response) = part.object("functionResponse")? {
        parts.push(Part::Result(read_response(response.into_camel_case(), waiting, notes)?));
    } else if let Some(data) = part.object("inlineData")? {
        parts.push(read_data(data.into_camel_case())?);
    } else if let Some(file) = part.object("fileData")? {
        let mut file = file.into_camel_case();
        let url = file.required("fileUri")?;
        if !url.starts_with("http") {
            return Err(part.stored_file("fileData", "Send `inlineData`."));
        }
        let media = Media { source: MediaSource::Url(url), name: None, detail: None };
        let is_image = file.text("mimeType")?.is_none_or(|kind| kind.starts_with("image/"));
        parts.push(if is_image { Part::Image(media) } else { Part::Document(media) });
    } else if let Some(text) = part.text("text")? {
        match is_thought {
            true => parts.push(Part::Thought(Thought { text, signature, is_redacted: false })),
            false if text.is_empty() => {}
            false => parts.push(Part::Text(text)),
        }
    } else if part.has("executableCode") || part.has("codeExecutionResult") {
        notes.add("codeExecution", "calls and results of the provider's own tools were left out");
        return Ok(());
    }
    part.ignore(&["videoMetadata", "mediaResolution"]);
    part.finish(notes);
    Ok(())
}

/// Gives the thought before a call the call's signature.
fn sign(parts: &mut Vec<Part>, signature: Option<String>) {
    let Some(signature) = signature else { return };
    match parts.last_mut() {
        Some(Part::Thought(thought)) if thought.signature.is_none() => thought.signature = Some(signature),
        _ => {
            parts.push(Part::Thought(Thought { signature: Some(signature), ..Thought::default() }));
        }
    }
}

fn read_data(mut data: Object) -> Result<Part, TranslationError> {
    let (media_type, content) = (data.required("mimeType")?, data.required("data")?);
    let is_image = media_type.starts_with("image/");
    if !is_image && !media_type.starts_with("application/") && !media_type.starts_with("text/") {
        return Err(TranslationError::unsupported(
            &data.path("mimeType"),
            "only images and documents are supported",
            "Remove audio and video.",
        ));
    }
    // Google's library for Python writes base64 for URLs, which other providers reject.
    let content = content.replace('-', "+").replace('_', "/");
    let source = MediaSource::Base64 { media_type, data: content };
    let media = Media { source, name: data.text("displayName")?, detail: None };
    Ok(if is_image { Part::Image(media) } else { Part::Document(media) })
}

fn read_response(
    mut response: Object,
    waiting: &mut Waiting,
    notes: &mut Notes,
) -> Result<ToolResult, TranslationError> {
    let name = response.required("name")?;
    let id = response.text("id")?;
    let id = waiting.response(id, &name);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let value = response.take("response").unwrap_or_default();
    let field =
        |key: &str| value.get(key).filter(|_| value.as_object().is_some_and(|fields| fields.len() == 1));
    let (said, is_error) = match (field("output").or(field("result")), field("error")) {
        (Some(output), _) => (text(output), false),
        (None, Some(error)) => (text(error), true),
        (None, None) if value.is_null() => (String::new(), false),
        (None, None) => (value.to_string(), false),
    };
    let mut parts = vec![Part::Text(said)];
    for part in response.objects("parts")? {
        let mut part = part.into_camel_case();
        if let Some(data) = part.object("inlineData")? {
            parts.push(read_data(data.into_camel_case())?);
        }
        part.finish(notes);
    }
    Ok(ToolResult { id, name: Some(name), parts, is_error })
}

fn read_tools(
    mut tool: Object,
    tools: &mut Vec<ToolSpec>,
    notes: &mut Notes,
) -> Result<(), TranslationError> {
    for declaration in tool.objects("functionDeclarations")? {
        let mut declaration = declaration.into_camel_case();
        let name = declaration.required("name")?;
        let schema = declaration.take("parametersJsonSchema");
        let schema = schema.or_else(|| declaration.take("parameters").map(to_json_schema));
        tools.push(ToolSpec {
            origin: ToolOrigin::function(&name),
            name,
            description: declaration.text("description")?,
            schema: schema.unwrap_or_default(),
            strict: None,
        });
        declaration.ignore(&["behavior", "response", "responseJsonSchema"]);
        declaration.finish(notes);
    }
    // What is left are tools that the provider runs.
    tool.finish(notes);
    Ok(())
}

fn read_choice(mut config: Object) -> Result<Option<ToolChoice>, TranslationError> {
    let Some(config) = config.object("functionCallingConfig")? else { return Ok(None) };
    let mut config = config.into_camel_case();
    let mode = match config.text("mode")?.as_deref().unwrap_or("AUTO") {
        "NONE" => ChoiceMode::Never,
        "ANY" => ChoiceMode::Required,
        _ => ChoiceMode::Auto,
    };
    Ok(Some(ToolChoice { mode, only: config.texts("allowedFunctionNames")? }))
}

fn read_config(
    mut config: Object,
    conversation: &mut Conversation,
    notes: &mut Notes,
) -> Result<(), TranslationError> {
    if config.count("candidateCount")?.is_some_and(|count| count > 1) {
        return Err(TranslationError::unsupported(
            "generationConfig.candidateCount",
            "only one answer can be requested",
            "Leave `candidateCount` out.",
        ));
    }
    if config.texts("responseModalities")?.iter().any(|kind| kind != "TEXT") {
        return Err(TranslationError::unsupported(
            "generationConfig.responseModalities",
            "this model server answers with text only",
            "Ask for text.",
        ));
    }
    conversation.sampling = Sampling {
        temperature: config.number("temperature")?,
        top_p: config.number("topP")?,
        top_k: config.count("topK")?,
        presence_penalty: config.number("presencePenalty")?,
        frequency_penalty: config.number("frequencyPenalty")?,
        seed: config.take("seed").and_then(|seed| seed.as_i64()),
    };
    conversation.max_tokens = config.count("maxOutputTokens")?;
    conversation.stop = config.texts("stopSequences")?;
    let is_json = config.text("responseMimeType")?.is_some_and(|kind| kind == "application/json");
    let schema = config.take("responseJsonSchema");
    let schema = schema.or_else(|| config.take("responseSchema").map(to_json_schema));
    conversation.format = match schema {
        Some(schema) => Some(Format::Schema { name: None, description: None, schema, strict: None }),
        None => is_json.then_some(Format::Json),
    };
    if let Some(thinking) = config.object("thinkingConfig")? {
        let mut thinking = thinking.into_camel_case();
        // -1 leaves it to the model.
        let budget = thinking.take("thinkingBudget").and_then(|budget| budget.as_i64());
        conversation.reasoning = Some(Reasoning {
            effort: thinking.text("thinkingLevel")?.map(|level| level.to_lowercase()),
            budget: budget.and_then(|budget| u64::try_from(budget).ok()),
            is_shown: thinking.flag("includeThoughts")?.unwrap_or_default(),
        });
        thinking.finish(notes);
    }
    config.finish(notes);
    Ok(())
}
