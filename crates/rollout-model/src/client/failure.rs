//! Classifies failed tries: whether a retry helps, and whether other requests would fail too.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::{StatusCode, header::HeaderMap};
use serde_json::Value;

use super::token_prompt::TokenEndpoint;
use crate::{Cause, Error, ErrorKind};
use rollout_core::{parse_retry_after, redact::Redactor};

/// Why a try failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Temporary: the same request may succeed later.
    Passing {
        cause: Cause,
        /// When to retry, if the server says so.
        after: Option<Duration>,
    },
    /// The server may not support this request's name for the token limit.
    TokenLimit(Error),
    /// The server has no such endpoint for prompts of tokens.
    NoTokenPrompts(TokenEndpoint),
    /// A retry does not help.
    Final(Error),
}

/// The context of a request for messages: the URL, the model, and the secrets to remove.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) url: &'a str,
    pub(super) model: &'a str,
    pub(super) has_key: bool,
    pub(super) token_limit: Option<&'static str>,
    pub(super) secrets: &'a Redactor,
}

/// How much of an error text of the server is shown.
const MAX_EXCERPT_CHARS: usize = 600;

impl Asked<'_> {
    /// An answer with an error status.
    pub(super) fn refused(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Failure {
        let after = retry_after(headers, Timestamp::now());
        self.classified(status, after, &String::from_utf8_lossy(body))
    }

    /// An error in the middle of an answer that started well.
    pub(super) fn error_in_answer(&self, error: &Value) -> Failure {
        let wrapped = serde_json::json!({"error": error});
        self.classified(status_of(error), None, &wrapped.to_string())
    }

    /// The same, as the data of an event.
    pub(super) fn error_in_stream(&self, data: &[u8]) -> Failure {
        match serde_json::from_slice::<Value>(data) {
            Ok(value) => self.error_in_answer(value.get("error").unwrap_or(&value)),
            Err(_) => self.error_in_answer(&String::from_utf8_lossy(data).into()),
        }
    }

    /// A connection that failed, timed out, or broke.
    pub(super) fn broken(&self, error: reqwest::Error) -> Failure {
        let name = if error.is_timeout() { "TimeoutError" } else { "ConnectionError" };
        Failure::Passing { cause: Cause::of(name, &error.without_url()), after: None }
    }

    /// An incomplete answer.
    pub(super) fn cut(&self) -> Failure {
        let cause = Cause::new("ConnectionError", "the stream ended before the response did");
        Failure::Passing { cause, after: None }
    }

    /// An answer that is not a response.
    pub(super) fn malformed(&self, error: &serde_json::Error, body: &[u8]) -> Failure {
        // Far more than is shown, and far less than the maximum size of a body.
        let start = &body[..body.len().min(64 << 10)];
        let excerpt = self.excerpt(&String::from_utf8_lossy(start));
        let message = format!("malformed response from {}: {excerpt}", self.url);
        let error = Cause::new("JsonError", error.to_string());
        Failure::Final(Error::new(ErrorKind::InvalidModelResponse, message).because(error))
    }

    /// An answer that is well-formed but invalid.
    pub(super) fn about(&self, error: Error) -> Error {
        let message =
            format!("invalid response of model `{}` at {}: {}", self.model, self.url, error.message);
        Error { message, ..error }
    }

    /// An answer over the size limit.
    pub(super) fn too_large(&self, limit: usize) -> Failure {
        let message = format!("the response of {} is larger than {} MiB", self.url, limit >> 20);
        Failure::Final(Error::new(ErrorKind::InvalidModelResponse, message))
    }

    /// All tries failed.
    pub(super) fn exhausted(&self, tries: u32, cause: Cause) -> Error {
        let tries = if tries == 1 { String::new() } else { format!(" in {tries} tries") };
        let message = format!("no response from model `{}` at {}{tries}", self.model, self.url);
        Error::new(ErrorKind::Model, message).because(cause)
    }

    fn classified(&self, status: StatusCode, after: Option<Duration>, body: &str) -> Failure {
        let said = self.excerpt(&message_of(body));
        let separator = if said.is_empty() { "" } else { ": " };
        let cause = Cause::new(name_of(status), format!("{status}{separator}{said}"));
        let Self { url, model, .. } = self;
        match status.as_u16() {
            _ if rejects_key(status, body.as_bytes()) => {
                let message = match self.has_key {
                    true => format!(
                        "{url} rejected the API key for model `{model}`; check that `api_key` is correct and has access to the model"
                    ),
                    false => format!("{url} requires an API key; set `api_key`"),
                };
                Failure::Final(Error::new(ErrorKind::Unauthorized, message).because(cause))
            }
            400 | 413 if is_overlong(body) => {
                let message =
                    format!("the conversation is longer than the context of model `{model}` at {url}");
                Failure::Final(Error::new(ErrorKind::OverlongPrompt, message).because(cause))
            }
            408 | 409 | 429 | 500.. => Failure::Passing { cause, after },
            code => {
                let hint = match code {
                    404 => "; check the model's name and `base_url`, which usually ends in /v1",
                    300..=399 => {
                        "; redirects are not followed, so set `base_url` to the final URL of the server"
                    }
                    _ => "",
                };
                let cause = Cause { message: cause.message + hint, ..cause };
                let error = self.exhausted(1, cause);
                let names_limit = self.token_limit.is_some_and(|name| body.contains(name));
                match code {
                    400 | 422 if names_limit => Failure::TokenLimit(error),
                    _ => Failure::Final(error),
                }
            }
        }
    }

    /// An error text of the server, shortened and without secrets.
    fn excerpt(&self, text: &str) -> String {
        let text = self.secrets.text(text);
        let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
        let text = words.collect::<Vec<_>>().join(" ");
        match text.char_indices().nth(MAX_EXCERPT_CHARS) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

/// The message of an error, wherever a server puts it; otherwise the whole text.
fn message_of(body: &str) -> std::borrow::Cow<'_, str> {
    let words = |value: &Value| -> Option<String> {
        let error = value.get("error").unwrap_or(value);
        let words = error.get("message").or_else(|| value.get("message")).or_else(|| value.get("detail"));
        words.unwrap_or(error).as_str().map(str::to_owned)
    };
    let value: Option<Value> = serde_json::from_str(body).ok();
    // One server wraps the error in a list.
    let value = value.as_ref().map(|value| value.get(0).unwrap_or(value));
    value.and_then(words).filter(|words| !words.is_empty()).map_or(body.into(), Into::into)
}

/// The status for an error that came after the answer had started.
fn status_of(error: &Value) -> StatusCode {
    let field = |key| error.get(key).filter(|value: &&Value| !value.is_null());
    let code = field("code").or_else(|| field("status")).and_then(|code| match code {
        Value::String(text) => text.parse().ok(),
        code => code.as_u64().and_then(|code| u16::try_from(code).ok()),
    });
    let code = code.filter(|code| (400..600).contains(code)).unwrap_or_else(|| {
        match field("type").and_then(Value::as_str).unwrap_or_default() {
            "invalid_request_error" | "BadRequestError" => 400,
            "authentication_error" => 401,
            "permission_error" => 403,
            "not_found_error" => 404,
            "request_too_large" => 413,
            "rate_limit_error" => 429,
            "overloaded_error" => 529,
            _ => 500,
        }
    });
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The class name of an error, for chains of errors.
fn name_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "BadRequestError",
        401 => "AuthenticationError",
        403 => "PermissionDeniedError",
        404 => "NotFoundError",
        408 => "TimeoutError",
        409 => "ConflictError",
        413 => "RequestTooLargeError",
        422 => "UnprocessableEntityError",
        429 => "RateLimitError",
        500.. => "InternalServerError",
        _ => "StatusError",
    }
}

