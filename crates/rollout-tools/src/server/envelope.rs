//! What every answer looks like.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

use crate::resource::{ErrorCode, ToolError};

/// An answer: what happened, what came of it, and what it was about.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Envelope {
    /// 0, or one of the codes of [`ErrorCode`].
    pub code: u16,
    /// `success`, or what happened and what to do about it.
    pub message: String,
    /// What came of it.
    pub data: Value,
    /// What it was about.
    pub(super) meta: Meta,
    /// The status of HTTP, where it is not the one that goes with the code.
    #[serde(skip)]
    pub(super) status: Option<StatusCode>,
}

/// What an answer is about.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Meta {
    /// The tool, by its full name.
    pub(super) tool: Option<String>,
    /// How long it took.
    pub(super) execution_time_ms: f64,
    /// The type of the tool's resource.
    pub(super) resource_type: Option<String>,
    /// The session that it was done in.
    pub(super) session_id: Option<String>,
    /// What the client calls the request.
    pub(super) trace_id: Option<String>,
    /// Whether the session was made for this call alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) temporary_session: bool,
}

impl Envelope {
    /// What came of a request.
    pub(super) fn new(outcome: Result<Value, ToolError>) -> Self {
        let (code, message, data) = match outcome {
            Ok(data) => (ErrorCode::Success, "success".to_owned(), data),
            Err(error) => (error.code, error.message, error.data),
        };
        Self { code: code as u16, message, data, meta: Meta::default(), status: None }
    }

    /// A request of which all, some or no parts went well.
    pub(super) fn of_parts(data: Value, good: usize, all: usize) -> Self {
        let (code, message) = match (good, all) {
            (good, all) if good == all => (ErrorCode::Success, "success".to_owned()),
            (0, _) => (ErrorCode::AllFailed, "nothing of the request went well".to_owned()),
            (good, all) => (ErrorCode::PartialFailure, format!("{good} of {all} went well")),
        };
        Self { code: code as u16, message, data, meta: Meta::default(), status: None }
    }

    /// The same with another status of HTTP.
    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// Whether all is well.
    pub fn is_success(&self) -> bool {
        self.code == ErrorCode::Success as u16
    }
}

impl From<ToolError> for Envelope {
    fn from(error: ToolError) -> Self {
        Self::new(Err(error))
    }
}

/// The status of HTTP that goes with a code.
fn status(code: u16) -> StatusCode {
    match code {
        0 => StatusCode::OK,
        code if code == ErrorCode::PartialFailure as u16 => StatusCode::MULTI_STATUS,
        4000..5000 => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Envelope {
    fn into_response(self) -> Response {
        let status = self.status.unwrap_or_else(|| status(self.code));
        (status, Json(self)).into_response()
    }
}
