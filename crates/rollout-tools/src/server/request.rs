//! Reads the requests of clients, with limits.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{FromRequest, Request},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use rollout_http::{BodyError, read_json_body};
use serde::{Deserialize, Deserializer, de, de::DeserializeOwned};
use serde_json::Value;

use super::{Action, Envelope, Service, config::duration};
use crate::resource::{ErrorCode, Params, ToolError};

/// The longest name of a worker.
const MAX_WORKER_BYTES: usize = 256;

/// The most calls of one request.
const MAX_ACTIONS: usize = 256;

/// The most paths of one check.
const MAX_PATHS: usize = 1000;

/// A request body that follows the protocol.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Service>> for JsonBody<T> {
    type Rejection = InvalidBody;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self, InvalidBody> {
        let body = read_json_body(request, service.config.max_body_bytes).await?;
        let body = if body.trim_ascii().is_empty() { b"{}" } else { &body[..] };
        // serde would read a list as the fields in their order.
        if !body.trim_ascii_start().starts_with(b"{") {
            let text = "invalid request: the body is not a JSON object";
            return Err(InvalidBody::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidRequest, text));
        }
        serde_json::from_slice(body).map(Self).map_err(|error| {
            let text = format!("invalid request: {error}");
            InvalidBody::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidRequest, text)
        })
    }
}

/// The error for a request that cannot be read.
#[derive(Debug)]
pub(super) struct InvalidBody {
    status: StatusCode,
    error: ToolError,
}

impl InvalidBody {
    fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { status, error: ToolError::new(code, message) }
    }
}

impl From<BodyError> for InvalidBody {
    fn from(error: BodyError) -> Self {
        let (code, next) = match error {
            BodyError::NotJson => (ErrorCode::InvalidRequest, "; send `Content-Type: application/json`"),
            BodyError::TooLarge(_) => (ErrorCode::InvalidInput, ""),
            BodyError::Late | BodyError::Broken(_) => (ErrorCode::InvalidRequest, ""),
        };
        Self::new(error.status(), code, format!("{error}{next}"))
    }
}

impl IntoResponse for InvalidBody {
    fn into_response(self) -> Response {
        Envelope::from(self.error).with_status(self.status).into_response()
    }
}

/// The worker that sends the request.
#[derive(Debug, Deserialize)]
pub(super) struct Worker {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: String,
}

/// One call.
#[derive(Debug, Deserialize)]
pub(super) struct Execute {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: String,
    action: String,
    #[serde(default, deserialize_with = "or_null")]
    params: Params,
    #[serde(default, deserialize_with = "timeout")]
    timeout: Option<Duration>,
    #[serde(default)]
    trace_id: Option<String>,
}

impl Execute {
    pub(super) fn into_parts(self) -> (String, Action) {
        let Self { worker_id, action, params, timeout, trace_id } = self;
        (worker_id, Action { action, params, timeout, trace_id })
    }
}

/// Several calls.
#[derive(Debug, Deserialize)]
pub(super) struct Batch {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: String,
    #[serde(deserialize_with = "few")]
    pub(super) actions: Vec<BatchAction>,
    #[serde(default)]
    pub(super) parallel: bool,
    #[serde(default = "yes")]
    pub(super) stop_on_error: bool,
    #[serde(default)]
    pub(super) trace_id: Option<String>,
}

/// One of several calls.
#[derive(Debug, Deserialize)]
pub(super) struct BatchAction {
    action: String,
    #[serde(default, deserialize_with = "or_null")]
    params: Params,
    #[serde(default, deserialize_with = "timeout")]
    timeout: Option<Duration>,
}

impl BatchAction {
    pub(super) fn into_action(self, trace_id: Option<String>) -> Action {
        Action { action: self.action, params: self.params, timeout: self.timeout, trace_id }
    }
}

/// A session to open.
#[derive(Debug, Deserialize)]
pub(super) struct Create {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: String,
    pub(super) resource_type: String,
    #[serde(default, alias = "init_config", deserialize_with = "or_null")]
    pub(super) session_config: Params,
    #[serde(default)]
    pub(super) custom_name: Option<String>,
}

/// A client's planned use of a resource.
#[derive(Debug, Deserialize)]
pub(super) struct Check {
    pub(super) resource_type: String,
    #[serde(default, deserialize_with = "tools")]
    pub(super) tools: Vec<String>,
    #[serde(default, deserialize_with = "or_null")]
    pub(super) session_config: Params,
    #[serde(default, deserialize_with = "paths")]
    pub(super) paths: Vec<String>,
}