/// The phrases with which servers report that a conversation is too long for the model.
const OVERLONG: [&str; 16] = [
    "maximum context length is",
    "context length",
    "context_length_exceeded",
    "context window",
    "context size",
    "exceed context limit",
    "longer than the maximum model length",
    "maximum model length",
    "exceed the configured limit",
    "exceeds the configured limit",
    "exceeded model",
    "prompt_too_long",
    "prompt is too long",
    "input is too long",
    "request_too_large",
    "maximum number of tokens allowed",
];

/// Whether an error of a server says that the conversation is longer than the context of the model.
pub fn is_overlong(body: &str) -> bool {
    let body = body.to_lowercase();
    OVERLONG.iter().any(|phrase| body.contains(phrase))
}

/// Whether an answer with an error status rejects the API key.
///
/// Google rejects an invalid or expired key with status 400, like any other invalid request, and gives the reason in
/// the details of the error. OpenRouter rejects a prompt that breaks its rules with status 403, like an invalid key, and
/// gives the reasons in the metadata of the error.
pub fn rejects_key(status: StatusCode, body: &[u8]) -> bool {
    let body = || serde_json::from_slice::<Value>(body).unwrap_or_default();
    match status.as_u16() {
        401 => true,
        403 => !is_moderated(&body()["error"]),
        400 => {
            let body = body();
            // Some of Google's endpoints wrap the error in a list.
            let error = body.get("error").unwrap_or(&body[0]["error"]);
            let details = error["details"].as_array();
            details.is_some_and(|details| details.iter().any(|detail| detail["reason"] == "API_KEY_INVALID"))
        }
        _ => false,
    }
}

