//! The copy of a response for its record, put together while the response passes.

use std::convert::Infallible;

use bytes::Bytes;
use rollout_model::client::{SseDecoder, SseEvent};
use serde_json::Value;

use crate::{
    assemble::Assembler,
    dialect::Dialect,
    record::{CallError, CallErrorKind},
    translate::{self, ErrorKind},
    usage::{self, CallUsage, StreamUsage},
};

/// Reads a stream along with the agent.
#[derive(Debug)]
pub(crate) struct ResponseCopy {
    decoder: SseDecoder,
    events: Events,
    /// The bytes of the stream, if they are wanted and not too many.
    bytes: Option<Vec<u8>>,
    /// The bytes of a response that is no stream of events though one was asked for.
    plain: Option<Vec<u8>>,
}

/// What is known of a stream.
#[derive(Debug)]
struct Events {
    dialect: Dialect,
    assembler: Assembler,
    usage: StreamUsage,
    bytes: usize,
    max_bytes: usize,
    is_complete: bool,
    error: Option<CallError>,
}

/// The end of a response, in the dialect of the upstream.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) response: Option<Value>,
    pub(crate) usage: Option<CallUsage>,
    pub(crate) is_complete: bool,
    pub(crate) is_truncated: bool,
    /// An error that the upstream reported in the response.
    pub(crate) error: Option<CallError>,
}

impl Copied {
    /// A response that is no stream.
    pub(crate) fn whole(dialect: Dialect, response: Value) -> Self {
        let usage = usage::of_response(dialect, &response);
        let error = error_of(&response);
        Self { response: Some(response), usage, is_complete: error.is_none(), is_truncated: false, error }
    }
}

impl ResponseCopy {
    /// For a stream of this dialect. Gemini also streams a JSON list, which is not server-sent events.
    pub(crate) fn new(dialect: Dialect, max_bytes: usize, keeps_bytes: bool, is_sse: bool) -> Self {
        let events = Events {
            dialect,
            assembler: Assembler::new(dialect),
            usage: StreamUsage::new(dialect),
            bytes: 0,
            max_bytes,
            is_complete: false,
            error: None,
        };
        Self {
            decoder: SseDecoder::default(),
            events,
            bytes: keeps_bytes.then(Vec::new),
            plain: (!is_sse).then(Vec::new),
        }
    }

    /// Takes a piece of the stream.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        let Self { decoder, events, bytes, plain } = self;
        match bytes {
            Some(kept) if kept.len() + piece.len() <= events.max_bytes => kept.extend_from_slice(piece),
            _ => *bytes = None,
        }
        match plain {
            Some(plain) => {
                let room = events.max_bytes - plain.len();
                plain.extend_from_slice(&piece[..piece.len().min(room)]);
                events.bytes += piece.len();
            }
            None => {
                let Ok(()) = decoder.feed(piece, |event| events.take(event));
            }
        }
    }

    /// Takes the end of the stream; whether the model said everything.
    pub(crate) fn end(&mut self) -> bool {
        let Self { decoder, events, plain, .. } = self;
        let Ok(()) = decoder.finish(|event| events.take(event));
        if let Some(plain) = plain.take() {
            match serde_json::from_slice(&plain) {
                Ok(Value::Array(list)) => list.iter().for_each(|event| events.add(event)),
                Ok(event) => events.add(&event),
                Err(_) => {}
            }
        }
        self.events.is_complete
    }

    /// The bytes of the stream; empty if they are too many.
    pub(crate) fn take_bytes(&mut self) -> Bytes {
        self.bytes.take().unwrap_or_default().into()
    }

    pub(crate) fn finish(mut self) -> Copied {
        self.end();
        let events = self.events;
        Copied {
            response: (events.bytes > 0).then(|| events.assembler.finish().body),
            usage: events.usage.usage(),
            is_complete: events.is_complete,
            is_truncated: events.bytes > events.max_bytes,
            error: events.error,
        }
    }
}

impl Events {
    fn take(&mut self, event: SseEvent<'_>) -> Result<(), Infallible> {
        self.bytes += event.data.len();
        if event.data == b"[DONE]" {
            self.is_complete = true;
        } else if let Ok(data) = serde_json::from_slice::<Value>(event.data) {
            self.add(&data);
        }
        Ok(())
    }

    fn add(&mut self, data: &Value) {
        self.is_complete |= is_last(self.dialect, data);
        if let Some(error) = error_of(data) {
            self.error = Some(error);
        }
        self.usage.feed(data);
        if self.bytes <= self.max_bytes {
            self.assembler.feed(data);
        }
    }
}

/// Whether nothing but usage follows an event.
fn is_last(dialect: Dialect, data: &Value) -> bool {
    let any = |list: &Value, key: &str| {
        list.as_array().is_some_and(|items| items.iter().any(|item| item[key].is_string()))
    };
    match dialect {
        Dialect::Chat => any(&data["choices"], "finish_reason"),
        Dialect::Responses => matches!(
            data["type"].as_str(),
            Some("response.completed" | "response.incomplete" | "response.failed")
        ),
        Dialect::Messages => data["type"] == "message_stop",
        // A prompt that is blocked has no candidates.
        Dialect::Gemini => {
            any(&data["candidates"], "finishReason") || data["promptFeedback"]["blockReason"].is_string()
        }
    }
}

/// An error in a response, or in an event of a stream. Its status was that of a success.
fn error_of(data: &Value) -> Option<CallError> {
    let (kind, message) = translate::error_in(data)?;
    let kind = match kind {
        ErrorKind::ContextLength => CallErrorKind::ContextLength,
        ErrorKind::InvalidRequest | ErrorKind::NotFound | ErrorKind::TooLarge => CallErrorKind::Refused,
        ErrorKind::RateLimit | ErrorKind::Quota => CallErrorKind::RateLimited,
        ErrorKind::Authentication
        | ErrorKind::Permission
        | ErrorKind::Overloaded
        | ErrorKind::Timeout
        | ErrorKind::Server => CallErrorKind::UpstreamFailed,
    };
    Some(CallError::new(kind, message))
}
