//! The configuration of a tool server: which tools there are, and what they may use.

use std::{fmt, path::Path, sync::Arc};

use rollout::{
    config::{Code, Diagnostic, Document, Problems},
    environment::HostPaths,
    model::tool::mcp::McpTransport,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

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

const KEYS: [&str; 3] = ["server", "resources", "mcp"];
const RESOURCES: [&str; 6] = ["code", "doc", "rag", "sql", "vm", "web"];

/// Everything that can be said of a tool server.
#[derive(Clone)]
pub struct ToolsConfig {
    /// The server itself.
    pub server: ServerConfig,
    /// `code`, unless it is switched off.
    pub code: Option<CodeConfig>,
    /// `doc`, unless it is switched off.
    pub doc: Option<DocConfig>,
    /// `rag`, unless it is switched off.
    pub rag: Option<RagConfig>,
    /// `sql`, unless it is switched off.
    pub sql: Option<SqlConfig>,
    /// `vm`, unless it is switched off.
    pub vm: Option<VmConfig>,
    /// `web`, unless it is switched off.
    pub web: Option<WebConfig>,
    /// How MCP servers are reached, by name.
    pub mcp: Vec<(String, McpTransport)>,
    /// Values that must not appear in any output.
    pub secrets: Vec<String>,
}

impl fmt::Debug for ToolsConfig {
    /// Tells nothing of the values: any of them may be a secret.
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
    /// Reads a file, YAML or JSON, with `${VAR}` from `vars`; tells all of its problems at once.
    pub fn load(path: &Path, vars: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problems> {
        Self::read(&Document::load(path, vars)?)
    }

    fn read(document: &Document) -> Result<Self, Problems> {
        let reader = Reader { document, found: Vec::new() };
        reader.read()
    }

    /// The tools that it describes. Nothing is started yet. The helper reads files that nobody vouches for, and the
    /// place is where environments are made.
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

/// Reads a document and notes what is wrong with it.
struct Reader<'d> {
    document: &'d Document,
    found: Vec<Diagnostic>,
}

impl Reader<'_> {
    fn read(mut self) -> Result<ToolsConfig, Problems> {
        self.keys(&[], &KEYS);
        self.keys(&["resources"], &RESOURCES);
        self.keys(&["mcp"], &["servers"]);
        let config = ToolsConfig {
            server: self.section(&["server"]),
            code: self.resource("code"),
            doc: self.resource("doc"),
            rag: self.resource("rag"),
            sql: self.resource("sql"),
            vm: self.resource("vm"),
            web: self.resource("web"),
            mcp: self.mcp(),
            secrets: self.document.secrets().to_vec(),
        };
        match Problems::of(self.found) {
            Some(problems) => Err(problems),
            None => Ok(config),
        }
    }

    fn value(&self, at: &[&str]) -> &Value {
        at.iter().fold(self.document.value(), |value, key| &value[*key])
    }

    fn problem(&mut self, at: &[&str], code: Code, message: String) {
        self.found.push(self.document.problem(at, code, message, None));
    }

    /// Notes keys that are not known.
    fn keys(&mut self, at: &[&str], known: &[&str]) {
        match self.value(at).clone() {
            Value::Object(map) => {
                for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
                    self.found.push(self.document.unknown_key(&[at, &[key]].concat(), known));
                }
            }
            Value::Null => {}
            _ => {
                let subject =
                    if at.is_empty() { "the file".to_owned() } else { format!("`{}`", at.join(".")) };
                self.problem(at, Code::WrongType, format!("{subject} must be a mapping of keys to values"));
            }
        }
    }

    /// The settings of a resource; none if it is switched off.
    fn resource<T: DeserializeOwned + Default>(&mut self, name: &str) -> Option<T> {
        let at = ["resources", name];
        match self.value(&at) {
            Value::Bool(false) => None,
            Value::Bool(true) => Some(T::default()),
            _ => Some(self.section(&at)),
        }
    }

    fn mcp(&mut self) -> Vec<(String, McpTransport)> {
        let servers = match self.value(&["mcp", "servers"]) {
            Value::Object(servers) => servers.clone(),
            Value::Null => return Vec::new(),
            _ => {
                let message = "`mcp.servers` must be a mapping of names to servers".to_owned();
                self.problem(&["mcp", "servers"], Code::WrongType, message);
                return Vec::new();
            }
        };
        let mut transports = Vec::new();
        for name in servers.keys() {
            let at = ["mcp", "servers", name.as_str()];
            if !is_server_name(name) {
                let message =
                    format!("{name:?} cannot be the name of a server: write letters, digits, `_` and `-`");
                self.problem(&at, Code::InvalidName, message);
            }
            let before = self.found.len();
            let server: McpServerConfig = self.section(&at);
            match server.transport() {
                Ok(transport) => transports.push((name.clone(), transport)),
                Err(message) if self.found.len() == before => {
                    self.problem(&at, Code::InvalidValue, message.to_owned());
                }
                Err(_) => {}
            }
        }
        transports
    }

    /// The settings at a path. Each is read by itself first, so that every wrong one is told with its place.
    fn section<T: DeserializeOwned + Default>(&mut self, at: &[&str]) -> T {
        let map = match self.value(at) {
            Value::Object(map) => map.clone(),
            Value::Null => return T::default(),
            _ => {
                let message = format!("`{}` must be a mapping of keys to values", at.join("."));
                self.problem(at, Code::WrongType, message);
                return T::default();
            }
        };
        let before = self.found.len();
        for (key, value) in &map {
            let alone = Map::from_iter([(key.clone(), value.clone())]);
            if let Err(error) = serde_json::from_value::<T>(alone.into()) {
                self.wrong(&[at, &[key]].concat(), &error.to_string());
            }
        }
        if self.found.len() > before {
            return T::default();
        }
        serde_json::from_value(map.into()).unwrap_or_else(|error| {
            self.wrong(at, &error.to_string());
            T::default()
        })
    }

    fn wrong(&mut self, at: &[&str], message: &str) {
        match message.strip_prefix("unknown field ") {
            Some(rest) if at.last().is_some_and(|key| rest.starts_with(&format!("`{key}`"))) => {
                let known: Vec<&str> = rest.split('`').skip(3).step_by(2).collect();
                self.found.push(self.document.unknown_key(at, &known));
            }
            _ => {
                let message = format!("`{}` cannot be used: {message}", at.join("."));
                self.problem(at, Code::InvalidValue, message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(text: &str) -> Result<ToolsConfig, String> {
        let document = Document::parse("tools.yaml".as_ref(), text, Some(&|_| None));
        document.and_then(|document| ToolsConfig::read(&document)).map_err(|problems| problems.to_string())
    }

    #[test]
    fn what_is_not_said_has_its_default() {
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
    fn every_problem_is_told_with_its_place() {
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
        let told: Vec<String> = problems
            .diagnostics()
            .iter()
            .map(|one| {
                let hint =
                    one.hint.as_deref().and_then(|hint| hint.split_once('?')).map_or("", |(hint, _)| hint);
                format!("{}: {} {hint}", one.line.unwrap(), one.message).trim_end().to_owned()
            })
            .collect();
        insta::assert_snapshot!(told.join("\n"), @r#"
        1: unknown key `sever` did you mean `server`
        3: unknown key `max_sesions` in `server` did you mean `max_sessions`
        4: `server.session_ttl_sec` cannot be used: -1 is not a number of seconds above 0 and up to 86400
        6: unknown key `cod` in `resources` did you mean `code`
        8: `resources.code.memory` cannot be used: "lots": this is not a quantity
        9: `resources.code.environment` cannot be used: unknown variant `cloud`, expected `native` or `docker`
        12: "a.b" cannot be the name of a server: write letters, digits, `_` and `-`
        13: an MCP server has a `command:` or a `url:`, not both
        14: an MCP server has a `command:` that starts it, or a `url:`
        15: unknown key `comand` in `mcp.servers.odd` did you mean `command`
        "#);
    }
}
