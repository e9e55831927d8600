//! The tools that the model of a benchmark has: those of a tool server.

mod client;
mod names;
mod schema;
mod session;

use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Map, Value};

pub use client::ToolServerError;
pub(crate) use client::{Answer, ToolServer};
pub(crate) use names::is_same;
pub(crate) use session::Session;

use crate::model::ToolDef;

/// A tool as its server describes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerTool {
    /// The server's name for it: `web:search`.
    pub(crate) name: String,
    pub(crate) description: String,
    /// The JSON Schema of its parameters.
    pub(crate) parameters: Value,
}

/// What the questions of a run use of the tool server.
#[derive(Debug)]
pub(crate) struct Toolbox {
    pub(crate) server: ToolServer,
    /// The kinds of tools for which each question gets a session, with what it is opened with.
    sessions: Vec<(String, Map<String, Value>)>,
    /// The server's names of tools, by those that the model is shown.
    names: IndexMap<String, String>,
    defs: Vec<ToolDef>,
}

/// How often a session is told to be in use, well below the 300 seconds after which servers close it.
const HEARTBEAT: Duration = Duration::from_secs(30);

impl Toolbox {
    /// These tools, and sessions that are opened with what `init` says of their kind: its `content`, or all of it.
    pub(crate) fn new(
        server: ToolServer,
        tools: Vec<ServerTool>,
        resource_types: &[String],
        init: &IndexMap<String, Map<String, Value>>,
    ) -> Self {
        let shown = names::shown(tools.iter().map(|tool| tool.name.as_str()));
        let defs = tools.iter().zip(&shown).map(|(tool, shown)| ToolDef {
            name: shown.clone(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
            strict: None,
        });
        let defs = defs.collect();
        let session = |kind: &String| {
            let config = init.get(kind).map(|config| match config.get("content") {
                Some(Value::Object(content)) => content.clone(),
                _ => config.clone(),
            });
            (kind.clone(), config.unwrap_or_default())
        };
        Self {
            server,
            sessions: resource_types.iter().map(session).collect(),
            names: shown.into_iter().zip(tools.into_iter().map(|tool| tool.name)).collect(),
            defs,
        }
    }

    /// The server's name of the tool that a model calls so. Models write the separator as they like.
    pub(crate) fn find(&self, called: &str) -> Option<&str> {
        let exact = self.names.get(called).map(String::as_str);
        exact.or_else(|| self.names.values().map(String::as_str).find(|name| is_same(name, called)))
    }

    /// What the model is told of the tools.
    pub(crate) fn defs(&self) -> Vec<ToolDef> {
        self.defs.clone()
    }

    /// The names that the model is shown, for a sentence.
    pub(crate) fn names(&self) -> String {
        self.names.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}
