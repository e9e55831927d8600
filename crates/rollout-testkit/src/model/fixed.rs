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
    chat,
    render::{Rendering, frames},
    reply::{Form, ModelReply, ScriptedMessage},
    request::{RequestDialect, RequestFlags},
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

    pub(super) fn reply(&self, dialect: RequestDialect, request: &[u8]) -> Response<Body> {
        let (asked, turns) = RequestFlags::scan(dialect, request);
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
            let events = by_dialect(asked.dialect, chat::events, anthropic::events)(said, &rendering);
            ("text/event-stream", frames(reply, &events).concat().into())
        } else {
            let body = by_dialect(asked.dialect, chat::body, anthropic::body)(said, &rendering);
            ("application/json", body.to_string().into())
        };
        Written { content_type: HeaderValue::from_static(content_type), body }
    }
}

type Writer<T> = fn(&ScriptedMessage, &Rendering) -> T;

fn by_dialect<T>(dialect: RequestDialect, chat: Writer<T>, messages: Writer<T>) -> Writer<T> {
    match dialect {
        RequestDialect::Chat => chat,
        RequestDialect::Messages => messages,
    }
}
