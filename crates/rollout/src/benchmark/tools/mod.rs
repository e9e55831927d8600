//! The tools of a benchmark: those of a tool server.

mod client;
mod names;
mod schema;
mod session;

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use indexmap::IndexMap;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

pub use client::ToolServerError;
pub(crate) use client::{Answer, ToolServer};
pub(crate) use names::is_same;
pub(crate) use session::Session;

use super::seeds;
use crate::config::{each_path, resolve};
use rollout_core::message::ToolDef;

/// A tool as its server describes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerTool {
    /// The name on the server: `web:search`.
    pub(crate) name: String,
    /// Its other names: `web:visit`.
    pub(crate) aliases: Vec<String>,
    /// The group that it belongs to: `web`.
    pub(crate) kind: String,
    pub(crate) description: String,
    /// The JSON Schema of its parameters.
    pub(crate) parameters: Value,
}

impl ServerTool {
    /// All its names.
    fn names(&self) -> Vec<&str> {
        std::iter::once(&self.name).chain(&self.aliases).map(String::as_str).collect()
    }

    /// Whether it has this name, with any separator between its kind and its own name.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.names().into_iter().any(|known| is_same(known, name))
    }

    /// Its name without its kind.
    pub(crate) fn own_name(&self) -> &str {
        self.name.split_once(':').map_or(self.name.as_str(), |(_, name)| name)
    }
}

/// The tools and sessions that the questions of a run use.
#[derive(Debug)]
pub(crate) struct Toolbox {
    pub(crate) server: ToolServer,
    /// The kinds of tools for which each question gets a session, with its settings.
    sessions: Vec<(String, Map<String, Value>)>,
    /// The names on the server, by the names for the model.
    names: IndexMap<String, String>,
    /// Other names that a model may use for a tool, with the name on the server.
    aliases: Vec<(String, String)>,
    defs: Vec<ToolDef>,
    /// The base of relative paths of questions, if the server can read the files of this machine.
    beside: Option<PathBuf>,
    /// Questions for which the server could not be reached since its last answer.
    missed: Mutex<HashSet<u64>>,
    /// Cancelled when the server is lost.
    lost: CancellationToken,
}

/// After this many questions in a row without an answer, the server is lost.
pub(crate) const MOST_MISSED: usize = 20;

/// The interval of heartbeats, well below the 300 seconds after which servers close an idle session.
const HEARTBEAT: Duration = Duration::from_secs(30);

impl Toolbox {
    /// These tools, and sessions with the settings that `init` has for their kind: its `content`, or all of it.
    pub(crate) fn new(
        server: ToolServer,
        tools: Vec<ServerTool>,
        resource_types: &[String],
        init: &IndexMap<String, Map<String, Value>>,
        beside: Option<PathBuf>,
    ) -> Self {
        let shown = names::shown(tools.iter().map(|tool| tool.name.as_str()));
        let defs = tools.iter().zip(&shown).map(|(tool, shown)| ToolDef {
            name: shown.clone(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
            strict: None,
        });
        let defs = defs.collect();
        let session = |kind: &String| (kind.clone(), seeds::session_config(kind, init));
        Self {
            server,
            sessions: resource_types.iter().map(session).collect(),
            aliases: tools
                .iter()
                .flat_map(|tool| tool.aliases.iter().map(|alias| (alias.clone(), tool.name.clone())))
                .collect(),
            names: shown.into_iter().zip(tools.into_iter().map(|tool| tool.name)).collect(),
            defs,
            beside,
            missed: Mutex::default(),
            lost: CancellationToken::new(),
        }
    }

    /// Records whether the server could be reached for a question.
    pub(crate) fn note<T>(&self, example: u64, answer: &Result<T, ToolServerError>) {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(_) => missed.clear(),
            Err(ToolServerError::Unreachable { .. }) => {
                missed.insert(example);
                if missed.len() >= MOST_MISSED {
                    self.lost.cancel();
                }
            }
            Err(_) => {}
        }
    }

