//! Error bodies of each dialect, written and read.

use rollout_model::client::is_overlong;
use serde_json::{Value, json};

use super::sse;
use crate::Dialect;

/// How Anthropic says that a conversation is too long.
const TOO_LONG: &str = "prompt is too long";

/// The most letters of a message that are passed on.
const MESSAGE: usize = 4000;

/// What went wrong, in the terms that every dialect has a word for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request is wrong.
    InvalidRequest,
    /// The key is wrong.
    Authentication,
    /// The key does not allow this.
    Permission,
    /// There is no such model or path.
    NotFound,
    /// The body is too large.
    TooLarge,
    /// The conversation is longer than the model reads. Agents then shorten it.
    ContextLength,
    /// Too many requests: a later one may succeed.
    RateLimit,
    /// A budget is used up: no later one succeeds.
    Quota,
    /// The server is overloaded.
    Overloaded,
    /// The server did not answer in time.
    Timeout,
    /// The server failed.
    Server,
}

/// The words of a kind: OpenAI's type and code, Anthropic's type, Google's status.
struct Words {
    openai: (&'static str, Option<&'static str>),
    anthropic: &'static str,
    google: &'static str,
}

impl ErrorKind {
    /// The kind that a status stands for.
    pub(crate) fn from_status(status: u16) -> Self {
        match status {
            401 => Self::Authentication,
            402 => Self::Quota,
            403 => Self::Permission,
            404 => Self::NotFound,
            413 => Self::TooLarge,
            429 => Self::RateLimit,
            408 | 504 => Self::Timeout,
            503 | 529 => Self::Overloaded,
            400..=499 => Self::InvalidRequest,
            _ => Self::Server,
        }
    }

    /// The kind that a provider's word stands for.
    fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "invalid_request_error" | "INVALID_ARGUMENT" | "FAILED_PRECONDITION" | "invalid_prompt" => {
                Self::InvalidRequest
            }
            "authentication_error" | "UNAUTHENTICATED" | "invalid_api_key" => Self::Authentication,
            "permission_error" | "PERMISSION_DENIED" => Self::Permission,
            "not_found_error" | "NOT_FOUND" | "model_not_found" => Self::NotFound,
            "request_too_large" => Self::TooLarge,
            "context_length_exceeded" => Self::ContextLength,
            "rate_limit_error" | "RESOURCE_EXHAUSTED" | "rate_limit_exceeded" => Self::RateLimit,
            "insufficient_quota" | "billing_error" => Self::Quota,
            "overloaded_error" | "UNAVAILABLE" | "server_is_overloaded" => Self::Overloaded,
            "timeout_error" | "DEADLINE_EXCEEDED" => Self::Timeout,
            "api_error" | "INTERNAL" | "server_error" => Self::Server,
            _ => return None,
        })
    }

    fn words(self) -> Words {
        let words = |kind, code, anthropic, google| Words { openai: (kind, code), anthropic, google };
        match self {
            Self::InvalidRequest => {
                words("invalid_request_error", None, "invalid_request_error", "INVALID_ARGUMENT")
            }
            Self::Authentication => words(
                "authentication_error",
                Some("invalid_api_key"),
                "authentication_error",
                "UNAUTHENTICATED",
            ),
            Self::Permission => words("permission_error", None, "permission_error", "PERMISSION_DENIED"),
            Self::NotFound => {
                words("invalid_request_error", Some("model_not_found"), "not_found_error", "NOT_FOUND")
            }
            Self::TooLarge => words("invalid_request_error", None, "request_too_large", "INVALID_ARGUMENT"),
            Self::ContextLength => words(
                "invalid_request_error",
                Some("context_length_exceeded"),
                "invalid_request_error",
                "INVALID_ARGUMENT",
            ),
            Self::RateLimit => words(
                "rate_limit_error",
                Some("rate_limit_exceeded"),
                "rate_limit_error",
                "RESOURCE_EXHAUSTED",
            ),
            Self::Quota => {
                words("insufficient_quota", Some("insufficient_quota"), "billing_error", "RESOURCE_EXHAUSTED")
            }
            Self::Overloaded => {
                words("server_error", Some("server_is_overloaded"), "overloaded_error", "UNAVAILABLE")
            }
            Self::Timeout => words("server_error", None, "timeout_error", "DEADLINE_EXCEEDED"),
            Self::Server => words("server_error", None, "api_error", "INTERNAL"),
        }
    }

    /// The status that a body has where the dialect writes one and no response has it.
    fn status(self) -> u16 {
        match self {
            Self::InvalidRequest | Self::ContextLength => 400,
            Self::Authentication => 401,
            Self::Permission => 403,
            Self::NotFound => 404,
            Self::TooLarge => 413,
            Self::RateLimit | Self::Quota => 429,
            Self::Overloaded => 503,
            Self::Timeout => 504,
            Self::Server => 500,
        }
    }
}

