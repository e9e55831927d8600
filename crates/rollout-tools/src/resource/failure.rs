//! The errors of calls, as defined by the protocol.

use serde_json::Value;

/// The codes of the protocol. Codes from 4000 are errors of the caller, codes from 5000 are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// Success.
    Success = 0,
    /// The input is invalid.
    InvalidInput = 4000,
    /// The request was rejected: a private address, a path outside the documents, a statement that writes.
    Refused = 4001,
    /// The request does not follow the protocol, or names something that does not exist.
    InvalidRequest = 4002,
    /// A parameter is missing.
    MissingField = 4003,
    /// A parameter has the wrong type.
    InvalidType = 4004,
    /// A URL is invalid.
    InvalidUrl = 4005,
    /// Nothing was found.
    NoResults = 4006,
    /// The session does not exist, or the resource was not initialized.
    NotInitialized = 4007,
    /// The tool failed.
    ExecutionError = 5000,
    /// A key for another service is missing.
    KeyMissing = 5002,
    /// A request to another service failed.
    RequestFailed = 5003,
    /// The response of another service cannot be parsed.
    ResponseUnreadable = 5004,
    /// An unexpected error.
    Unexpected = 5005,
    /// The call timed out.
    Timeout = 5006,
    /// A page could not be fetched.
    PageFailed = 5007,
    /// Every part of a request failed.
    AllFailed = 5009,
    /// A part of a request failed.
    PartialFailure = 5010,
    /// The resource could not be started.
    ResourceFailed = 5011,
    /// Something must be installed or started first; the message says what.
    DependencyMissing = 5012,
    /// The server has reached one of its limits.
    Overloaded = 5013,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// The kind of failure.
    pub code: ErrorCode,
    /// What happened and what to do about it, for the model and for readers of the record.
    pub message: String,
    /// More details for programs, or null.
    pub data: Value,
}

impl ToolError {
    /// Creates an error of this kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: Value::Null }
    }
}
