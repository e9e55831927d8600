//! The two traits between the server and its tools.

mod failure;

use std::time::Duration;

use async_trait::async_trait;
use rollout_settings::diagnostic::nearest;
use serde_json::{Map, Value};

pub use failure::{ErrorCode, ToolError};

/// Parameters by name.
pub type Params = Map<String, Value>;

/// The description of a tool for clients and models.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name without the prefix: `search`.
    pub name: String,
    /// Aliases without the prefix: `visit` for `browse`.
    pub aliases: Vec<String>,
    /// Its description, for the model.
    pub description: String,
    /// The JSON Schema of its parameters: an object.
    pub parameters: Value,
}

/// The context of a call.
#[derive(Debug, Clone)]
pub struct Call {
    /// The caller.
    pub worker_id: String,
    /// The session of the call.
    pub session_id: String,
    /// The time limit. After it the call is dropped, and nothing of it may continue.
    pub timeout: Duration,
}

/// A client's planned use of a resource.
#[derive(Debug, Clone, Default)]
pub struct PlannedUse {
    /// The tools that it plans to call, by their names without the prefix.
    pub tools: Vec<String>,
    /// The configuration of its sessions.
    pub config: Params,
    /// The files and folders that its calls will name.
    pub paths: Vec<String>,
}

impl PlannedUse {
    /// Warnings about unknown settings of sessions.
    pub(crate) fn warnings(&self, known: &[&str]) -> Vec<String> {
        let unknown = self.config.keys().filter(|key| !known.contains(&key.as_str()));
        let warning = |key: &String| match nearest(key, known) {
            Some(near) => format!("sessions have no setting `{key}`; did you mean `{near}`?"),
            None => format!("sessions have no setting `{key}`, so it has no effect"),
        };
        unknown.map(warning).collect()
    }
}

/// A group of related tools.
#[async_trait]
pub trait Resource: Send + Sync {
    /// The prefix of its tools, and the resource type of its sessions: `doc`.
    fn name(&self) -> &str;

    /// Its tools.
    fn tools(&self) -> Vec<ToolSpec>;

    /// Whether a tool may exist that [`tools`](Self::tools) does not list, because its server has not been
    /// reached yet.
    fn may_have(&self, _tool: &str) -> bool {
        false
    }

    /// Does work in advance that would delay the first session: looks for programs, builds an index.
    async fn warm_up(&self) -> Result<(), ToolError> {
        Ok(())
    }

    /// Checks whether a client's planned use can work. An error explains why every call would fail. Returns
    /// warnings. Nothing is opened or started.
    async fn check(&self, _planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        Ok(Vec::new())
    }

    /// Opens a session with the client's configuration.
    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError>;

    /// Ends everything that is kept between sessions, when the server stops.
    async fn close(&self) {}
}

/// The state between the calls of one client.
#[async_trait]
pub trait Session: Send + Sync {
    /// Calls a tool by its name without the prefix. Calls of one session may run concurrently.
    async fn call(&self, tool: &str, params: Params, call: &Call) -> Result<Value, ToolError>;

    /// Ends the session and all its processes.
    async fn close(self: Box<Self>) {}
}
