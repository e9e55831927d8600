//! The configuration of a tool server: which tools it has, and their limits.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rollout_env::HostPaths;
use rollout_model::tool::mcp::McpTransport;
use rollout_settings::{Code, Document, Entry, Form, Problems, Settings, forms::section, tree};
use serde_json::json;

use crate::{
    code::{self, CodeConfig},
    doc::{DocConfig, Docs},
    helper::Helper,
    mcp::{Mcp, McpServerConfig, is_server_name},
    rag::{Rag, RagConfig},
    resource::Resource,
    server::{Registry, ServerConfig},
    sql::{Sql, SqlConfig},
    vm::{Desktops, VmConfig},
    web::{Web, WebConfig, WebConfigError},
};

/// The whole configuration of a tool server.
#[derive(Clone)]
pub struct ToolsConfig {
    /// The server itself.
    pub server: ServerConfig,
    /// `code`, unless it is disabled.
    pub code: Option<CodeConfig>,
    /// `doc`, unless it is disabled.
    pub doc: Option<DocConfig>,
    /// `rag`, unless it is disabled.
    pub rag: Option<RagConfig>,
    /// `sql`, unless it is disabled.
    pub sql: Option<SqlConfig>,
    /// `vm`, unless it is disabled.
    pub vm: Option<VmConfig>,
    /// `web`, unless it is disabled.
    pub web: Option<WebConfig>,
    /// How MCP servers are reached, by name.
    pub mcp: Vec<(String, McpTransport)>,
    /// Values that must not appear in any output.
    pub secrets: Vec<String>,
}

impl fmt::Debug for ToolsConfig {
    /// Shows none of the values: any of them may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolsConfig").finish_non_exhaustive()
    }
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            code: Some(CodeConfig::default()),
            doc: Some(DocConfig::default()),
            rag: Some(RagConfig::default()),
            sql: Some(SqlConfig::default()),
            vm: Some(VmConfig::default()),
            web: Some(WebConfig::default()),
            mcp: Vec::new(),
            secrets: Vec::new(),
        }
    }
}

