//! One request and its answer.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use reqwest::{Method, Request, header::HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    ClientDialect, Inner, chat,
    endpoint::Endpoint,
    failure::{Asked, Failure},
    messages,
    sse::{SseDecoder, SseEvent},
    token_prompt::{TokenEndpoint, as_chat, is_unknown_endpoint},
};
use crate::Error;
use rollout_core::response::Response;

/// The maximum size of an answer.
const MAX_BODY: usize = 64 << 20;

/// How much of an error answer is read.
const MAX_REFUSAL: usize = 64 << 10;

/// An answer in the form of one API.
pub(super) trait Answer: DeserializeOwned {
    /// What a streamed answer is assembled from.
    type Pieces: Pieces<Whole = Self>;

    /// The error, if the answer is one: some servers return an error with a success status.
    fn error(&self) -> Option<&Value>;

    /// The field in which the server puts the model's reasoning, if there is one.
    fn reasoning_field(&self) -> Option<&'static str> {
        None
    }

    /// Converts it to the form that all APIs share.
    fn into_response(self, asked: &str) -> Result<Response, Error>;
}

/// The part of an answer that has arrived.
pub(super) trait Pieces: Default {
    /// The assembled answer.
    type Whole;

    /// Adds the data of an event.
    fn add(&mut self, data: &[u8]) -> Result<(), serde_json::Error>;

    /// Whether the response or the error is complete. If the connection breaks, the end is missing.
    fn is_complete(&self) -> bool;

    /// Assembles the answer.
    fn finish(self) -> Self::Whole;
}

impl Inner {
    /// Sends a request once, and reads the answer.
    pub(super) async fn exchange(
        &self,
        endpoint: &Endpoint,
        body: Bytes,
        token_endpoint: Option<TokenEndpoint>,
        session: &str,
        asked: Asked<'_>,
    ) -> Result<Response, Failure> {
        let url = match token_endpoint {
            None => &endpoint.url,
            Some(TokenEndpoint::Chat) => &endpoint.tokens,
            Some(TokenEndpoint::Completions) => &endpoint.completions,
        };
        let mut request = Request::new(Method::POST, url.clone());
        request.headers_mut().clone_from(&self.headers);
        if let Ok(session) = HeaderValue::from_str(session) {
            request.headers_mut().insert("x-session-id", session);
        }
        *request.body_mut() = Some(body.into());
        let mut answer = self.http.execute(request).await.map_err(|error| asked.broken(error))?;
        let status = answer.status();
        if let Some(unknown) = token_endpoint.filter(|_| is_unknown_endpoint(status)) {
            return Err(Failure::NoTokenPrompts(unknown));
        }
        if !status.is_success() {
            // An incomplete error answer is still an error answer.
            let (body, _) = read(&mut answer, MAX_REFUSAL).await;
            return Err(asked.refused(status, answer.headers(), &body));
        }
        match self.dialect {
            ClientDialect::Chat if token_endpoint == Some(TokenEndpoint::Completions) => {
                let body = whole_body(&mut answer).await.ok_or_else(|| asked.cut())?;
                let read = serde_json::from_slice(&body).map(as_chat).and_then(serde_json::from_value);
                let whole: chat::Completion = read.map_err(|error| asked.malformed(&error, &body))?;
                whole.into_response(asked.model).map_err(|error| Failure::Final(asked.about(error)))
            }
            ClientDialect::Chat => self.receive::<chat::Completion>(answer, asked).await,
            ClientDialect::Messages => self.receive::<messages::Reply>(answer, asked).await,
        }
    }

    async fn receive<A: Answer>(
        &self,
        mut answer: reqwest::Response,
        asked: Asked<'_>,
    ) -> Result<Response, Failure> {
        // A server may ignore whether streaming was requested.
        let kind = answer.headers().get("content-type").map_or(&[][..], HeaderValue::as_bytes);
        let is_stream = kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"));
        let whole: A = match is_stream {
            true => assemble(&mut answer, asked).await?,
            false => {
                let (body, end) = read(&mut answer, MAX_BODY).await;
                match end {
                    End::Here => {}
                    End::TooFar => return Err(asked.too_large(MAX_BODY)),
                    End::Broken(error) => return Err(asked.broken(error)),
                }
                serde_json::from_slice(&body).map_err(|error| asked.malformed(&error, &body))?
            }
        };
        if let Some(error) = whole.error().filter(|error| !error.is_null()) {
            return Err(asked.error_in_answer(error));
        }
        if let Some(field) = whole.reasoning_field() {
            self.uses_reasoning.store(field == "reasoning", Relaxed);
        }
        whole.into_response(asked.model).map_err(|error| Failure::Final(asked.about(error)))
    }
}

