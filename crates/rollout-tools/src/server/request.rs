//! What clients send, read with bounds.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
};
use futures_util::StreamExt as _;
use serde::{Deserialize, Deserializer, de, de::DeserializeOwned};
use serde_json::Value;

use super::{Action, Envelope, Service, config::duration};
use crate::{Code, Params, ToolError};

/// How long a client may take to send a body.
const BODY_TIME: Duration = Duration::from_secs(60);

/// The longest name of a worker.
const MAX_WORKER_BYTES: usize = 256;

/// The most calls that one request makes.
const MAX_ACTIONS: usize = 256;

/// A body in the form of the protocol.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Service>> for Asked<T> {
    type Rejection = Envelope;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self, Envelope> {
        let limit = service.config.max_body_bytes;
        let (parts, body) = request.into_parts();
        check_headers(&parts.headers, limit)?;
        let body = tokio::time::timeout(BODY_TIME, collect(body, limit)).await.unwrap_or_else(|_| {
            let error = ToolError::new(Code::InvalidRequest, "the body of the request did not come in time");
            Err(Envelope::from(error).with_status(StatusCode::REQUEST_TIMEOUT))
        })?;
        let body = if body.trim_ascii().is_empty() { b"{}" } else { &body[..] };
        serde_json::from_slice(body).map(Self).map_err(|error| {
            let text = format!("the request is not in the form of the protocol: {error}");
            ToolError::new(Code::InvalidRequest, text).into()
        })
    }
}

/// Refuses what is not JSON by its own word, which no web page of another origin can send unasked.
fn check_headers(headers: &HeaderMap, limit: usize) -> Result<(), Envelope> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let text = "the body is not said to be JSON; send `Content-Type: application/json`";
        let error = ToolError::new(Code::InvalidRequest, text);
        return Err(Envelope::from(error).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > limit as u64) { Err(too_large(limit)) } else { Ok(()) }
}

/// Reads a body up to a limit.
async fn collect(body: Body, limit: usize) -> Result<Vec<u8>, Envelope> {
    let mut pieces = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            let text = format!("the body of the request broke off: {error}");
            Envelope::from(ToolError::new(Code::InvalidRequest, text))
        })?;
        if piece.len() > limit - whole.len() {
            return Err(too_large(limit));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

fn too_large(limit: usize) -> Envelope {
    let text = format!("the body of the request has more than {limit} bytes");
    Envelope::from(ToolError::new(Code::InvalidInput, text)).with_status(StatusCode::PAYLOAD_TOO_LARGE)
}

/// Who asks.
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

/// A session, or all of a worker's.
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

/// Sessions to open as a file of the server's describes them.
#[derive(Debug, Deserialize)]
pub(super) struct InitFromConfig {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: String,
    pub(super) config_path: String,
    #[serde(default, deserialize_with = "or_null")]
    pub(super) override_params: Params,
}

/// What to warm up; everything, when absent.
#[derive(Debug, Deserialize)]
pub(super) struct Warm {
    #[serde(default)]
    pub(super) backends: Option<Vec<String>>,
}

/// How to stop.
#[derive(Debug, Deserialize)]
pub(super) struct Shutdown {
    /// Whether calls that run are not waited for.
    #[serde(default)]
    pub(super) force: bool,
    /// Sessions are closed in any case; whether that is done before the answer.
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
        _ => Err(de::Error::custom(format!("a worker_id has 1 to {MAX_WORKER_BYTES} bytes"))),
    }
}

fn few<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<BatchAction>, D::Error> {
    let actions = Vec::deserialize(from)?;
    match actions.len() {
        0..=MAX_ACTIONS => Ok(actions),
        many => {
            Err(de::Error::custom(format!("{many} actions are more than the {MAX_ACTIONS} of one request")))
        }
    }
}

fn timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let Some(seconds) = Option::<f64>::deserialize(from)? else { return Ok(None) };
    // More than a server ever allows is cut down later.
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
    use futures_util::stream;

    use super::*;

    fn pieces(sizes: &[usize]) -> Body {
        let pieces: Vec<_> = sizes.iter().map(|size| Ok::<_, std::io::Error>(vec![b' '; *size])).collect();
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn a_body_without_a_length_is_read_up_to_the_limit() {
        assert_eq!(collect(pieces(&[4, 6]), 10).await.unwrap().len(), 10);
        assert_eq!(collect(pieces(&[4, 7]), 10).await.unwrap_err().code, 4000);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_a_bad_request() {
        let pieces = [Ok(vec![b' ']), Err(std::io::Error::other("gone"))];
        assert_eq!(collect(Body::from_stream(stream::iter(pieces)), 10).await.unwrap_err().code, 4002);
    }

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
            (r#"{"worker_id": "", "action": "a"}"#, "a worker_id has 1 to 256 bytes"),
            (r#"{"worker_id": "w", "action": "a", "timeout": 0}"#, "0 is not a number of seconds above 0"),
            (r#"{"worker_id": "w", "action": "a", "timeout": -1}"#, "-1 is not a number of seconds above 0"),
            (r#"{"worker_id": "w", "action": "a", "params": [1]}"#, "parameters are an object"),
        ] {
            assert!(read(text).unwrap_err().starts_with(problem), "{text}: {}", read(text).unwrap_err());
        }
    }
}
