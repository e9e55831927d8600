//! The settings of `mcp`.

use indexmap::IndexMap;
use rollout::model::tool::mcp::McpTransport;
use serde::Deserialize;

/// How one MCP server is reached. The names are those of the configuration file.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct McpServerConfig {
    /// The program that is started, with its arguments.
    command: Vec<String>,
    /// Its variables, beside those of the tool server.
    env: IndexMap<String, String>,
    /// The address of a server that is there.
    url: Option<String>,
    /// Headers of each request to it.
    headers: IndexMap<String, String>,
}

impl McpServerConfig {
    /// How the server is reached; an error is a sentence on what is wrong.
    pub(crate) fn transport(&self) -> Result<McpTransport, &'static str> {
        let (env, headers) = (self.env.clone().into_iter(), self.headers.clone().into_iter());
        match (&self.command[..], &self.url) {
            ([], None) => Err("an MCP server has a `command:` that starts it, or a `url:`"),
            ([_, ..], Some(_)) => Err("an MCP server has a `command:` or a `url:`, not both"),
            (command, None) => {
                Ok(McpTransport::Command { argv: command.to_vec(), env: env.collect(), directory: None })
            }
            ([], Some(url)) => Ok(McpTransport::Http { url: url.clone(), headers: headers.collect() }),
        }
    }
}

/// Whether a text can stand before the dot in `mcp:<server>.<tool>`.
pub(crate) fn is_server_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}
