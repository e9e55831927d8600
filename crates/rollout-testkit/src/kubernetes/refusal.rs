//! Requests that are refused, in the form of the API's `Status`.

use serde_json::{Value, json};

use super::resource::Resource;

/// Why a request is refused.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    pub(super) retry_after: Option<u32>,
}

impl Refusal {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), retry_after: None }
    }

    pub(super) fn not_found(plural: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{plural} \"{name}\" not found"))
    }

    pub(super) fn already_exists(plural: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{plural} \"{name}\" already exists"))
    }

    pub(super) fn conflict(plural: &str, name: &str, why: &str) -> Self {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}"))
    }

    pub(super) fn forbidden(plural: &str, name: &str, why: &str) -> Self {
        Self::new(403, "Forbidden", format!("{plural} \"{name}\" is forbidden: {why}"))
    }

    pub(super) fn invalid(resource: &Resource, name: &str, why: &str) -> Self {
        Self::new(422, "Invalid", format!("{} \"{name}\" is invalid: {why}", resource.kind))
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The refusal of an injected fault.
    pub(super) fn injected(code: u16, retry_after: Option<u32>) -> Self {
        let reason = match code {
            401 => "Unauthorized",
            403 => "Forbidden",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        Self { retry_after, ..Self::new(code, reason, "the test refuses this") }
    }

    pub(super) fn gone() -> Self {
        Self::new(410, "Expired", "too old resource version")
    }

    pub(super) fn body(&self) -> Value {
        let details = self.retry_after.map(|seconds| json!({"retryAfterSeconds": seconds}));
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details.unwrap_or_else(|| json!({})),
            "code": self.code,
        })
    }
}