    /// Waits until the server is lost.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// The arguments of a model that the tool declares. The tool may accept others, but only the question may set
    /// those.
    pub(crate) fn offered(&self, tool: &str, mut arguments: Map<String, Value>) -> Map<String, Value> {
        let place = self.names.values().position(|name| name == tool);
        let schema = place.and_then(|place| self.defs.get(place)).map_or(&Value::Null, |def| &def.parameters);
        if let Some(offered) = schema::properties(schema) {
            arguments.retain(|name, _| offered.contains_key(name));
        }
        arguments
    }

    /// The parameters of a question, with the paths of files resolved for the server.
    pub(crate) async fn resolved(&self, mut kwargs: Map<String, Value>) -> Map<String, Value> {
        let Some(beside) = self.beside.clone() else { return kwargs };
        let mut has_relative = false;
        each_path(&mut kwargs, &mut |path| has_relative |= Path::new(path).is_relative());
        if !has_relative {
            return kwargs;
        }
        let found = kwargs.clone();
        let look = move || {
            let mut found = found;
            resolve(&mut found, &beside);
            found
        };
        // A slow disk must not block other tasks.
        tokio::task::spawn_blocking(look).await.unwrap_or(kwargs)
    }

    /// The name on the server of a tool that a model calls. Models write the separator in various ways.
    pub(crate) fn find(&self, called: &str) -> Option<&str> {
        let exact = self.names.get(called).map(String::as_str);
        let alike = || self.names.values().map(String::as_str).find(|name| is_same(name, called));
        let alias =
            || self.aliases.iter().find(|(alias, _)| is_same(alias, called)).map(|(_, name)| name.as_str());
        exact.or_else(alike).or_else(alias)
    }

    /// The definitions of the tools for the model.
    pub(crate) fn defs(&self) -> Vec<ToolDef> {
        self.defs.clone()
    }

    /// The names for the model, joined for a sentence.
    pub(crate) fn names(&self) -> String {
        self.names.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolbox(schema: Value) -> Toolbox {
        let server = ToolServer::new("http://127.0.0.1:9", None, Duration::from_secs(1)).unwrap();
        let tool = ServerTool {
            name: "doc:read".to_owned(),
            aliases: Vec::new(),
            kind: "doc".to_owned(),
            description: String::new(),
            parameters: schema,
        };
        Toolbox::new(server, vec![tool], &[], &IndexMap::new(), None)
    }

    fn unreachable() -> Result<(), ToolServerError> {
        let source = reqwest::Client::new().get("no url").build().unwrap_err();
        Err(ToolServerError::Unreachable { url: "x".to_owned(), source })
    }

    #[test]
    fn a_server_that_does_not_answer_many_questions_in_a_row_is_lost() {
        let toolbox = toolbox(Value::Null);
        for question in 0..MOST_MISSED as u64 - 1 {
            // Each question is tried twice.
            toolbox.note(question, &unreachable());
            toolbox.note(question, &unreachable());
        }
        toolbox.note(99, &Ok(()));
        assert!(!toolbox.lost.is_cancelled());
        for question in 0..MOST_MISSED as u64 {
            assert!(!toolbox.lost.is_cancelled());
            toolbox.note(question, &unreachable());
        }
        assert!(toolbox.lost.is_cancelled());
    }

    #[test]
    fn a_tool_gets_only_the_arguments_of_its_schema() {
        let given = |schema: Value| {
            let arguments = serde_json::json!({"query": "x", "seed_path": "answers.jsonl"});
            let given = toolbox(schema).offered("doc:read", arguments.as_object().unwrap().clone());
            given.keys().cloned().collect::<Vec<_>>()
        };
        let query = serde_json::json!({"query": {"type": "string"}});
        assert_eq!(given(serde_json::json!({"type": "object", "properties": query})), ["query"]);
        for open in [
            serde_json::json!({"properties": query, "additionalProperties": true}),
            serde_json::json!({"properties": query, "additionalProperties": {"type": "string"}}),
            serde_json::json!({"properties": query, "patternProperties": {"^s": {}}}),
            serde_json::json!({"properties": query, "anyOf": [{"properties": {"seed_path": {}}}]}),
            serde_json::json!({"type": "object"}),
        ] {
            assert_eq!(given(open.clone()), ["query", "seed_path"], "{open}");
        }
    }
}
