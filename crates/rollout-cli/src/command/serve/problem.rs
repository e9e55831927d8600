//! The answer to a request that cannot be served.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

/// A refused request.
#[derive(Debug, PartialEq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) error: ErrorText,
    /// Seconds after which another try makes sense.
    pub(super) retry_after: Option<u32>,
}

/// An error as clients read it: what happened, with a line for each problem, and what to do about it.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct ErrorText {
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

/// The object that clients of model servers know.
#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    pub(super) error: &'a ErrorText,
}

impl Problem {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, error: ErrorText { message: message.into(), hint: None }, retry_after: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.error.hint = Some(hint.into());
        self
    }

    pub(super) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(Body { error: &self.error })).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
