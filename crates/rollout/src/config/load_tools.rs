//! Reads the `tools` of an interaction.

use std::{collections::HashMap, time::Duration};

use serde_json::json;

use super::{
    CommandToolConfig, EnvValue, McpConfig, ToolConfig,
    diagnostic::{Code, Diagnostic, quoted},
    load_job::Loader,
    reader::{MAX_TIMEOUT_SEC, Section, above_zero},
    tree::{Node, Span, Value},
};
use rollout_model::tool::container::ContainerTool;

pub(super) const KEYS: [&str; 7] =
    ["command", "name", "description", "parameters", "timeout_sec", "mcp", "container"];
pub(super) const MCP_KEYS: [&str; 4] = ["command", "env", "url", "headers"];
pub(super) const CONTAINER_TOOLS: [(&str, ContainerTool); 4] = [
    ("bash", ContainerTool::Bash),
    ("read_file", ContainerTool::ReadFile),
    ("write_file", ContainerTool::WriteFile),
    ("apply_patch", ContainerTool::ApplyPatch),
];

/// How long a command may take unless the file says otherwise.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// What servers take as the name of a tool.
const MAX_NAME: usize = 64;

impl Loader<'_> {
    pub(super) fn tools(&self, section: &Section<'_>) -> Vec<ToolConfig> {
        let mut tools = Vec::new();
        let mut names = HashMap::new();
        for (index, node) in section.list("tools").unwrap_or_default().iter().enumerate() {
            let path = format!("{}.{index}", section.at("tools"));
            let Some(entry) = self.reader.section(node, &path, &KEYS) else { continue };
            tools.extend(self.tool(&entry, &mut names));
        }
        tools
    }

    fn tool(&self, entry: &Section<'_>, names: &mut HashMap<String, Span>) -> Option<ToolConfig> {
        let kinds = ["command", "mcp", "container"];
        let given: Vec<&str> = kinds.into_iter().filter(|key| entry.entry(key).is_some()).collect();
        for pair in given.windows(2) {
            self.exclude(entry, pair[0], pair[1]);
        }
        let [kind] = given[..] else {
            if given.is_empty() {
                entry
                    .missing("command", "a tool has a `command:`, an `mcp:` server, or is of a `container:`");
            }
            return None;
        };
        if kind != "command" {
            for key in ["name", "description", "parameters", "timeout_sec"] {
                if let Some(found) = entry.entry(key) {
                    let message = format!("`{key}` has no meaning beside `{kind}`");
                    let hint = "these tools describe themselves";
                    self.reader.error_with_hint(found.key_span, Code::Conflict, message, hint);
                }
            }
        }
        match kind {
            "command" => self.command_tool(entry, names).map(ToolConfig::Command),
            "mcp" => self.mcp(&entry.section("mcp", &MCP_KEYS)?).map(ToolConfig::Mcp),
            _ => self.container_tools(entry, names).map(ToolConfig::Container),
        }
    }

    fn command_tool(
        &self,
        entry: &Section<'_>,
        names: &mut HashMap<String, Span>,
    ) -> Option<CommandToolConfig> {
        for (key, hint) in [
            ("name", "write what the model calls it by, such as `name: add`"),
            ("description", "write what it does, so that the model knows when to call it"),
        ] {
            if entry.entry(key).is_none() {
                entry.missing(key, hint);
            }
        }
        let name = entry.filled_string("name");
        if let Some(name) = name {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            if name.len() > MAX_NAME || !name.bytes().all(fits) {
                let message = format!("{} cannot be the name of a tool", quoted(name));
                let hint = format!("write at most {MAX_NAME} letters, digits, `_` and `-`");
                self.reader.error_with_hint(entry.value_span("name"), Code::InvalidName, message, hint);
            }
            self.once(name, entry.value_span("name"), names);
        }
        let description = entry.filled_string("description");
        let parameters = match entry.mapping("parameters") {
            Some(parameters) => {
                if !matches!(parameters.string("type"), Some("object")) {
                    let message = format!("`{}` must be the JSON Schema of an object", parameters.path);
                    let hint = "write `type: object` and the arguments under `properties:`";
                    entry.invalid_with_hint("parameters", message, hint);
                }
                self.json_map(&parameters)
            }
            None => match json!({ "type": "object", "properties": {} }) {
                serde_json::Value::Object(none) => none,
                _ => unreachable!("an object was written"),
            },
        };
        let seconds = entry.number("timeout_sec", above_zero(MAX_TIMEOUT_SEC));
        Some(CommandToolConfig {
            command: self.command(entry)?,
            name: name?.to_owned(),
            description: description?.to_owned(),
            parameters,
            timeout: seconds.map_or(COMMAND_TIMEOUT, Duration::from_secs_f64),
        })
    }

    fn mcp(&self, mcp: &Section<'_>) -> Option<McpConfig> {
        self.exclude(mcp, "command", "url");
        if mcp.entry("command").is_some() {
            self.exclude(mcp, "command", "headers");
            return Some(McpConfig::Command { command: self.command(mcp)?, env: self.env(mcp) });
        }
        let Some(node) = mcp.node("url") else {
            mcp.missing("command", "an MCP server has a `command:` that starts it, or a `url:`");
            return None;
        };
        self.exclude(mcp, "url", "env");
        let headers = self.headers(mcp);
        let url = self.url(mcp, "url", node)?;
        // A query may hold a key.
        let secret = self.secrets.borrow().contains(&url);
        Some(McpConfig::Url { url: EnvValue { value: url, secret }, headers })
    }

    fn container_tools(
        &self,
        entry: &Section<'_>,
        names: &mut HashMap<String, Span>,
    ) -> Option<Vec<ContainerTool>> {
        let nodes = entry.list("container")?;
        let all: Vec<String> = CONTAINER_TOOLS.iter().map(|(name, _)| format!("`{name}`")).collect();
        let hint = format!("it can be any of {}", all.join(", "));
        if nodes.is_empty() {
            entry.invalid_with_hint("container", format!("`{}` is empty", entry.at("container")), &hint);
        }
        let mut tools = Vec::new();
        for Node { value, span } in nodes {
            let Value::String(name) = value else {
                let message = format!("`{}` must be a list of names", entry.at("container"));
                self.reader.error_with_hint(*span, Code::WrongType, message, &hint);
                continue;
            };
            match CONTAINER_TOOLS.iter().find(|(known, _)| known == name) {
                Some((_, tool)) => {
                    self.once(name, *span, names);
                    tools.push(*tool);
                }
                None => {
                    let message = format!("there is no tool {} for containers", quoted(name));
                    self.reader.error_with_hint(*span, Code::InvalidValue, message, &hint);
                }
            }
        }
        Some(tools)
    }

    /// Notes a second tool of one name.
    fn once(&self, name: &str, span: Span, names: &mut HashMap<String, Span>) {
        if let Some(first) = names.insert(name.to_owned(), span) {
            let sources = self.reader.sources;
            let message = format!("two tools are named {}", quoted(name));
            self.reader.report(
                Diagnostic::error(sources, span, Code::InvalidName, message)
                    .related(sources, first, "the first one")
                    .hint("a model calls tools by their names, so each has its own"),
            );
        }
    }
}
