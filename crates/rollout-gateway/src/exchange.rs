//! Sends a request to an upstream, and tries again after failures that may be temporary.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::{Bytes, BytesMut};
use reqwest::Url;
use rollout_model::client::{pause, rejects_key};
use serde_json::Value;

use crate::{
    cache::Saved,
    client::{Client, Gone},
    record::CallErrorKind,
    session::SessionState,
    shared::Shared,
    translate,
    upstream::{Verdict, judge},
};

/// The largest response that is not a stream.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// The largest error that is passed on.
pub(crate) const MAX_ERROR_BYTES: usize = 1 << 20;
/// How much of an error text is recorded.
const MAX_EXCERPT_CHARS: usize = 600;

/// A request that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) session: &'a SessionState,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) streams: bool,
    /// The tokens that the rate limit counts for a try.
    pub(crate) estimate: u64,
}

/// A response that succeeded, or begins well.
#[derive(Debug)]
pub(crate) enum Received {
    Whole { status: StatusCode, headers: HeaderMap, body: Bytes },
    Stream { status: StatusCode, headers: HeaderMap, first: Bytes, rest: Option<reqwest::Response> },
}

impl Received {
    /// A response of the cache.
    pub(crate) fn saved(saved: Saved, streams: bool) -> Self {
        let mut headers = HeaderMap::new();
        if let Ok(kind) = HeaderValue::try_from(saved.content_type) {
            headers.insert(header::CONTENT_TYPE, kind);
        }
        let (status, body) = (StatusCode::OK, Bytes::from(saved.body));
        if streams {
            return Self::Stream { status, headers, first: body, rest: None };
        }
        Self::Whole { status, headers, body }
    }
}

/// The failure of the last try.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) kind: CallErrorKind,
    pub(crate) message: String,
    /// The response of the upstream, if there is one.
    pub(crate) response: Option<(StatusCode, HeaderMap, Bytes)>,
}

impl Failed {
    fn broken(kind: CallErrorKind, error: reqwest::Error) -> (Self, Verdict) {
        let verdict = Verdict { kind, is_temporary: true, after: None };
        (Self { kind, message: chain(&error.without_url()), response: None }, verdict)
    }
}

impl Exchange<'_> {
    /// Sends the request. Nothing reaches the agent before a try succeeds, so each try may be the first.
    pub(crate) async fn run(
        self,
        client: &mut Client,
        tries: &mut u32,
    ) -> Result<Result<Received, Failed>, Gone> {
        let Self { shared, session, estimate, .. } = &self;
        loop {
            *tries += 1;
            let (failed, verdict) = match client.wait(self.once()).await? {
                Ok(received) => return Ok(Ok(received)),
                Err(failed) => failed,
            };
            shared.settle(*estimate, 0);
            if !verdict.is_temporary || *tries > shared.config.max_retries {
                return Ok(Err(failed));
            }
            tracing::debug!(tries, cause = session.masked_text(&failed.message), "asking the upstream again");
            let pause = pause(*tries, verdict.after, fastrand::f64());
            client.wait(tokio::time::sleep(pause)).await?;
            client.wait(shared.limit(session.id, *estimate)).await?;
        }
    }

    async fn once(&self) -> Result<Received, (Failed, Verdict)> {
        let Self { shared, url, headers, body, .. } = self;
        let request = shared.http.post(url.clone()).headers(headers.clone()).body(body.clone());
        let unreachable = |error| Failed::broken(CallErrorKind::Unreachable, error);
        let cut = |error| Failed::broken(CallErrorKind::Cut, error);
        let mut response = request.send().await.map_err(unreachable)?;
        let (status, headers) = (response.status(), response.headers().clone());
        if !status.is_success() {
            let body = read(&mut response, MAX_ERROR_BYTES).await.unwrap_or_default();
            let verdict = judge(status, &headers, &body);
            let message = format!("{status}: {}", message_of(&body));
            return Err((
                Failed { kind: verdict.kind, message, response: Some((status, headers, body)) },
                verdict,
            ));
        }
        if self.streams {
            return match response.chunk().await.map_err(cut)? {
                Some(first) => Ok(Received::Stream { status, headers, first, rest: Some(response) }),
                None => Ok(Received::Whole { status, headers, body: Bytes::new() }),
            };
        }
        let body = read(&mut response, MAX_RESPONSE_BYTES).await.map_err(cut)?;
        if let Some(meant) = status_of_error(&body) {
            let verdict = judge(meant, &headers, &body);
            let message = format!("{status}: {}", message_of(&body));
            return Err((
                Failed { kind: verdict.kind, message, response: Some((meant, headers, body)) },
                verdict,
            ));
        }
        Ok(Received::Whole { status, headers, body })
    }
}

/// The status that a response with an error and without an answer should have had: some servers send 200.
fn status_of_error(body: &[u8]) -> Option<StatusCode> {
    if body.len() > MAX_ERROR_BYTES {
        return None;
    }
    let parsed: Value = serde_json::from_slice(body).ok()?;
    translate::error_in(&parsed)?;
    let has_items = |key: &str| parsed[key].as_array().is_some_and(|items| !items.is_empty());
    if ["choices", "output", "content", "candidates"].into_iter().any(has_items) {
        return None;
    }
    let status = translate::status_in(&parsed).and_then(|status| StatusCode::from_u16(status).ok());
    // Servers that pass requests on report the keys of others in this way.
    Some(status.filter(|status| !rejects_key(*status, body)).unwrap_or(StatusCode::BAD_GATEWAY))
}

/// Reads a body up to a number of bytes.
pub(crate) async fn read(response: &mut reqwest::Response, most: usize) -> Result<Bytes, reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(piece) = response.chunk().await? {
        body.extend_from_slice(&piece[..piece.len().min(most - body.len())]);
        if body.len() == most {
            break;
        }
    }
    Ok(body.freeze())
}

/// The message of an error's body.
pub(crate) fn message_of(body: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let parsed = parsed.map(|value| match value {
        // Gemini without server-sent events answers with a list.
        Value::Array(mut items) if !items.is_empty() => items.swap_remove(0),
        other => other,
    });
    let message = parsed.as_ref().and_then(|value| {
        let error = value.get("error").unwrap_or(value);
        error.get("message").unwrap_or(error).as_str()
    });
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.chars().take(MAX_EXCERPT_CHARS).collect()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
