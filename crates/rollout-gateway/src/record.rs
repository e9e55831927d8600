//! The record of model calls: one JSON line per call, written as soon as the call ends.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use indexmap::IndexMap;
use jiff::Timestamp;
use rollout_core::response::{ResponseTokens, TokenUsage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::dialect::Dialect;

/// One call of an agent to a model: a line of `calls.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallRecord {
    /// The number of the call in its session, from 1.
    pub id: u64,
    /// When the request arrived.
    #[serde(with = "rollout_core::moment")]
    pub started: Timestamp,
    /// The seconds until the end of the response.
    pub latency: f64,
    /// The seconds until the first bytes of the response were sent.
    pub first_token: Option<f64>,
    /// The dialect of the agent, and of `request` and `response`.
    pub dialect: Dialect,
    /// The dialect of the upstream.
    pub upstream_dialect: Dialect,
    /// The model that the agent asked for.
    pub model_asked: String,
    /// The model that the upstream was asked for; empty if there is no route for the call.
    pub model: String,
    /// Whether the agent asked for a stream.
    pub streamed: bool,
    /// Whether the agent asked for a shorter form of its conversation, by `/v1/responses/compact`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compacts: bool,
    /// The body of the agent's request. Secrets are masked.
    pub request: Value,
    /// The body of the response; a stream is put together. Secrets are masked.
    pub response: Option<Value>,
    /// The status that the agent received; 0 if it received none.
    pub status: u16,
    /// Why the call failed, if it did.
    pub error: Option<CallError>,
    /// The tokens that the call used, if the upstream reported them.
    pub usage: Option<TokenUsage>,
    /// The same as the upstream wrote it.
    pub raw_usage: Option<Value>,
    /// The cost in US dollars; null if there is no price for the model.
    pub cost: Option<f64>,
    /// The token ids and log-probabilities, as far as the upstream returned them.
    pub tokens: Option<ResponseTokens>,
    /// What was removed from the request because it would run at the provider.
    pub removed: Vec<String>,
    /// What the translation to the upstream's dialect left out or changed.
    pub notes: Vec<String>,
    /// The headers in which the agent names its session, thread or turn.
    pub session_ids: IndexMap<String, String>,
    /// How many times the agent's client says that it tried this call before.
    pub retry: Option<u32>,
    /// How many requests were sent to the upstream.
    pub tries: u32,
    /// Whether the response came from the cache.
    pub cached: bool,
    /// Whether the response was larger than the record may be, so that its end is missing here.
    pub truncated: bool,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// The kind.
    pub kind: CallErrorKind,
    /// The details. Secrets are masked.
    pub message: String,
}

impl CallError {
    pub(crate) fn new(kind: CallErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// The kinds of failed calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallErrorKind {
    /// The request of the agent cannot be understood.
    InvalidRequest,
    /// The agent asked for a model that it may not use.
    ModelNotAllowed,
    /// A budget is used up.
    BudgetExhausted,
    /// The request or the response cannot be translated between dialects.
    NotTranslatable,
    /// The upstream refused the key.
    Unauthorized,
    /// The upstream has a rate limit, or its quota or credit is used up.
    RateLimited,
    /// The conversation is longer than the context of the model.
    ContextLength,
    /// The upstream refused the request for another reason.
    Refused,
    /// The upstream failed.
    UpstreamFailed,
    /// The upstream could not be reached, or said nothing for too long.
    Unreachable,
    /// The response ended before it was complete.
    Cut,
    /// The agent closed its connection before the response was complete.
    ClientGone,
    /// The session was closed.
    Closed,
}

/// The file of a session's calls.
#[derive(Debug, Clone)]
pub(crate) struct RecordFile(Arc<Mutex<File>>);

impl RecordFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    /// Appends a line. A record that cannot be written is logged: the agent's work goes on.
    pub(crate) async fn write(&self, record: CallRecord) {
        let file = Arc::clone(&self.0);
        let written = tokio::task::spawn_blocking(move || {
            let mut line = serde_json::to_vec(&record)?;
            line.push(b'\n');
            file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "cannot write the record of a model call"),
            Err(error) => tracing::error!(%error, "the record of a model call was not written"),
        }
    }
}
