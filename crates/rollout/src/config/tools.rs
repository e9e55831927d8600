//! The `tools` of an interaction.

use super::rubric::{function, function_name};
use rollout_model::{PythonFunction, tool::container::ContainerTool};
use std::{collections::HashMap, time::Duration};

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use rollout_settings::{
    Code, Env, EnvValue, Form, Node, Section, Settings as _, Span, Written,
    declare::{entry, one_of},
    diagnostic::quoted,
    forms::{command, env, filled, headers, mapping, path, seconds, some_section},
    record, tree,
};

/// A tool of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolConfig {
    /// A command on this machine.
    Command(CommandToolConfig),
    /// The tools of an MCP server.
    Mcp(McpConfig),
    /// A Python function.
    Python(PythonToolConfig),
    /// Tools inside a container; never empty, without duplicates.
    Container(Vec<ContainerTool>),
}

/// A Python function that gets the arguments of a call by name.
#[derive(Debug, Clone, PartialEq)]
pub struct PythonToolConfig {
    /// The function, in a file below the directory of the interaction.
    pub function: PythonFunction,
    /// Its name for the model; that of the function when absent.
    pub name: Option<String>,
    /// Its description for the model; the documentation of the function when absent.
    pub description: Option<String>,
    /// The timeout of a call.
    pub timeout: Duration,
    /// Arguments that are hidden from the model, each with its path in the rollout.
    pub hidden: IndexMap<String, String>,
}

/// A command that gets the arguments of a call as JSON, and whose output is the result.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandToolConfig {
    /// Its name for the model.
    pub name: String,
    /// Its description for the model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Map<String, Value>,
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// The timeout of a call.
    pub timeout: Duration,
    /// Arguments that are hidden from the model, each with its path in the rollout.
    pub hidden: IndexMap<String, String>,
}

/// How to reach an MCP server.
#[derive(Debug, Clone, PartialEq)]
pub enum McpConfig {
    /// A process that is started.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// Variables of the process.
        env: Env,
    },
    /// A running server.
    Url {
        /// Its `http` or `https` URL.
        url: EnvValue,
        /// Headers of each request.
        headers: IndexMap<String, EnvValue>,
    },
}

rollout_settings::settings! {
    /// A command on this machine, the tools of an MCP server, or tools inside a container.
    pub(super) struct ToolKeys {
        /// A program and its arguments. It gets the arguments of a call as JSON on its standard input. Its output is
        /// the result.
        ///
        /// It is started without a shell.
        command: Option<Vec<String>> = command().optional(),
        /// Its name for the model.
        name: Option<String> = filled()
            .refine(|schema| schema["pattern"] = json!("^[A-Za-z0-9_-]{1,64}$"))
            .kind("name")
            .optional(),
        /// Its description for the model.
        description: Option<String> = filled().optional(),
        /// The JSON Schema of its arguments.
        parameters: Map<String, Value> = mapping()
            .check(|_, section, key| check_parameters(section, key))
            .or_with(|| Map::from_iter([("type".to_owned(), json!("object")), ("properties".to_owned(), json!({}))])),
        /// The timeout of a call, in seconds.
        timeout as "timeout_sec": Duration = seconds().default(Duration::from_secs(60)),
        /// A Python function, as `file.py:function`.
        ///
        /// The model gets its signature and its docstring; `name` and `description` replace them. It is called in the
        /// process of all Python functions of the job.
        python: Option<String> = function_name().optional(),
        /// Arguments that are hidden from the model, each with its path in the rollout.
        ///
        /// For example `hidden: {database: info.database, session: trajectory_id}`. A path is `info`, `answer`,
        /// `example_id`, a column of the dataset or a field of the state, optionally followed by keys.
        hidden: IndexMap<String, String> = hidden(),
        /// An MCP server, with all its tools.
        ///
        /// A server of the Model Context Protocol: `command` (a list) and optionally `env`, or `url` and optionally
        /// `headers`. It is started once for the whole job.
        mcp: Option<McpKeys> = some_section::<McpKeys>()
            .refine(|schema| one_of(&["command", "url"], schema))
            .optional(),
        /// Tools inside the container of the rollout.
        container: Vec<(ContainerTool, Span)> = container_tools(),
    }
}

