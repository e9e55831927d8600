//! Declarations of tools.

use serde_json::{Value, json};

use super::super::{
    TranslationError,
    fields::{Notes, Object, shown},
    names,
    neutral::{ChoiceMode, ToolChoice, ToolKind, ToolOrigin, ToolSpec},
    tools::custom_tool,
};

/// The functions that stand for the tools with forms of their own.
pub(super) const TOOL_SEARCH: &str = "tool_search";
pub(super) const LOCAL_SHELL: &str = "local_shell";

/// Reads a declaration, and adds its tools. A namespace has several.
pub(super) fn read_tool(
    mut tool: Object,
    tools: &mut Vec<ToolSpec>,
    notes: &mut Notes,
) -> Result<(), TranslationError> {
    match tool.peek("type") {
        "namespace" => {
            let namespace = tool.required("name")?;
            let description = tool.text("description")?;
            for inner in tool.objects("tools")? {
                tools.push(read_function(inner, Some(&namespace), description.as_deref(), notes)?);
            }
        }
        "tool_search" => match tool.peek("execution") {
            "client" => tools.push(ToolSpec {
                name: TOOL_SEARCH.to_owned(),
                description: tool.text("description")?,
                schema: tool.take("parameters").unwrap_or_else(
                    || json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}),
                ),
                strict: None,
                origin: ToolOrigin {
                    namespace: None,
                    name: TOOL_SEARCH.to_owned(),
                    kind: ToolKind::ToolSearch,
                },
            }),
            _ => notes.add("tools", "the provider's `tool_search` was left out: all tools are declared at once"),
        },
        "local_shell" => tools.push(ToolSpec {
            name: LOCAL_SHELL.to_owned(),
            description: Some("Runs a command and returns its output.".to_owned()),
            schema: json!({
                "type": "object",
                "properties": {
                    "command": {"type": "array", "items": {"type": "string"}, "description": "The command and its arguments."},
                    "working_directory": {"type": "string"},
                    "timeout_ms": {"type": "integer"},
                },
                "required": ["command"],
            }),
            strict: None,
            origin: ToolOrigin { namespace: None, name: LOCAL_SHELL.to_owned(), kind: ToolKind::LocalShell },
        }),
        "function" | "custom" => tools.push(read_function(tool, None, None, notes)?),
        kind if is_hosted(kind) => {
            notes.add("tools", &format!("a tool of type `{}` was left out", shown(kind)));
        }
        kind => {
            return Err(TranslationError::unsupported(
                &tool.path("type"),
                &format!("tools of type `{}` are not supported", shown(kind)),
                "Declare the tool as a function.",
            ));
        }
    }
    Ok(())
}

/// Whether the provider itself runs tools of a type.
fn is_hosted(kind: &str) -> bool {
    let starts = ["web_search", "file_search", "code_interpreter", "image_generation", "mcp"];
    starts.iter().any(|start| kind.starts_with(start))
}

fn read_function(
    mut tool: Object,
    namespace: Option<&str>,
    about: Option<&str>,
    notes: &mut Notes,
) -> Result<ToolSpec, TranslationError> {
    let kind = tool.text("type")?;
    let own = tool.required("name")?;
    let name = names::flat(namespace, &own);
    let description = tool.text("description")?;
    let description = match (about.filter(|about| !about.is_empty()), description) {
        (Some(about), Some(own)) => Some(format!("{own}\n\nPart of: {about}")),
        (_, own) => own,
    };
    tool.ignore(&["defer_loading"]);
    let mut origin =
        ToolOrigin { namespace: namespace.map(str::to_owned), name: own, kind: ToolKind::Function };
    let spec = match kind.as_deref() {
        Some("custom") => {
            origin.kind = ToolKind::Custom;
            custom_tool(name, description, tool.take("format"), origin)
        }
        _ => ToolSpec {
            name,
            description,
            schema: tool.take("parameters").unwrap_or_default(),
            strict: tool.flag("strict")?.filter(|strict| *strict),
            origin,
        },
    };
    tool.finish(notes);
    Ok(spec)
}

/// Reads which tools the model may call.
pub(super) fn read_choice(body: &mut Object) -> Result<Option<ToolChoice>, TranslationError> {
    let mode = |word: &str| match word {
        "auto" => Some(ChoiceMode::Auto),
        "none" => Some(ChoiceMode::Never),
        "required" => Some(ChoiceMode::Required),
        _ => None,
    };
    let named = |value: &Value| {
        let name = value.get("name").and_then(Value::as_str)?;
        Some(names::flat(value.get("namespace").and_then(Value::as_str), name))
    };
    let Some(choice) = body.take("tool_choice") else { return Ok(None) };
    let invalid = || body.invalid("tool_choice", "is unknown");
    match &choice {
        Value::String(word) => {
            Ok(Some(ToolChoice { mode: mode(word).ok_or_else(invalid)?, only: Vec::new() }))
        }
        choice if choice["type"] == "allowed_tools" => {
            let tools = choice["tools"].as_array().into_iter().flatten();
            let mode = mode(choice["mode"].as_str().unwrap_or("auto")).ok_or_else(invalid)?;
            Ok(Some(ToolChoice { mode, only: tools.filter_map(named).collect() }))
        }
        choice => {
            let name = named(choice).ok_or_else(|| {
                TranslationError::unsupported(
                    "tool_choice",
                    "it names a tool of the provider",
                    "Name a function, or use `auto`.",
                )
            })?;
            Ok(Some(ToolChoice { mode: ChoiceMode::Required, only: vec![name] }))
        }
    }
}