/// Whether an error is about the content of the request.
fn is_moderated(error: &Value) -> bool {
    let metadata = &error["metadata"];
    metadata["reasons"].is_array()
        || metadata["flagged_input"].is_string()
        || ["code", "type"].iter().any(|key| error[*key] == "content_policy_violation")
}

/// How long the server asks to wait: in milliseconds, in seconds, or until a date.
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let milliseconds = header("retry-after-ms").and_then(|text| text.trim().parse::<f64>().ok());
    match milliseconds {
        Some(milliseconds) => Duration::try_from_secs_f64(milliseconds / 1000.0).ok(),
        None => parse_retry_after(header("retry-after")?, now),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn retry_after_is_read_in_all_three_forms() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (headers, expected) in [
            (&[][..], None),
            (&[("retry-after", "2")], Some(2000)),
            (&[("retry-after", " 0.5 ")], Some(500)),
            (&[("retry-after-ms", "15"), ("retry-after", "2")], Some(15)),
            (&[("retry-after-ms", "soon"), ("retry-after", "2")], Some(2000)),
            (&[("retry-after", "Thu, 01 Jan 2026 00:00:07 GMT")], Some(7000)),
            (&[("retry-after", "Wed, 31 Dec 2025 23:59:00 GMT")], Some(0)),
            (&[("retry-after", "-5")], None),
            (&[("retry-after", "1e400")], None),
            (&[("retry-after", "NaN")], None),
            (&[("retry-after", "tomorrow")], None),
        ] {
            let map =
                headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            assert_eq!(retry_after(&map, now).map(|wait| wait.as_millis()), expected, "{headers:?}");
        }
    }

    #[test]
    fn a_status_that_is_not_about_the_key_is_told_apart_by_the_body() {
        let google = json!({"error": {"code": 400, "details": [{"reason": "API_KEY_INVALID"}]}});
        let flagged = json!({"code": 403, "metadata": {"reasons": ["violence"], "flagged_input": "…"}});
        for (status, body, rejects) in [
            (401, json!({"error": {"message": "no"}}), true),
            (403, json!({"error": {"message": "no", "type": "permission_error"}}), true),
            (403, json!("no"), true),
            (403, json!({"error": flagged}), false),
            (403, json!({"error": {"metadata": {"flagged_input": "…"}}}), false),
            (403, json!({"error": {"code": "content_policy_violation"}}), false),
            (400, google.clone(), true),
            (400, json!([google]), true),
            (400, json!({"error": {"code": 400, "details": [{"reason": "OTHER"}]}}), false),
            (400, json!({"error": "no"}), false),
            (404, json!({}), false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(rejects_key(status, body.to_string().as_bytes()), rejects, "{status} {body}");
        }
    }

    #[test]
    fn an_error_message_is_found_wherever_a_server_puts_it() {
        for (body, words) in [
            (r#"{"error":{"message":"no","type":"x"}}"#, "no"),
            (r#"{"error":"no"}"#, "no"),
            (r#"{"object":"error","message":"no","code":400}"#, "no"),
            (r#"{"detail":"no"}"#, "no"),
            (r#"[{"error":{"message":"no"}}]"#, "no"),
            (r#"{"detail":[{"loc":["body"]}]}"#, r#"{"detail":[{"loc":["body"]}]}"#),
            (r#"{"error":{"message":""}}"#, r#"{"error":{"message":""}}"#),
            ("<html>", "<html>"),
            ("", ""),
        ] {
            assert_eq!(message_of(body), words);
        }
    }

    #[test]
    fn an_error_in_an_answer_gets_the_status_of_its_type() {
        for (error, status) in [
            (json!({"code": 429}), 429),
            (json!({"code": "503"}), 503),
            (json!({"code": "rate_limited", "type": "rate_limit_error"}), 429),
            (json!({"code": 7, "type": "overloaded_error"}), 529),
            (json!({"status": 400}), 400),
            (json!({"type": "authentication_error"}), 401),
            (json!({"type": "api_error"}), 500),
            (json!("no"), 500),
        ] {
            assert_eq!(status_of(&error).as_u16(), status, "{error}");
        }
    }
}