rollout_settings::settings! {
    /// An MCP server.
    pub(super) struct McpKeys {
        /// The program of the server, and its arguments.
        command: Option<Vec<String>> = command().optional(),
        /// Variables of that program. `${VAR}` is expanded.
        env: Env = env(),
        /// The URL of the server. `${VAR}` is expanded.
        url: Option<String> = path()
            .kind("URL")
            .read_by(|section, key| section.url(key, section.node(key)?, "such as `http://127.0.0.1:8000/v1`"))
            .optional(),
        /// Headers of each request to it. `${VAR}` is expanded.
        headers: IndexMap<String, EnvValue> = headers(),
    }
}

const CONTAINER_TOOLS: [(&str, ContainerTool); 4] = [
    ("bash", ContainerTool::Bash),
    ("read_file", ContainerTool::ReadFile),
    ("write_file", ContainerTool::WriteFile),
    ("apply_patch", ContainerTool::ApplyPatch),
];

/// The longest tool name that model servers accept.
const MAX_NAME: usize = 64;

pub(super) fn schema() -> Value {
    let mut schema = entry::<ToolKeys>();
    one_of(&["command", "python", "mcp", "container"], &mut schema);
    schema["dependentRequired"] = json!({ "command": ["name", "description"] });
    schema
}

pub(super) fn read(section: &Section<'_>, key: &str) -> Vec<ToolConfig> {
    let mut names = HashMap::new();
    let entries = section.sections::<ToolKeys>(key);
    entries.iter().filter_map(|entry| tool(entry, ToolKeys::read(entry)?, &mut names)).collect()
}

fn tool(entry: &Section<'_>, keys: ToolKeys, names: &mut HashMap<String, Span>) -> Option<ToolConfig> {
    let hint = "a tool needs a `command:`, a `python:` function, an `mcp:` server, or a `container:`";
    let kind = entry.one_of(&["command", "python", "mcp", "container"], hint)?;
    let foreign: &[&str] = match kind {
        "command" => &[],
        "python" => &["parameters"],
        _ => &["name", "description", "parameters", "timeout_sec", "hidden"],
    };
    entry.refuse(foreign, kind, |_| "these tools describe themselves".to_owned());
    match kind {
        "python" => python_tool(entry, keys, names).map(ToolConfig::Python),
        "command" => command_tool(entry, keys, names).map(ToolConfig::Command),
        "mcp" => mcp(&entry.inside("mcp"), keys.mcp?).map(ToolConfig::Mcp),
        _ => {
            for (tool, span) in &keys.container {
                let name =
                    CONTAINER_TOOLS.iter().find(|(_, known)| known == tool).map_or("", |(name, _)| name);
                once(entry, name, *span, names);
            }
            Some(ToolConfig::Container(keys.container.into_iter().map(|(tool, _)| tool).collect()))
        }
    }
}

fn command_tool(
    entry: &Section<'_>,
    keys: ToolKeys,
    names: &mut HashMap<String, Span>,
) -> Option<CommandToolConfig> {
    for (key, hint) in [
        ("name", "write its name for the model, such as `name: add`"),
        ("description", "write what it does, so that the model can decide when to call it"),
    ] {
        if entry.entry(key).is_none() {
            entry.missing(key, hint);
        }
    }
    check_name(entry, keys.name.as_deref(), names);
    Some(CommandToolConfig {
        command: keys.command?,
        name: keys.name?,
        description: keys.description?,
        parameters: keys.parameters,
        timeout: keys.timeout,
        hidden: keys.hidden,
    })
}

fn python_tool(
    entry: &Section<'_>,
    keys: ToolKeys,
    names: &mut HashMap<String, Span>,
) -> Option<PythonToolConfig> {
    check_name(entry, keys.name.as_deref(), names);
    Some(PythonToolConfig {
        function: function(entry, keys.python.as_deref()?)?,
        name: keys.name,
        description: keys.description,
        timeout: keys.timeout,
        hidden: keys.hidden,
    })
}

fn check_name(entry: &Section<'_>, name: Option<&str>, names: &mut HashMap<String, Span>) {
    let Some(name) = name else { return };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.len() > MAX_NAME || !name.bytes().all(fits) {
        let message = format!("invalid name of a tool: {}", quoted(name));
        let hint = format!("write at most {MAX_NAME} letters, digits, `_` and `-`");
        entry.reader.error_with_hint(entry.value_span("name"), Code::InvalidName, message, hint);
    }
    once(entry, name, entry.value_span("name"), names);
}

