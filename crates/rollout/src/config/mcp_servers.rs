//! The MCP servers of a task, and the files in which agents read them.

use serde_json::{Map, Value as Json, json};

use rollout_settings::{
    Form, Section, Settings as _,
    declare::entry,
    diagnostic::{Code, quoted},
    forms::{filled, list, text, texts, word},
};

/// An MCP server that a task gives to its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskMcpServer {
    /// Its name.
    pub name: String,
    /// How the agent reaches it.
    pub endpoint: McpEndpoint,
}

/// How an agent reaches an MCP server of its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpEndpoint {
    /// The agent starts a program, and uses its standard input and output.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
    },
    /// A URL for server-sent events.
    Sse(String),
    /// A URL for streamable HTTP.
    Http(String),
}

impl McpEndpoint {
    /// Its word in task.toml.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Stdio { .. } => "stdio",
            Self::Sse(_) => "sse",
            Self::Http(_) => "streamable-http",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Stdio,
    Sse,
    Http,
}

const TRANSPORTS: [(&str, Transport); 4] = [
    ("sse", Transport::Sse),
    ("streamable-http", Transport::Http),
    ("http", Transport::Http),
    ("stdio", Transport::Stdio),
];

rollout_settings::settings! {
    /// An MCP server that the task gives to its agent.
    pub(super) struct TaskMcpKeys {
        /// The name of the server.
        name: String = filled().kind("name").required("write the name of the server").or_empty(),
        /// How the agent reaches the server.
        ///
        /// `http` is another word for `streamable-http`.
        transport: Transport = word(&TRANSPORTS).default(Transport::Sse),
        /// The URL, for `sse` and `streamable-http`.
        url: Option<String> = text().kind("URL").optional(),
        /// The program, for `stdio`. The agent starts it in the environment.
        command: Option<String> = text().optional(),
        /// The arguments of the program.
        args: Vec<String> = texts(),
    }
}

/// The `mcp_servers` of task.toml.
pub(super) fn mcp_servers() -> Form<Vec<TaskMcpServer>> {
    let schema = || {
        let mut schema = entry::<TaskMcpKeys>();
        schema["additionalProperties"] = json!(true);
        schema
    };
    list(schema, |section, key| {
        let mut servers: Vec<TaskMcpServer> = Vec::new();
        for (index, node) in section.list(key)?.iter().enumerate() {
            let place = format!("{}.{index}", section.at(key));
            let Some(inside) = section.reader.mapping(node, &place) else { continue };
            let Some(server) = TaskMcpKeys::read(&inside).and_then(|keys| server(&inside, keys)) else {
                continue;
            };
            if servers.iter().any(|other| other.name == server.name) {
                let message = format!("two MCP servers are named {}", quoted(&server.name));
                section.reader.error(node.span, Code::Conflict, message);
            }
            servers.push(server);
        }
        Some(servers)
    })
}

fn server(section: &Section<'_>, keys: TaskMcpKeys) -> Option<TaskMcpServer> {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_".contains(char);
    if keys.name.is_empty() || !keys.name.chars().all(plain) {
        let message = format!("{} cannot be the name of an MCP server", quoted(&keys.name));
        section.invalid_with_hint("name", message, "use letters, digits, `-` and `_`");
        return None;
    }
    let filled = |value: Option<String>| value.filter(|value| !value.is_empty());
    let (url, command) = (filled(keys.url), filled(keys.command));
    let (endpoint, missing) = match keys.transport {
        Transport::Stdio => {
            (command.map(|command| McpEndpoint::Stdio { command, args: keys.args }), "command")
        }
        Transport::Sse => (url.map(McpEndpoint::Sse), "url"),
        Transport::Http => (url.map(McpEndpoint::Http), "url"),
    };
    if endpoint.is_none() {
        let word = TRANSPORTS.iter().find(|(_, other)| *other == keys.transport).map_or("", |(word, _)| word);
        let message =
            format!("the MCP server {} has the transport `{word}`, but no `{missing}`", quoted(&keys.name));
        section.invalid("name", message);
    }
    Some(TaskMcpServer { name: keys.name, endpoint: endpoint? })
}

/// The form in which an agent reads its MCP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpFormat {
    /// The JSON of Claude Code's `--mcp-config`.
    Claude,
    /// Tables of Codex's `config.toml`.
    Codex,
    /// The JSON of `mcpServers` in Gemini CLI's `settings.json`.
    Gemini,
    /// The JSON of `mcp` in `opencode.json`.
    Opencode,
}

