//! Answers of the gateway itself, in the form of each dialect.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use serde_json::Value;

use crate::{
    dialect::Dialect,
    translate::{self, ErrorKind},
};

/// An answer that is not a model's.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// Whether clients should not try again by themselves.
    pub(crate) is_final: bool,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: ErrorKind::from_status(status.as_u16()),
            message: message.into(),
            is_final: true,
        }
    }

    /// The answer to a body that cannot be read.
    pub(crate) fn not_json(error: &serde_json::Error) -> Self {
        Self::new(StatusCode::BAD_REQUEST, format!("the request body is not a JSON object: {error}"))
    }

    /// The answer to a model that the session may not use.
    pub(crate) fn model(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("the model `{name}` is not allowed here"))
    }

    /// The answer that makes the agents of a dialect stop when a budget is used up. None of them stops at every status,
    /// and each at another one.
    pub(crate) fn budget(dialect: Dialect, message: String) -> Self {
        let status = match dialect {
            Dialect::Chat => StatusCode::UNAUTHORIZED,
            Dialect::Responses => StatusCode::TOO_MANY_REQUESTS,
            Dialect::Messages | Dialect::Gemini => StatusCode::FORBIDDEN,
        };
        Self { kind: ErrorKind::Quota, ..Self::new(status, message) }
    }

    pub(crate) fn body(&self, dialect: Dialect) -> Value {
        translate::error(dialect, self.status.as_u16(), self.kind, &self.message)
    }

    /// The error as an event of a stream that has already begun.
    pub(crate) fn event(&self, dialect: Dialect) -> Vec<u8> {
        translate::error_event(dialect, self.kind, &self.message)
    }

    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.is_final {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        headers
    }

    pub(crate) fn response(&self, dialect: Dialect) -> Response<Body> {
        respond(self.status, self.headers(), Body::from(self.body(dialect).to_string()))
    }
}

pub(crate) fn respond(status: StatusCode, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
