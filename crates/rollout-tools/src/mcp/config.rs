//! The settings of `mcp`.

use indexmap::IndexMap;
use rollout_model::tool::mcp::McpTransport;
use rollout_settings::{
    Entry, Form,
    forms::{text, texts},
};
use serde_json::json;

rollout_settings::settings! {
    /// How to reach one MCP server. The names are those of the configuration file.
    #[derive(Clone)]
    pub struct McpServerConfig {
        /// The program to start, with its arguments.
        pub command: Vec<String> = texts(),
        /// Its environment variables, in addition to those of the tool server.
        pub env: IndexMap<String, String> = texts_by_name(),
        /// The URL of a running server.
        pub url: Option<String> = text().kind("URL").optional(),
        /// The headers of each request to it.
        pub headers: IndexMap<String, String> = texts_by_name(),
    }
}

fn texts_by_name() -> Form<IndexMap<String, String>> {
    let schema = || json!({ "type": "object", "additionalProperties": { "type": "string" } });
    Form::written("mapping", schema, |section, key| {
        let texts = section.mapping(key)?;
        let text = |entry: &Entry| Some((entry.key.clone(), texts.string(&entry.key)?.to_owned()));
        Some(texts.entries.iter().filter_map(text).collect())
    })
    .or_empty()
}

impl McpServerConfig {
    /// How to reach the server, or an error message.
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

/// Whether a text can be the server name in `mcp:<server>.<tool>`.
pub(crate) fn is_server_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}