pub(super) const MCP_FORMATS: [(&str, McpFormat); 4] = [
    ("claude", McpFormat::Claude),
    ("codex", McpFormat::Codex),
    ("gemini", McpFormat::Gemini),
    ("opencode", McpFormat::Opencode),
];

impl McpFormat {
    /// Whether agents that read this form can use such a server.
    pub fn supports(self, endpoint: &McpEndpoint) -> bool {
        !matches!((self, endpoint), (Self::Codex, McpEndpoint::Sse(_)))
    }

    /// The file with these servers.
    pub fn file(self, servers: &[TaskMcpServer]) -> String {
        let entries = servers.iter().map(|server| (server.name.clone(), self.entry(&server.endpoint)));
        let entries: Map<String, Json> = entries.collect();
        match self {
            Self::Claude => json!({ "mcpServers": entries }).to_string(),
            Self::Codex => entries.iter().map(|(name, entry)| toml_table(name, entry)).collect(),
            Self::Gemini | Self::Opencode => Json::Object(entries).to_string(),
        }
    }

    fn entry(self, endpoint: &McpEndpoint) -> Json {
        match (self, endpoint) {
            (Self::Claude, McpEndpoint::Stdio { command, args }) => {
                json!({ "type": "stdio", "command": command, "args": args })
            }
            (Self::Claude, McpEndpoint::Sse(url)) => json!({ "type": "sse", "url": url }),
            (Self::Claude, McpEndpoint::Http(url)) => json!({ "type": "http", "url": url }),
            (Self::Codex | Self::Gemini, McpEndpoint::Stdio { command, args }) => {
                json!({ "command": command, "args": args })
            }
            (Self::Codex, McpEndpoint::Sse(url) | McpEndpoint::Http(url)) => json!({ "url": url }),
            (Self::Gemini, McpEndpoint::Sse(url)) => json!({ "url": url }),
            (Self::Gemini, McpEndpoint::Http(url)) => json!({ "httpUrl": url }),
            (Self::Opencode, McpEndpoint::Stdio { command, args }) => {
                let command: Vec<&String> = std::iter::once(command).chain(args).collect();
                json!({ "type": "local", "command": command, "enabled": true })
            }
            (Self::Opencode, McpEndpoint::Sse(url) | McpEndpoint::Http(url)) => {
                json!({ "type": "remote", "url": url, "enabled": true })
            }
        }
    }
}

/// A table of TOML. Texts and lists of texts are written as in JSON, which escapes all but one character that TOML
/// forbids.
fn toml_table(name: &str, entry: &Json) -> String {
    let fields = entry.as_object().into_iter().flatten();
    let lines =
        fields.map(|(key, value)| format!("{key} = {}\n", value.to_string().replace('\u{7f}', "\\u007f")));
    format!("[mcp_servers.{name}]\n{}\n", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_written_in_the_form_of_each_agent() {
        let stdio =
            McpEndpoint::Stdio { command: "python3".to_owned(), args: vec!["/srv/a \"b\".py".to_owned()] };
        let server = |name: &str, endpoint| TaskMcpServer { name: name.to_owned(), endpoint };
        let http = McpEndpoint::Http("http://127.0.0.1:8000/mcp".to_owned());
        let servers = [server("files", stdio), server("web", http)];
        insta::assert_snapshot!(McpFormat::Claude.file(&servers), @r#"{"mcpServers":{"files":{"type":"stdio","command":"python3","args":["/srv/a \"b\".py"]},"web":{"type":"http","url":"http://127.0.0.1:8000/mcp"}}}"#);
        insta::assert_snapshot!(McpFormat::Gemini.file(&servers), @r#"{"files":{"command":"python3","args":["/srv/a \"b\".py"]},"web":{"httpUrl":"http://127.0.0.1:8000/mcp"}}"#);
        insta::assert_snapshot!(McpFormat::Opencode.file(&servers), @r#"{"files":{"type":"local","command":["python3","/srv/a \"b\".py"],"enabled":true},"web":{"type":"remote","url":"http://127.0.0.1:8000/mcp","enabled":true}}"#);
        insta::assert_snapshot!(McpFormat::Codex.file(&servers), @r#"
        [mcp_servers.files]
        command = "python3"
        args = ["/srv/a \"b\".py"]

        [mcp_servers.web]
        url = "http://127.0.0.1:8000/mcp"
        "#);
        assert_eq!(McpFormat::Codex.file(&[]), "");
        assert_eq!(McpFormat::Gemini.file(&[]), "{}");
    }
}
