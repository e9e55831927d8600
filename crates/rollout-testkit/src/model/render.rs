//! Renders a reply in the dialect and form that its request asks for.

use bytes::Bytes;
use hyper::{Response, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;

use super::{
    anthropic,
    body::Body,
    chat, google,
    reply::{Call, Cut, Form, ModelReply, ScriptedMessage, Split, TokenCounts, Tokens},
    request::{RequestDialect, RequestFlags},
    responses, token,
};

/// The parts of a request that its reply repeats.
pub(super) struct Rendering<'a> {
    pub(super) asked: RequestFlags,
    /// Makes ids unique.
    pub(super) number: usize,
    pub(super) model: &'a str,
    pub(super) prompt_ids: Vec<u32>,
}

impl Rendering<'_> {
    pub(super) fn id(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.number)
    }

    pub(super) fn call_id(&self, call: &Call, index: usize) -> String {
        call.id.clone().unwrap_or_else(|| format!("call_{}_{index}", self.number))
    }

    pub(super) fn tokens(&self, said: &ScriptedMessage) -> Tokens {
        token::tokens(said, &self.prompt_ids)
    }
}

impl Tokens {
    pub(super) fn counts(&self) -> TokenCounts {
        TokenCounts {
            prompt: self.prompt.len() as u64,
            completion: self.completion.len() as u64,
            ..TokenCounts::default()
        }
    }
}

/// One event of a stream.
pub(super) struct Event {
    pub(super) name: Option<&'static str>,
    pub(super) data: String,
}

impl Event {
    pub(super) fn data(data: &Value) -> Self {
        Self { name: None, data: data.to_string() }
    }
}

/// Writes a reply.
pub(super) fn render(reply: &ModelReply, rendering: &Rendering) -> Response<Body> {
    let dialect = rendering.asked.dialect;
    let (status, content_type, body) = match &reply.form {
        Form::Message(said) if rendering.asked.stream => {
            let mut events = match dialect {
                RequestDialect::Chat => chat::events(said, rendering),
                RequestDialect::Messages => anthropic::events(said, rendering),
                RequestDialect::Responses => responses::events(said, rendering),
                RequestDialect::Gemini => google::events(said, rendering),
            };
            if let Some(message) = &reply.failure {
                events.truncate(events.len() / 2);
                events.push(match dialect {
                    RequestDialect::Chat => Event::data(&chat::error(500, None, message)),
                    RequestDialect::Messages => anthropic::event("error", anthropic::error(529, message)),
                    RequestDialect::Responses => responses::failure(message),
                    RequestDialect::Gemini => Event::data(&google::error(500, message)),
                });
            }
            (200, "text/event-stream; charset=utf-8", Body::stream(frames(reply, &events)))
        }
        Form::Message(said) => {
            let body = match dialect {
                RequestDialect::Chat => chat::body(said, rendering),
                RequestDialect::Messages => anthropic::body(said, rendering),
                RequestDialect::Responses => responses::body(said, rendering),
                RequestDialect::Gemini => google::body(said, rendering),
            };
            (200, "application/json", Body::whole(body.to_string().into()))
        }
        Form::Error { status, code, message } => {
            (*status, "application/json", Body::whole(error(dialect, *status, code.as_deref(), message)))
        }
        Form::Raw { status, body } => (*status, "application/json", Body::whole(body.clone())),
    };
    let body = match reply.cut {
        Some(Cut::AfterHeaders) => body.cut(0),
        Some(Cut::Midway) => body.cut_midway(),
        Some(Cut::BeforeHeaders) | None => body,
    };
    let body = match &reply.hold_midway {
        Some(hold) => body.held_midway(hold.clone()),
        None => body,
    };
    let mut response = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, reply.content_type.as_deref().unwrap_or(content_type));
    for (name, value) in &reply.headers {
        response = response.header(name, value);
    }
    response.body(body).expect("a script gives valid headers")
}

/// An error of the server itself.
pub(super) fn refuse(dialect: RequestDialect, status: StatusCode, message: &str) -> Response<Body> {
    let body = Body::whole(error(dialect, status.as_u16(), None, message));
    let response = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    response.body(body).expect("its only header is valid")
}

fn error(dialect: RequestDialect, status: u16, code: Option<&str>, message: &str) -> Bytes {
    let error = match dialect {
        RequestDialect::Chat | RequestDialect::Responses => chat::error(status, code, message),
        RequestDialect::Messages => anthropic::error(status, message),
        RequestDialect::Gemini => google::error(status, message),
    };
    error.to_string().into()
}

pub(super) fn frames(reply: &ModelReply, events: &[Event]) -> Vec<Bytes> {
    let end = reply.line_end;
    let texts = events.iter().map(|event| {
        let comment = if reply.comments { format!(": waiting{end}{end}") } else { String::new() };
        let name = event.name.map(|name| format!("event: {name}{end}")).unwrap_or_default();
        format!("{comment}{name}data: {}{end}{end}", event.data)
    });
    match reply.split {
        Split::Events => texts.map(Bytes::from).collect(),
        Split::Whole => vec![texts.collect::<String>().into()],
        Split::Bytes(size) => {
            let all = texts.collect::<String>();
            all.as_bytes().chunks(size.max(1)).map(Bytes::copy_from_slice).collect()
        }
    }
}
