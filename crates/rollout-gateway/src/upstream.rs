//! The servers behind the gateway: addresses, headers and failures.

use std::{borrow::Cow, time::Duration};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use jiff::Timestamp;
use reqwest::Url;
use rollout_model::client::{is_overlong, rejects_key, retry_after, shown_url};
use secrecy::ExposeSecret as _;
use serde_json::Value;

use crate::{
    config::{GatewayError, Upstream},
    dialect::Dialect,
    record::CallErrorKind,
};

/// A server, ready to be asked.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) dialect: Dialect,
    base: Url,
    headers: HeaderMap,
    /// Whether it is the server of the company that defined the dialect.
    is_vendor: bool,
}

/// What a server is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Generate {
        stream: bool,
    },
    /// OpenAI's Responses alone have it.
    Compact,
    CountTokens,
}

/// Headers that belong to one connection, to the gateway itself, or to a key: with a wrong account in them, the server
/// rejects the real key.
const OWN_HEADERS: [&str; 21] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "openai-organization",
    "openai-project",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
    "x-goog-api-key",
    "x-goog-user-project",
];

impl Server {
    pub(crate) fn new(upstream: &Upstream) -> Result<Self, GatewayError> {
        let refused = || GatewayError::Url { url: shown_url(&upstream.base_url) };
        let mut base = Url::parse(upstream.base_url.trim()).map_err(|_| refused())?;
        if !["http", "https"].contains(&base.scheme()) || !base.has_host() {
            return Err(refused());
        }
        if base.path() == "/" {
            base.set_path(if upstream.dialect == Dialect::Gemini { "/v1beta" } else { "/v1" });
        }
        let vendor = match upstream.dialect {
            Dialect::Chat | Dialect::Responses => "api.openai.com",
            Dialect::Messages => "api.anthropic.com",
            Dialect::Gemini => "generativelanguage.googleapis.com",
        };
        let is_vendor = base.host_str() == Some(vendor);
        let mut headers = HeaderMap::new();
        if let Some(key) = &upstream.key {
            let (name, value) = match upstream.dialect {
                Dialect::Chat | Dialect::Responses => {
                    ("authorization", Cow::Owned(format!("Bearer {}", key.expose_secret())))
                }
                Dialect::Messages => ("x-api-key", Cow::Borrowed(key.expose_secret())),
                Dialect::Gemini => ("x-goog-api-key", Cow::Borrowed(key.expose_secret())),
            };
            insert(&mut headers, name, &value)?;
        }
        for (name, value) in &upstream.headers {
            insert(&mut headers, name, value.expose_secret())?;
        }
        Ok(Self { dialect: upstream.dialect, base, headers, is_vendor })
    }

    pub(crate) fn url(&self, operation: Operation, model: &str, query: Option<&str>) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty();
            match (self.dialect, operation) {
                (Dialect::Chat, _) => path.extend(["chat", "completions"]),
                (Dialect::Responses, Operation::Generate { .. }) => path.push("responses"),
                (Dialect::Responses, Operation::Compact) => path.extend(["responses", "compact"]),
                (Dialect::Responses, Operation::CountTokens) => path.extend(["responses", "input_tokens"]),
                (Dialect::Messages, Operation::Generate { .. } | Operation::Compact) => path.push("messages"),
                (Dialect::Messages, Operation::CountTokens) => path.extend(["messages", "count_tokens"]),
                (Dialect::Gemini, operation) => {
                    let action = match operation {
                        Operation::Generate { stream: false } | Operation::Compact => "generateContent",
                        Operation::Generate { stream: true } => "streamGenerateContent",
                        Operation::CountTokens => "countTokens",
                    };
                    path.extend(["models", &format!("{model}:{action}")])
                }
            };
        }
        // The token of the agent may be in the query.
        let kept =
            query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("key="));
        let kept: Vec<&str> = kept.chain(self.base.query()).collect();
        url.set_query((!kept.is_empty()).then(|| kept.join("&")).as_deref());
        url
    }

    /// The headers of a request: those of the agent without its token, and the real key.
    pub(crate) fn headers(&self, of_agent: &HeaderMap, same_dialect: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if same_dialect {
            for (name, value) in of_agent {
                let text = name.as_str();
                let of_vendor = text.starts_with("x-stainless-") || text.starts_with("x-codex-");
                if !OWN_HEADERS.contains(&text)
                    && !text.starts_with("x-forwarded-")
                    && (self.is_vendor || !of_vendor)
                {
                    headers.append(name, value.clone());
                }
            }
        }
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        if self.dialect == Dialect::Messages && !headers.contains_key("anthropic-version") {
            headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        }
        headers.extend(self.headers.clone());
        headers
    }

    /// The address without credentials.
    pub(crate) fn shown(&self) -> String {
        shown_url(self.base.as_str())
    }
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), GatewayError> {
    let refused = || GatewayError::Header { name: name.to_owned() };
    let known = HeaderName::try_from(name).map_err(|_| refused())?;
    let mut value = HeaderValue::try_from(value).map_err(|_| refused())?;
    value.set_sensitive(true);
    headers.insert(known, value);
    Ok(())
}