impl ToolsConfig {
    /// Reads a YAML or JSON file, with `${VAR}` from `vars`; reports all problems at once.
    pub fn load(path: &Path, vars: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problems> {
        Self::read(&Document::load(path, vars)?)
    }

    fn read(document: &Document) -> Result<Self, Problems> {
        let ToolsKeys { server, resources, mcp } = document.read::<ToolsKeys>()?;
        let ResourceKeys { code, doc, rag, sql, vm, web } = resources;
        let secrets = document.secrets().to_vec();
        Ok(Self { server, code, doc, rag, sql, vm, web, mcp: mcp.servers, secrets })
    }

    /// Adds folders to those that the tools may read.
    pub fn add_roots(&mut self, paths: &[PathBuf]) {
        let Self { code, doc, rag, sql, .. } = self;
        let roots = [
            code.as_mut().map(|config| &mut config.roots),
            doc.as_mut().map(|config| &mut config.roots),
            rag.as_mut().map(|config| &mut config.roots),
            sql.as_mut().map(|config| &mut config.roots),
        ];
        roots.into_iter().flatten().for_each(|roots| roots.extend_from_slice(paths));
    }

    /// Creates the configured tools. Nothing is started yet. The helper reads untrusted files, and `place` has
    /// the paths for environments.
    pub fn registry(self, place: HostPaths, helper: &Helper) -> Result<Registry, WebConfigError> {
        let mut resources: Vec<Arc<dyn Resource>> = Vec::new();
        if let Some(config) = self.code {
            resources.push(Arc::new(code::Code::new(config, place.clone())));
        }
        if let Some(config) = self.doc {
            resources.push(Arc::new(Docs::new(config, helper.clone())));
        }
        if let Some(config) = self.rag {
            resources.push(Arc::new(Rag::new(config, helper.clone())));
        }
        if let Some(config) = self.sql {
            resources.push(Arc::new(Sql::new(config, helper.clone())));
        }
        if let Some(config) = self.vm {
            resources.push(Arc::new(Desktops::new(config, place)));
        }
        if let Some(config) = self.web {
            resources.push(Arc::new(Web::new(config)?));
        }
        if !self.mcp.is_empty() {
            resources.push(Arc::new(Mcp::new(self.mcp)));
        }
        Ok(Registry::new(resources))
    }
}

rollout_settings::settings! {
    /// The configuration of a tool server.
    struct ToolsKeys {
        /// The server itself.
        server: ServerConfig = section::<ServerConfig>(),
        /// The kinds of tools.
        resources: ResourceKeys = section::<ResourceKeys>(),
        /// Tools of MCP servers.
        mcp: McpKeys = section::<McpKeys>(),
    }
}

rollout_settings::settings! {
    /// The kinds of tools. Each has settings; `false` disables it.
    struct ResourceKeys {
        /// Programs.
        code: Option<CodeConfig> = resource::<CodeConfig>(),
        /// Documents.
        doc: Option<DocConfig> = resource::<DocConfig>(),
        /// A collection of documents.
        rag: Option<RagConfig> = resource::<RagConfig>(),
        /// Databases.
        sql: Option<SqlConfig> = resource::<SqlConfig>(),
        /// Desktops.
        vm: Option<VmConfig> = resource::<VmConfig>(),
        /// The web.
        web: Option<WebConfig> = resource::<WebConfig>(),
    }
}

rollout_settings::settings! {
    /// Tools of MCP servers.
    struct McpKeys {
        /// The servers, by name.
        servers: Vec<(String, McpTransport)> = servers(),
    }
}

/// The settings of a resource; `None` if it is disabled.
fn resource<S: Settings>() -> Form<Option<S::Value>> {
    section::<S>()
        .read_into(
            |section, key| match section.node(key)?.value {
                tree::Value::Bool(false) => Some(None),
                tree::Value::Bool(true) => Some(S::defaults()),
                _ => section.settings::<S>(key).map(Some),
            },
            |_, written| written.plain(),
        )
        .or_with(S::defaults)
}

fn servers() -> Form<Vec<(String, McpTransport)>> {
    Form::written(
        "mapping",
        || json!({ "type": "object" }),
        |section, key| {
            let servers = section.mapping(key)?;
            let server = |entry: &Entry| {
                let (name, span) = (&entry.key, entry.node.span);
                if !is_server_name(name) {
                    let message =
                        format!("{name:?} is not a valid server name: use letters, digits, `_` and `-`");
                    section.reader.error(span, Code::InvalidName, message);
                }
                let before = section.reader.count();
                let server = servers.section_or_empty::<McpServerConfig>(name);
                let transport = McpServerConfig::read(&server)?.transport();
                let note = |message: &str| {
                    if section.reader.count() == before {
                        section.reader.error(span, Code::InvalidValue, message);
                    }
                };
                Some((name.clone(), transport.map_err(note).ok()?))
            };
            Some(servers.entries.iter().filter_map(server).collect())
        },
    )
    .or_empty()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::web::config::SearchConfig;

    fn read(text: &str) -> Result<ToolsConfig, String> {
        let document = Document::parse("tools.yaml".as_ref(), text, Some(&|_| None));
        document.and_then(|document| ToolsConfig::read(&document)).map_err(|problems| problems.to_string())
    }

    #[test]
    fn missing_settings_have_defaults() {
        let config =
            read("server: {session_ttl_sec: 0.5}\nresources: {code: {memory: 2Gi, cpus: 2}}\n").unwrap();
        assert_eq!(config.server.session_ttl_sec, Duration::from_millis(500));
        assert_eq!(config.server.max_body_bytes, 8 << 20);
        let code = config.code.unwrap();
        assert_eq!((code.memory.0, code.cpus.millis, code.network.as_str()), (2 << 30, 2000, "none"));
        assert!(read("").unwrap().code.is_some());
        assert!(read("resources: {code: false}").unwrap().code.is_none());
    }

    #[test]
    fn tables_in_docs_match_the_schemas() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let tables = [
            ("server", ServerConfig::keys()),
            ("mcp server", McpServerConfig::keys()),
            ("code", CodeConfig::keys()),
            ("doc", DocConfig::keys()),
            ("rag", RagConfig::keys()),
            ("sql", SqlConfig::keys()),
            ("vm", VmConfig::keys()),
            ("web", WebConfig::keys()),
            ("search", SearchConfig::keys()),
        ];
        for page in ["tools.md", "tools-documents.md", "tools-desktop.md", "tools-web.md"] {
            rollout_settings::docs::check_page(&docs.join(page), &tables).unwrap();
        }
    }

    #[test]
    fn every_problem_is_reported_with_its_position() {
        let text = "sever: 1
server:
  max_sesions: 3
  session_ttl_sec: -1
resources:
  cod: {}
  code:
    memory: lots
    environment: cloud
mcp:
  servers:
    a.b: {url: 'http://x'}
    both: {url: u, command: [c]}
    none: {}
    odd: {comand: [x]}
";
        let document = Document::parse("tools.yaml".as_ref(), text, Some(&|_| None)).unwrap();
        let problems = ToolsConfig::read(&document).err().unwrap();
        let reported: Vec<String> = problems
            .diagnostics()
            .iter()
            .map(|one| {
                let hint =
                    one.hint.as_deref().and_then(|hint| hint.split_once('?')).map_or("", |(hint, _)| hint);
                format!("{}: {} {hint}", one.line.unwrap(), one.message).trim_end().to_owned()
            })
            .collect();
        insta::assert_snapshot!(reported.join("\n"), @r#"
        1: unknown key `sever` did you mean `server`
        3: unknown key `max_sesions` in `server` did you mean `max_sessions`
        4: `server.session_ttl_sec` must be more than 0, not -1
        6: unknown key `cod` in `resources` did you mean `code`
        8: `resources.code.memory` cannot be `lots`: this is not a quantity
        9: `resources.code.environment` cannot be `cloud`
        12: "a.b" is not a valid server name: use letters, digits, `_` and `-`
        13: an MCP server has a `command:` or a `url:`, not both
        14: an MCP server has a `command:` that starts it, or a `url:`
        15: unknown key `comand` in `mcp.servers.odd` did you mean `command`
        "#);
    }
}
