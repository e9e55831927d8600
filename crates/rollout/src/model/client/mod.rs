//! The client of a model's server.

use std::sync::Arc;

use super::{Error, Message, Model, Response, ToolDef};

/// Asks models. Cheap to clone; all clones share connections and rate limits.
#[derive(Debug, Clone)]
pub struct Client {}

impl Client {
    /// Asks a model for the next message of a conversation. `session` names the conversation for servers that keep
    /// one on the same replica.
    pub async fn respond(
        &self,
        _model: &Model,
        _messages: &[Arc<Message>],
        _tools: &[ToolDef],
        _session: &str,
    ) -> Result<Response, Error> {
        unreachable!("written next")
    }
}