/// The headers of an upstream's response that the agent gets.
pub(crate) fn response_headers(of_upstream: &HeaderMap) -> HeaderMap {
    const KEPT: [&str; 6] =
        ["content-type", "retry-after", "retry-after-ms", "request-id", "x-request-id", "x-should-retry"];
    let prefixes = ["anthropic-", "openai-", "x-ratelimit-"];
    let kept = |name: &str| {
        KEPT.contains(&name)
            || (name != "openai-organization" && name != "anthropic-organization-id")
                && prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    let kept = of_upstream.iter().filter(|(name, _)| kept(name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// What a failed response means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: CallErrorKind,
    /// Whether the same request may succeed later.
    pub(crate) is_temporary: bool,
    /// When, if the server says so.
    pub(crate) after: Option<Duration>,
}

/// Judges a response that is an error.
pub(crate) fn judge(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Verdict {
    let kind = match status.as_u16() {
        _ if rejects_key(status, body) => CallErrorKind::Unauthorized,
        402 | 429 => CallErrorKind::RateLimited,
        400 if has_no_credit(body) => CallErrorKind::RateLimited,
        400 | 413 if is_overlong(&String::from_utf8_lossy(body)) => CallErrorKind::ContextLength,
        400..=499 => CallErrorKind::Refused,
        _ => CallErrorKind::UpstreamFailed,
    };
    let should_retry = headers.get("x-should-retry").and_then(|value| value.to_str().ok());
    let no_quota = || body.windows(18).any(|word| word == b"insufficient_quota");
    let is_temporary = match (status.as_u16(), should_retry) {
        (_, Some("false")) => false,
        (429, _) => !no_quota(),
        (408 | 409 | 500..=599, _) => status != StatusCode::NOT_IMPLEMENTED,
        (_, said) => said == Some("true"),
    };
    let after = retry_after(headers, Timestamp::now()).or_else(|| retry_delay(body));
    Verdict { kind, is_temporary, after }
}

/// Whether the account has no credit left, which Anthropic reports with the status of an invalid request.
fn has_no_credit(body: &[u8]) -> bool {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    body["error"]["message"]
        .as_str()
        .is_some_and(|message| message.starts_with("Your credit balance is too low"))
}

/// How long Google asks to wait, which it writes into the body: `"retryDelay": "34.5s"`.
fn retry_delay(body: &[u8]) -> Option<Duration> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let error = body.get("error").or_else(|| body.get(0)?.get("error"))?;
    let delay = error["details"].as_array()?.iter().find_map(|detail| detail["retryDelay"].as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_kind_of_a_failure_comes_from_its_status_and_body() {
        let error = |message: &str| json!({"error": {"message": message}}).to_string();
        for (status, body, kind) in [
            (400, error("no such field"), CallErrorKind::Refused),
            (400, error("prompt is too long: 9 tokens > 8 maximum"), CallErrorKind::ContextLength),
            (400, error("This model's maximum context length is 8 tokens."), CallErrorKind::ContextLength),
            (413, error("request_too_large"), CallErrorKind::ContextLength),
            (413, error("no"), CallErrorKind::Refused),
            (400, error("Your credit balance is too low to access the API."), CallErrorKind::RateLimited),
            (400, error("`Your credit balance is too low` is not a role"), CallErrorKind::Refused),
            (402, error("Insufficient Balance"), CallErrorKind::RateLimited),
            (403, error("no"), CallErrorKind::Unauthorized),
            (429, error("prompt is too long"), CallErrorKind::RateLimited),
            (500, error("prompt is too long"), CallErrorKind::UpstreamFailed),
        ] {
            let verdict = judge(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body.as_bytes());
            assert_eq!(verdict.kind, kind, "{status} {body}");
        }
    }

    #[test]
    fn the_delay_that_google_asks_for_is_read_from_the_body() {
        let error = |delay: &str| {
            let info = json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay});
            json!({"error": {"code": 429, "message": "wait", "details": [{"@type": "other"}, info]}})
        };
        for (body, seconds) in [
            (error("34.5s"), Some(34.5)),
            (json!([error("2s")]), Some(2.0)),
            (error("soon"), None),
            (error("-1s"), None),
            (json!({"error": "wait"}), None),
            (json!([]), None),
        ] {
            let verdict =
                judge(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new(), body.to_string().as_bytes());
            assert_eq!(verdict.after.map(|after| after.as_secs_f64()), seconds, "{body}");
        }
        let header = HeaderMap::from_iter([("retry-after".parse().unwrap(), "1".parse().unwrap())]);
        let verdict = judge(StatusCode::TOO_MANY_REQUESTS, &header, error("34s").to_string().as_bytes());
        assert_eq!(verdict.after, Some(Duration::from_secs(1)));
    }
}