/// How a body ended.
enum End {
    Here,
    TooFar,
    Broken(reqwest::Error),
}

/// A whole body; none if it is too large or incomplete.
pub(super) async fn whole_body(answer: &mut reqwest::Response) -> Option<Vec<u8>> {
    let (body, end) = read(answer, MAX_BODY).await;
    matches!(end, End::Here).then_some(body)
}

/// A body up to a limit.
async fn read(answer: &mut reqwest::Response, limit: usize) -> (Vec<u8>, End) {
    /// The announced size is trusted up to here. Beyond it, memory grows with the data that arrives.
    const MAX_PREALLOCATED: usize = 1 << 20;
    let announced = answer.content_length().and_then(|length| usize::try_from(length).ok());
    let mut body = Vec::with_capacity(announced.unwrap_or(0).min(limit).min(MAX_PREALLOCATED));
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > limit => {
                body.extend_from_slice(&chunk[..limit - body.len()]);
                return (body, End::TooFar);
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return (body, End::Here),
            Err(error) => return (body, End::Broken(error)),
        }
    }
}

/// Assembles an answer from the events of a stream.
async fn assemble<A: Answer>(answer: &mut reqwest::Response, asked: Asked<'_>) -> Result<A, Failure> {
    let mut decoder = SseDecoder::default();
    let mut pieces = A::Pieces::default();
    let mut on_event = |event: SseEvent<'_>| match event.name {
        b"error" => Err(asked.error_in_stream(event.data)),
        _ => pieces.add(event.data).map_err(|error| asked.malformed(&error, event.data)),
    };
    let mut received = 0;
    let broken = loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => {
                received += chunk.len();
                if received > MAX_BODY {
                    return Err(asked.too_large(MAX_BODY));
                }
                decoder.feed(&chunk, &mut on_event)?;
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    if broken.is_none() {
        // The last event may be incomplete, so its errors are ignored.
        let _ = decoder.finish(&mut on_event);
    }
    match broken {
        // Nothing important was lost.
        _ if pieces.is_complete() => Ok(pieces.finish()),
        Some(error) => Err(asked.broken(error)),
        None => Err(asked.cut()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// JSON with the fields of answers, in the wrong places and with the wrong values.
    fn answers() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "[a-z:0-9]{0,12}".prop_map(Value::from),
        ];
        const KNOWN: &[&str] = &[
            "choices",
            "message",
            "delta",
            "content",
            "tool_calls",
            "function",
            "arguments",
            "index",
            "id",
            "usage",
            "prompt_tokens",
            "logprobs",
            "token_ids",
            "reasoning",
            "reasoning_details",
            "finish_reason",
            "error",
            "stop_reason",
            "content_block",
            "type",
            "text",
            "input",
        ];
        leaf.prop_recursive(6, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((prop::sample::select(KNOWN), inner), 0..6).prop_map(|fields| {
                    Value::Object(fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
                }),
            ]
        })
    }

    fn survives<A: Answer>(values: &[Value]) {
        let mut pieces = A::Pieces::default();
        for value in values {
            let wrapped = json!({"choices": [{"delta": value, "message": value}], "content": [value], "type": "message_start", "message": value});
            for text in [value.to_string(), wrapped.to_string()] {
                if let Ok(answer) = serde_json::from_str::<A>(&text) {
                    let _ = answer.into_response("m");
                }
                let _ = pieces.add(text.as_bytes());
            }
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_client_panic(values in prop::collection::vec(answers(), 1..4)) {
            survives::<chat::Completion>(&values);
            survives::<messages::Reply>(&values);
        }
    }
}
