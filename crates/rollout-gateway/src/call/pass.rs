//! Passes the response of an upstream on to the agent.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::Bytes;
use serde_json::Value;

use super::{Call, End, Progress};
use crate::{
    answer::Refusal,
    client::{Client, Gone},
    copy::{Copied, ResponseCopy},
    exchange::{Failed, Received},
    record::{CallError, CallErrorKind},
    relay::Relay,
    translate::{self, AnswerContext, ErrorKind, TranslationError},
    upstream::{Server, response_headers},
    usage,
    usage::tokens::Extras,
};

impl Call {
    /// Passes a response on, and keeps a copy of it.
    pub(super) async fn pass(
        &self,
        client: &mut Client,
        server: &Server,
        received: Received,
        extras: Extras,
        progress: &mut Progress,
    ) -> Result<(), End> {
        match received {
            Received::Whole { status, headers, body } => {
                let translation = progress.translation.as_ref();
                let passed = (status, &headers, body.clone());
                let response = self.pass_whole(client, passed, extras, translation).await?;
                progress.whole = Some(Copied::whole(server.dialect, response));
                progress.keep(&headers, body);
            }
            Received::Stream { status, headers, first, rest } => {
                let relay = match &progress.translation {
                    Some(context) => Relay::translated(context.stream()),
                    None => Relay::new(server.dialect, extras),
                };
                let (max_bytes, is_kept) =
                    (self.shared.config.max_record_bytes, progress.cache_key.is_some());
                let copy = ResponseCopy::new(server.dialect, max_bytes, is_kept, is_sse(&headers));
                let copy = progress.copy.insert(copy);
                client.begin(status, response_headers(&headers))?;
                pass_stream(client, copy, relay, first, rest).await?;
                let body = copy.take_bytes();
                progress.keep(&headers, body);
            }
        }
        Ok(())
    }

    /// Passes a response on that is no stream.
    async fn pass_whole(
        &self,
        client: &mut Client,
        (status, headers, body): (StatusCode, &HeaderMap, Bytes),
        extras: Extras,
        translation: Option<&AnswerContext>,
    ) -> Result<Value, End> {
        let parsed: Option<Value> = serde_json::from_slice(&body).ok();
        let sent = match (&parsed, translation) {
            (Some(response), Some(context)) => match context.response(response.clone()) {
                Ok(translated) => translated.to_string().into(),
                Err(error) => {
                    let refusal = Refusal::new(StatusCode::BAD_GATEWAY, error.to_string());
                    return Err(self.refuse(client, CallErrorKind::NotTranslatable, refusal).await);
                }
            },
            (Some(response), None) if extras.has_tokens() => {
                let mut stripped = response.clone();
                usage::tokens::remove(self.dialect, extras, &mut stripped);
                stripped.to_string().into()
            }
            _ => body,
        };
        client.whole(status, response_headers(headers), sent).await?;
        parsed.ok_or_else(|| {
            let message = "the response of the upstream is not JSON";
            End::Failed(CallError::new(CallErrorKind::UpstreamFailed, message))
        })
    }

    /// Gives the agent the error of the upstream, without secrets.
    pub(super) async fn pass_failure(&self, client: &mut Client, server: &Server, failed: Failed) -> End {
        let Failed { kind, message, response } = failed;
        // The key will not become valid, but some agents would ask for minutes.
        let is_rejected = kind == CallErrorKind::Unauthorized;
        let sent = match response {
            Some((status, headers, body)) if client.is_waiting() && server.dialect == self.dialect => {
                let clean = self.session.masked_text(&String::from_utf8_lossy(&body));
                let mut headers = response_headers(&headers);
                headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
                if is_rejected {
                    headers.insert("x-should-retry", HeaderValue::from_static("false"));
                }
                client.whole(status, headers, clean.into()).await
            }
            other => {
                let status = other.as_ref().map_or(StatusCode::BAD_GATEWAY, |(status, ..)| *status);
                let mut refusal = Refusal::new(status, self.session.masked_text(&message));
                refusal.is_final = is_rejected;
                if let Some((status, _, body)) = other
                    && let Ok(body) = serde_json::from_slice(&body)
                {
                    let (kind, message) = translate::read_error(status.as_u16(), &body);
                    refusal.kind = kind;
                    refusal.message = self.session.masked_text(&message);
                }
                // Google rejects keys with status 400, after which some agents of other dialects try again forever.
                if is_rejected && refusal.status == StatusCode::BAD_REQUEST {
                    refusal.status = StatusCode::UNAUTHORIZED;
                    refusal.kind = ErrorKind::Authentication;
                }
                client.refuse(&refusal).await
            }
        };
        match sent {
            Ok(()) => {
                client.finish();
                End::Failed(CallError::new(kind, format!("{}: {message}", server.shown())))
            }
            Err(Gone) => End::Gone,
        }
    }

    /// Refuses the call.
    pub(super) async fn refuse(&self, client: &mut Client, kind: CallErrorKind, refusal: Refusal) -> End {
        match client.refuse(&refusal).await {
            Ok(()) => {
                client.finish();
                End::Failed(CallError::new(kind, refusal.message))
            }
            Err(Gone) => End::Gone,
        }
    }
}

/// Passes a stream on, piece by piece.
async fn pass_stream(
    client: &mut Client,
    copy: &mut ResponseCopy,
    mut relay: Relay,
    first: Bytes,
    mut rest: Option<reqwest::Response>,
) -> Result<(), End> {
    let mut next = Some(first);
    while let Some(piece) = next {
        let piece = match relay.push(piece, copy) {
            Ok(piece) => piece,
            Err(error) => return Err(untranslatable(client, &error).await),
        };
        client.send(piece).await?;
        let Some(rest) = &mut rest else { break };
        next = match client.stay(rest.chunk()).await? {
            Ok(piece) => piece,
            Err(error) => {
                client.cut().await;
                let message = format!("the stream broke: {}", error.without_url());
                return Err(End::Failed(CallError::new(CallErrorKind::Cut, message)));
            }
        };
    }
    let last = match relay.finish(copy) {
        Ok(last) => last,
        Err(error) => return Err(untranslatable(client, &error).await),
    };
    client.send(last).await?;
    if !copy.end() {
        let message = "the stream ended before the response was complete";
        return Err(End::Failed(CallError::new(CallErrorKind::Cut, message)));
    }
    Ok(())
}

/// Ends a stream that cannot be translated further: the agent must not take it for a whole response.
async fn untranslatable(client: &mut Client, error: &TranslationError) -> End {
    client.cut().await;
    let kind = match error {
        TranslationError::CutStream => CallErrorKind::Cut,
        TranslationError::Failed { .. } => CallErrorKind::UpstreamFailed,
        TranslationError::Invalid { .. } | TranslationError::Unsupported { .. } => {
            CallErrorKind::NotTranslatable
        }
    };
    End::Failed(CallError::new(kind, error.to_string()))
}

fn is_sse(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_none_or(|kind| !kind.starts_with("application/json"))
}
