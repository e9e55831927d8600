//! The format of every answer.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

use crate::resource::{ErrorCode, ToolError};

/// An answer: its status, its data, and its context.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Envelope {
    /// 0, or one of the codes of [`ErrorCode`].
    pub code: u16,
    /// `success`, or what happened and what to do about it.
    pub message: String,
    /// The result.
    pub data: Value,
    /// The context.
    pub(super) meta: Meta,
    /// The HTTP status, if it is not the default of the code.
    #[serde(skip)]
    pub(super) status: Option<StatusCode>,
}

/// The context of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Meta {
    /// The tool, by its full name.
    pub(super) tool: Option<String>,
    /// The duration.
    pub(super) execution_time_ms: f64,
    /// The resource type of the tool.
    pub(super) resource_type: Option<String>,
    /// The session of the call.
    pub(super) session_id: Option<String>,
    /// The client's id of the request.
    pub(super) trace_id: Option<String>,
    /// Whether the session was created only for this call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) temporary_session: bool,
}

impl Envelope {
    /// The answer for a result.
    pub(super) fn new(outcome: Result<Value, ToolError>) -> Self {
        let (code, message, data) = match outcome {
            Ok(data) => (ErrorCode::Success, "success".to_owned(), data),
            Err(error) => (error.code, error.message, error.data),
        };
        Self { code: code as u16, message, data, meta: Meta::default(), status: None }
    }

    /// The answer for a request of several parts, of which `good` succeeded.
    pub(super) fn of_parts(data: Value, good: usize, all: usize) -> Self {
        let (code, message) = match (good, all) {
            (good, all) if good == all => (ErrorCode::Success, "success".to_owned()),
            (0, _) => (ErrorCode::AllFailed, "all parts of the request failed".to_owned()),
            (good, all) => (ErrorCode::PartialFailure, format!("{good} of {all} parts succeeded")),
        };
        Self { code: code as u16, message, data, meta: Meta::default(), status: None }
    }

    /// The same with another HTTP status.
    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// Whether the request succeeded.
    pub fn is_success(&self) -> bool {
        self.code == ErrorCode::Success as u16
    }
}

impl From<ToolError> for Envelope {
    fn from(error: ToolError) -> Self {
        Self::new(Err(error))
    }
}

/// The HTTP status of a code.
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
