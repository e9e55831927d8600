//! The protocols that agents and model servers speak.

use serde::{Deserialize, Serialize};

/// A protocol between a client and a model server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI's Chat Completions: `POST /v1/chat/completions`.
    Chat,
    /// OpenAI's Responses: `POST /v1/responses`.
    Responses,
    /// Anthropic's Messages: `POST /v1/messages`.
    Messages,
    /// Google's generateContent: `POST /v1beta/models/<model>:generateContent`.
    Gemini,
}
