//! Why a call gave nothing, as the protocol has it.

use serde_json::Value;

/// The codes of the protocol. Those from 4000 are the caller's fault, those from 5000 are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// All is well.
    Success = 0,
    /// What was asked for makes no sense.
    InvalidInput = 4000,
    /// It was understood and refused: a private address, a path outside the documents, a statement that writes.
    Refused = 4001,
    /// The request is not in the form of the protocol, or names something that does not exist.
    InvalidRequest = 4002,
    /// A parameter is missing.
    MissingField = 4003,
    /// A parameter is of the wrong type.
    InvalidType = 4004,
    /// An address is none.
    InvalidUrl = 4005,
    /// Nothing was found.
    NoResults = 4006,
    /// There is no session, or the resource was not set up.
    NotInitialized = 4007,
    /// The tool failed.
    ExecutionError = 5000,
    /// A key for another service is missing.
    KeyMissing = 5002,
    /// Another service could not be asked.
    RequestFailed = 5003,
    /// Another service answered something that cannot be read.
    ResponseUnreadable = 5004,
    /// Something went wrong that nobody foresaw.
    Unexpected = 5005,
    /// It took too long.
    Timeout = 5006,
    /// A page could not be fetched.
    PageFailed = 5007,
    /// Every part of a request failed.
    AllFailed = 5009,
    /// A part of a request failed.
    PartialFailure = 5010,
    /// The resource could not be started.
    ResourceFailed = 5011,
    /// Something has to be installed or started first; the message says what.
    DependencyMissing = 5012,
    /// The server is at one of its limits.
    Overloaded = 5013,
}

/// Why a call gave nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// What kind of failure it is.
    pub code: ErrorCode,
    /// What happened and what to do about it, in words for the model and for whoever reads the record.
    pub message: String,
    /// More about it, for programs; null if there is nothing to add.
    pub data: Value,
}

impl ToolError {
    /// A failure of this kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: Value::Null }
    }
}