/// Arguments that are hidden from the model, with their paths in the rollout.
fn hidden() -> Form<IndexMap<String, String>> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "string", "minLength": 1 } });
    Form::written("mapping of arguments to paths in the rollout", schema, |section, key| {
        let tree::Value::Map(entries) = &section.node(key)?.value else {
            section.reader.wrong_type(section.node(key)?, key, "a mapping");
            return None;
        };
        let hint = "write its path in the rollout, such as `info.database` or `trajectory_id`";
        let read = entries.iter().filter_map(|entry| match &entry.node.value {
            tree::Value::String(place) if !place.is_empty() => Some((entry.key.clone(), place.clone())),
            _ => {
                let message = format!("`{}` must have a path for {}", section.at(key), quoted(&entry.key));
                section.reader.error_with_hint(entry.node.span, Code::WrongType, message, hint);
                None
            }
        });
        Some(read.collect())
    })
    .or_empty()
}

fn check_parameters(section: &Section<'_>, key: &str) {
    let kind = section.node(key).and_then(|node| node.get("type")).map(|node| &node.value);
    if !matches!(kind, Some(tree::Value::String(kind)) if kind == "object") {
        let message = format!("`{}` must be the JSON Schema of an object", section.at(key));
        let hint = "write `type: object` and the arguments under `properties:`";
        section.invalid_with_hint(key, message, hint);
    }
}

fn mcp(section: &Section<'_>, keys: McpKeys) -> Option<McpConfig> {
    let hint = "an MCP server needs a `command:` that starts it, or a `url:`";
    let kind = section.one_of(&["command", "url"], hint)?;
    section.exclude(kind, if kind == "command" { "headers" } else { "env" });
    if kind == "command" {
        return Some(McpConfig::Command { command: keys.command?, env: keys.env });
    }
    let url = keys.url?;
    // A query may contain a key.
    let secret = section.reader.hides(&url);
    Some(McpConfig::Url { url: EnvValue { value: url, secret }, headers: keys.headers })
}

fn container_tools() -> Form<Vec<(ContainerTool, Span)>> {
    let schema = || {
        let names: Vec<&str> = CONTAINER_TOOLS.iter().map(|(name, _)| *name).collect();
        json!({ "type": "array", "minItems": 1, "items": { "enum": names } })
    };
    Form::written("list of `bash`, `read_file`, `write_file`, `apply_patch`", schema, |section, key| {
        let all: Vec<String> = CONTAINER_TOOLS.iter().map(|(name, _)| format!("`{name}`")).collect();
        let hint = format!("known tools: {}", all.join(", "));
        let mut tools = Vec::new();
        for Node { value, span } in section.filled_list(key, &hint)? {
            let tree::Value::String(name) = value else {
                let message = format!("`{}` must be a list of names", section.at(key));
                section.reader.error_with_hint(*span, Code::WrongType, message, &hint);
                continue;
            };
            match CONTAINER_TOOLS.iter().find(|(known, _)| known == name) {
                Some((_, tool)) => tools.push((*tool, *span)),
                None => {
                    let message = format!("unknown tool {} for containers", quoted(name));
                    section.reader.error_with_hint(*span, Code::InvalidValue, message, &hint);
                }
            }
        }
        Some(tools)
    })
    .or_empty()
}

/// The names of tools, as far as they are known before a server or interpreter runs.
pub(super) fn names(tools: &[ToolConfig]) -> Vec<&str> {
    let of_container =
        |tool: &ContainerTool| CONTAINER_TOOLS.iter().find(|(_, known)| known == tool).map(|(name, _)| *name);
    let mut names = Vec::new();
    for tool in tools {
        match tool {
            ToolConfig::Command(tool) => names.push(tool.name.as_str()),
            ToolConfig::Python(tool) => {
                let function = tool.function.function.rsplit('.').next().unwrap_or_default();
                names.push(tool.name.as_deref().unwrap_or(function));
            }
            ToolConfig::Container(kinds) => names.extend(kinds.iter().filter_map(of_container)),
            ToolConfig::Mcp(_) => {}
        }
    }
    names
}

/// Reports a second tool with the same name.
fn once(section: &Section<'_>, name: &str, span: Span, names: &mut HashMap<String, Span>) {
    if let Some(first) = names.insert(name.to_owned(), span) {
        section.same_name(
            "tools",
            name,
            span,
            first,
            "a model calls tools by name, so each tool needs its own name",
        );
    }
}

/// A tool in the form of config.json.
pub(super) fn record(written: Written<'_>) -> Value {
    let mut tool = written.plain();
    let mcp = written.key("mcp");
    for (key, record) in [("env", record::env as fn(Written<'_>) -> Value), ("headers", record::headers)] {
        if tool["mcp"].get(key).is_some() {
            tool["mcp"][key] = record(mcp.key(key));
        }
    }
    tool
}