/// A session, or all sessions of a worker.
#[derive(Debug, Deserialize)]
pub(super) struct SessionOf {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: String,
    #[serde(default)]
    pub(super) resource_type: Option<String>,
}

/// Sessions to open, by type.
#[derive(Debug, Deserialize)]
pub(super) struct InitBatch {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: String,
    pub(super) resource_configs: Params,
}

/// Sessions to open as described in a file of the server.
#[derive(Debug, Deserialize)]
pub(super) struct InitFromConfig {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: String,
    pub(super) config_path: String,
    #[serde(default, deserialize_with = "or_null")]
    pub(super) override_params: Params,
}

/// The resources to warm up; all when absent.
#[derive(Debug, Deserialize)]
pub(super) struct Warm {
    #[serde(default)]
    pub(super) backends: Option<Vec<String>>,
}

/// How to stop.
#[derive(Debug, Deserialize)]
pub(super) struct Shutdown {
    /// Whether to stop without waiting for running calls.
    #[serde(default)]
    pub(super) force: bool,
    /// Whether sessions are closed before the answer; they are closed in any case.
    #[serde(default = "yes")]
    pub(super) cleanup_sessions: bool,
}

fn yes() -> bool {
    true
}

fn worker<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let worker = String::deserialize(from)?;
    match worker.len() {
        1..=MAX_WORKER_BYTES => Ok(worker),
        _ => Err(de::Error::custom(format!("a worker_id must have 1 to {MAX_WORKER_BYTES} bytes"))),
    }
}

fn few<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<BatchAction>, D::Error> {
    let actions = Vec::deserialize(from)?;
    match actions.len() {
        0..=MAX_ACTIONS => Ok(actions),
        many => {
            Err(de::Error::custom(format!("{many} actions exceed the limit of {MAX_ACTIONS} per request")))
        }
    }
}

fn tools<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    at_most(from, MAX_ACTIONS, "tools")
}

fn paths<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    at_most(from, MAX_PATHS, "paths")
}

fn at_most<'de, D: Deserializer<'de>>(from: D, most: usize, what: &str) -> Result<Vec<String>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    match texts.len() > most {
        true => {
            Err(de::Error::custom(format!("{} {what} exceed the limit of {most} per request", texts.len())))
        }
        false => Ok(texts),
    }
}

fn timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let Some(seconds) = Option::<f64>::deserialize(from)? else { return Ok(None) };
    // A value above the server's limit is reduced later.
    let time = duration(seconds.min(86_400.0));
    time.map(Some).ok_or_else(|| de::Error::custom(format!("{seconds} is not a number of seconds above 0")))
}

fn or_null<'de, D: Deserializer<'de>>(from: D) -> Result<Params, D::Error> {
    match Value::deserialize(from)? {
        Value::Object(params) => Ok(params),
        Value::Null => Ok(Params::new()),
        _ => Err(de::Error::custom("parameters are an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_with_its_defaults() {
        let read = |text: &str| serde_json::from_str::<Execute>(text).map_err(|error| error.to_string());
        let call = read(r#"{"worker_id": "w", "action": "doc:read", "params": null, "extra": 1}"#).unwrap();
        assert_eq!((call.params.len(), call.timeout, call.trace_id), (0, None, None));
        let call = read(r#"{"worker_id": "w", "action": "a", "timeout": 0.5}"#).unwrap();
        assert_eq!(call.timeout, Some(Duration::from_millis(500)));
        for (text, problem) in [
            (r#"{"action": "a"}"#, "missing field `worker_id`"),
            (r#"{"worker_id": "w"}"#, "missing field `action`"),
            (r#"{"worker_id": "", "action": "a"}"#, "a worker_id must have 1 to 256 bytes"),
            (r#"{"worker_id": "w", "action": "a", "timeout": 0}"#, "0 is not a number of seconds above 0"),
            (r#"{"worker_id": "w", "action": "a", "timeout": -1}"#, "-1 is not a number of seconds above 0"),
            (r#"{"worker_id": "w", "action": "a", "params": [1]}"#, "parameters are an object"),
        ] {
            assert!(read(text).unwrap_err().starts_with(problem), "{text}: {}", read(text).unwrap_err());
        }
    }
}
