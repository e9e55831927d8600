//! What a kind of tools has to offer: the two traits between the server and its tools.

mod failure;

use std::time::Duration;

use async_trait::async_trait;
use rollout_settings::diagnostic::nearest;
use serde_json::{Map, Value};

pub use failure::{ErrorCode, ToolError};

/// Parameters by name.
pub type Params = Map<String, Value>;

/// What clients and models are told of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name without the prefix: `search`.
    pub name: String,
    /// Other names without the prefix under which it is found: `visit` for `browse`.
    pub aliases: Vec<String>,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its parameters: an object.
    pub parameters: Value,
}

/// What a call comes with, beside its parameters.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who asks.
    pub worker_id: String,
    /// The session that it is made in.
    pub session_id: String,
    /// When the server gives up on it. A call that is given up on is dropped: nothing of it may go on.
    pub timeout: Duration,
}

/// What a client is going to do with a resource.
#[derive(Debug, Clone, Default)]
pub struct PlannedUse {
    /// The tools that it is going to call, by their names without the prefix.
    pub tools: Vec<String>,
    /// What it is going to open sessions with.
    pub config: Params,
    /// Files and folders that its calls are going to name.
    pub paths: Vec<String>,
}

impl PlannedUse {
    /// Warns of settings that sessions do not have.
    pub(crate) fn warnings(&self, known: &[&str]) -> Vec<String> {
        let unknown = self.config.keys().filter(|key| !known.contains(&key.as_str()));
        let warning = |key: &String| match nearest(key, known) {
            Some(near) => format!("sessions have no setting `{key}`; did you mean `{near}`?"),
            None => format!("sessions have no setting `{key}`, so it has no effect"),
        };
        unknown.map(warning).collect()
    }
}

/// A kind of tools that belong together.
#[async_trait]
pub trait Resource: Send + Sync {
    /// The prefix of its tools, and the type that sessions are opened for: `doc`.
    fn name(&self) -> &str;

    /// Its tools.
    fn tools(&self) -> Vec<ToolSpec>;

    /// Whether there may be a tool that [`tools`](Self::tools) does not name: what knows it was not reached so far.
    fn may_have(&self, _tool: &str) -> bool {
        false
    }

    /// Does once what would hold up the first session: looks for programs, builds an index.
    async fn warm_up(&self) -> Result<(), ToolError> {
        Ok(())
    }

    /// Whether a client can do what it is going to do; an error says why every call would fail. Returns warnings. Nothing
    /// is opened or started.
    async fn check(&self, _planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        Ok(Vec::new())
    }

    /// Opens a session with what the client wants it to have.
    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError>;

    /// Ends what is kept between sessions. The server is at its end.
    async fn close(&self) {}
}

/// What stays between the calls of one client.
#[async_trait]
pub trait Session: Send + Sync {
    /// Calls a tool by its name without the prefix. Calls of one session may run at the same time.
    async fn call(&self, tool: &str, params: Params, call: &Call) -> Result<Value, ToolError>;

    /// Ends the session and all that runs in it.
    async fn close(self: Box<Self>) {}
}
