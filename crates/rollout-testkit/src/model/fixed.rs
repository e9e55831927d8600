//! Replies that are rendered once, so that the server costs almost nothing compared to what is measured.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use hyper::{
    Response,
    header::{CONTENT_TYPE, HeaderValue},
};

use super::{
    anthropic,
    body::Body,
    chat, google,
    render::{Rendering, frames},
    reply::{Form, ModelReply},
    request::{RequestDialect, RequestFlags},
    responses,
};

/// One reply for each turn of a conversation. Only messages: no status, no delay.
pub(super) struct Fixed {
    replies: Vec<ModelReply>,
    written: RwLock<HashMap<(usize, RequestFlags), Arc<Written>>>,
}

struct Written {
    content_type: HeaderValue,
    body: Bytes,
}

impl Fixed {
    pub(super) fn new(replies: impl IntoIterator<Item = ModelReply>) -> Self {
        let replies: Vec<ModelReply> = replies.into_iter().collect();
        assert!(
            !replies.is_empty() && replies.iter().all(|reply| matches!(reply.form, Form::Message(_))),
            "a fixed script has a reply at least, and only messages"
        );
        Self { replies, written: RwLock::default() }
    }

    pub(super) fn reply(&self, dialect: RequestDialect, path: &str, request: &[u8]) -> Response<Body> {
        let (mut asked, turns) = RequestFlags::scan(dialect, request);
        asked.stream |= path.ends_with(":streamGenerateContent");
        let key = (turns.min(self.replies.len() - 1), asked);
        let found = self.written.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let written = found.unwrap_or_else(|| {
            let written = Arc::new(self.write(key));
            self.written.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&written));
            written
        });
        let mut response = Response::new(Body::whole(written.body.clone()));
        response.headers_mut().insert(CONTENT_TYPE, written.content_type.clone());
        response
    }

    fn write(&self, (turn, asked): (usize, RequestFlags)) -> Written {
        let reply = &self.replies[turn];
        let Form::Message(said) = &reply.form else { unreachable!("new takes only messages") };
        let rendering = Rendering { asked, number: turn, model: "fixed", prompt_ids: vec![1; 10] };
        let (content_type, body) = if asked.stream {
            let events = match asked.dialect {
                RequestDialect::Chat => chat::events(said, &rendering),
                RequestDialect::Messages => anthropic::events(said, &rendering),
                RequestDialect::Responses => responses::events(said, &rendering),
                RequestDialect::Gemini => google::events(said, &rendering),
            };
            ("text/event-stream", frames(reply, &events).concat().into())
        } else {
            let body = match asked.dialect {
                RequestDialect::Chat => chat::body(said, &rendering),
                RequestDialect::Messages => anthropic::body(said, &rendering),
                RequestDialect::Responses => responses::body(said, &rendering),
                RequestDialect::Gemini => google::body(said, &rendering),
            };
            ("application/json", body.to_string().into())
        };
        Written { content_type: HeaderValue::from_static(content_type), body }
    }
}