/// An error body in a dialect.
pub(crate) fn error(to: Dialect, status: u16, kind: ErrorKind, message: &str) -> Value {
    let words = kind.words();
    match to {
        Dialect::Chat | Dialect::Responses => {
            let (kind, code) = words.openai;
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
        Dialect::Messages => {
            // Claude Code knows by these words that it must shorten the conversation.
            let is_marked = kind != ErrorKind::ContextLength || message.contains(TOO_LONG);
            let message = if is_marked { message.to_owned() } else { format!("{TOO_LONG}: {message}") };
            json!({"type": "error", "error": {"type": words.anthropic, "message": message}})
        }
        Dialect::Gemini => json!({"error": {"code": status, "message": message, "status": words.google}}),
    }
}

/// An error as an event of a stream that has begun.
pub(crate) fn error_event(to: Dialect, kind: ErrorKind, message: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let body = error(to, kind.status(), kind, message);
    match to {
        Dialect::Messages => sse::event(&mut bytes, "error", &body),
        Dialect::Chat | Dialect::Gemini => sse::event(&mut bytes, "", &body),
        Dialect::Responses => {
            let (kind, code) = kind.words().openai;
            let event = json!({
                "type": "response.failed",
                "response": {
                    "id": "failed",
                    "object": "response",
                    "status": "failed",
                    "output": [],
                    "error": {"code": code.unwrap_or(kind), "message": message},
                },
            });
            sse::event(&mut bytes, "response.failed", &event);
        }
    }
    bytes
}

/// The kind and the message of an upstream's error body, whatever its dialect.
pub(crate) fn read_error(status: u16, body: &Value) -> (ErrorKind, String) {
    let error = match body.get("error") {
        Some(error) if !error.is_null() => error,
        _ => body,
    };
    let word = ["code", "type", "status"]
        .iter()
        .filter_map(|key| error.get(key).and_then(Value::as_str))
        .find_map(ErrorKind::from_word);
    let message =
        ["message", "detail", "error"].iter().find_map(|key| error.get(key).and_then(Value::as_str));
    let message = message.or(error.as_str()).unwrap_or("the model server reported an error");
    // Some servers repeat the request in it.
    let message: String = message.chars().take(MESSAGE).collect();
    let kind = word.unwrap_or_else(|| ErrorKind::from_status(status));
    match kind {
        // Most providers have no code for it.
        ErrorKind::InvalidRequest if is_overlong(&message) => (ErrorKind::ContextLength, message),
        kind => (kind, message),
    }
}

/// The error that an event of a stream reports, or a whole response, if it reports one.
pub(crate) fn error_in(event: &Value) -> Option<(ErrorKind, String)> {
    let body = match event.get("type").and_then(Value::as_str) {
        Some("error") => event,
        Some("response.failed") => event.get("response")?,
        _ => event.get("error").filter(|error| !error.is_null()).map(|_| event)?,
    };
    Some(read_error(status_in(body).unwrap_or(500), body))
}

/// The status that the body of an error names.
pub(crate) fn status_in(body: &Value) -> Option<u16> {
    let code = body.get("error")?.get("code")?.as_u64()?;
    u16::try_from(code).ok().filter(|code| (400..600).contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIALECTS: [Dialect; 4] = [Dialect::Chat, Dialect::Responses, Dialect::Messages, Dialect::Gemini];

    #[test]
    fn an_error_keeps_its_kind_and_message_through_every_dialect() {
        for dialect in DIALECTS {
            for kind in [
                ErrorKind::InvalidRequest,
                ErrorKind::Authentication,
                ErrorKind::Permission,
                ErrorKind::RateLimit,
                ErrorKind::Overloaded,
                ErrorKind::Server,
            ] {
                let body = error(dialect, kind.status(), kind, "no");
                assert_eq!(read_error(kind.status(), &body), (kind, "no".to_owned()), "{dialect:?}");
            }
        }
    }

    #[test]
    fn a_conversation_that_is_too_long_is_known_whatever_the_words() {
        let google = "The input token count (9) exceeds the maximum number of tokens allowed (8).";
        for body in [
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}}),
            json!({"error": {"message": "Too long.", "type": "invalid_request_error", "code": "context_length_exceeded"}}),
            json!({"error": {"message": "This model's maximum context length is 8 tokens.", "code": 400}}),
            json!({"error": {"code": 400, "message": google, "status": "INVALID_ARGUMENT"}}),
        ] {
            let (kind, message) = read_error(400, &body);
            assert_eq!(kind, ErrorKind::ContextLength);
            let claude = error(Dialect::Messages, 400, kind, &message);
            assert!(claude["error"]["message"].as_str().unwrap().starts_with("prompt is too long: "));
            assert_eq!(
                error(Dialect::Responses, 400, kind, &message)["error"]["code"],
                "context_length_exceeded"
            );
        }
    }

    #[test]
    fn any_body_gives_a_message() {
        for (body, message) in [
            (json!({"error": "model overloaded"}), "model overloaded"),
            (json!({"detail": "Not Found"}), "Not Found"),
            (json!({"error": {"message": "bad", "code": 400}}), "bad"),
            (json!({"object": "error", "message": "bad"}), "bad"),
            (json!(null), "the model server reported an error"),
            (json!([1]), "the model server reported an error"),
        ] {
            assert_eq!(read_error(400, &body).1, message);
        }
    }

    #[test]
    fn a_budget_ends_each_dialect_with_its_own_words() {
        let shown: Vec<String> =
            DIALECTS.iter().map(|to| error(*to, 429, ErrorKind::Quota, "used up").to_string()).collect();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        {"error":{"message":"used up","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}
        {"error":{"message":"used up","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}
        {"type":"error","error":{"type":"billing_error","message":"used up"}}
        {"error":{"code":429,"message":"used up","status":"RESOURCE_EXHAUSTED"}}
        "#);
        let event = String::from_utf8(error_event(Dialect::Responses, ErrorKind::Quota, "used up")).unwrap();
        insta::assert_snapshot!(event, @r#"
        event: response.failed
        data: {"type":"response.failed","response":{"id":"failed","object":"response","status":"failed","output":[],"error":{"code":"insufficient_quota","message":"used up"}}}
        "#);
    }
}
