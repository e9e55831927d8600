//! Requests to the API of Daytona, and what its errors mean.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url, header::HeaderMap};
use rollout_core::{parse_retry_after, text::chain};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{super::CloudError, credentials::Credentials};

/// How long a connection may take to open.
const CONNECTING: Duration = Duration::from_secs(15);

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(60);

/// The longest text of an error that is shown.
const MAX_TEXT: usize = 600;

/// A client of the API, and of the toolbox inside sandboxes.
pub(super) struct Api {
    client: Client,
    pub(super) credentials: Arc<Credentials>,
}

/// A sandbox, as far as it matters.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxAnswer {
    pub(super) id: String,
    #[serde(default)]
    pub(super) state: Option<String>,
    #[serde(default)]
    pub(super) labels: HashMap<String, String>,
    #[serde(default)]
    pub(super) error_reason: Option<String>,
    #[serde(default)]
    pub(super) auto_destroy_at: Option<String>,
    #[serde(default)]
    pub(super) toolbox_proxy_url: Option<String>,
}

impl SandboxAnswer {
    /// Whether it is gone, or will be without another request.
    pub(super) fn is_deleted(&self) -> bool {
        matches!(self.state.as_deref(), Some("destroyed" | "destroying"))
    }
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxPage {
    pub(super) items: Vec<SandboxAnswer>,
    #[serde(default)]
    pub(super) next_cursor: Option<String>,
}

impl Api {
    pub(super) fn new(credentials: Arc<Credentials>) -> Self {
        let client = Client::builder().connect_timeout(CONNECTING).timeout(REQUEST).build();
        // Only invalid settings of the TLS library are an error, and there are none.
        Self { client: client.unwrap_or_default(), credentials }
    }

    /// A request to the API. `path` begins with a slash.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.request_to(method, &format!("{}{path}", self.credentials.url))
    }

    /// A request with the key to another address that the API named.
    pub(super) fn request_to(&self, method: Method, url: &str) -> RequestBuilder {
        self.client.request(method, url).headers(self.credentials.headers())
    }

    /// A request without the key.
    pub(super) fn plain(&self, method: Method, url: Url) -> RequestBuilder {
        self.client.request(method, url)
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CloudError> {
        self.read(self.request(Method::GET, path), &format!("GET {path}")).await
    }

    /// The address of a list, whose parameters are encoded.
    pub(super) fn with_query(&self, path: &str, query: &[(&str, &str)]) -> Result<Url, CloudError> {
        let url = format!("{}{path}", self.credentials.url);
        let mut url = Url::parse(&url)
            .map_err(|error| CloudError::Refused(format!("the address {url} is invalid: {error}")))?;
        url.query_pairs_mut().extend_pairs(query);
        Ok(url)
    }

    /// Sends a request, and reads the JSON of its answer. `what` names it in errors.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        what: &str,
    ) -> Result<T, CloudError> {
        parsed(&self.text(request, what).await?, what)
    }

    /// Sends a request, and reads the text of its answer.
    pub(super) async fn text(&self, request: RequestBuilder, what: &str) -> Result<String, CloudError> {
        let response = self.send(request, what).await?;
        response.text().await.map_err(|error| unanswered(what, error))
    }

    /// Sends a request; an answer that is no success is an error.
    pub(super) async fn send(&self, request: RequestBuilder, what: &str) -> Result<Response, CloudError> {
        let response = self.answer(request, what).await?;
        self.accept(response, what).await
    }

    /// Sends a request that may conflict with something that exists; `None` if it does.
    pub(super) async fn create<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        what: &str,
    ) -> Result<Option<T>, CloudError> {
        let response = self.answer(request, what).await?;
        if response.status() == StatusCode::CONFLICT {
            return Ok(None);
        }
        let response = self.accept(response, what).await?;
        let text = response.text().await.map_err(|error| unanswered(what, error))?;
        parsed(&text, what).map(Some)
    }

    /// Sends a request, and returns any answer.
    async fn answer(&self, request: RequestBuilder, what: &str) -> Result<Response, CloudError> {
        match request.send().await {
            Ok(response) => Ok(response),
            Err(error) if error.is_connect() => {
                let text = format!("{what}: cannot connect: {}", chain(&error.without_url()));
                Err(CloudError::Busy { text, retry_after: None })
            }
            Err(error) => Err(unanswered(what, error)),
        }
    }

    /// Refuses an answer that is no success.
    async fn accept(&self, response: Response, what: &str) -> Result<Response, CloudError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let hint = retry_hint(response.headers());
        let text = response.text().await.unwrap_or_default();
        Err(meaning(status, hint, &self.credentials.without_secret(&message(&text)), what))
    }
}

/// Reads the JSON of an answer.
fn parsed<T: DeserializeOwned>(text: &str, what: &str) -> Result<T, CloudError> {
    // An answer without a body is `null` to callers that expect nothing.
    let text = if text.trim().is_empty() { "null" } else { text };
    serde_json::from_str(text)
        .map_err(|error| CloudError::Refused(format!("the answer to {what} is not understood: {error}")))
}

fn unanswered(what: &str, error: reqwest::Error) -> CloudError {
    CloudError::Unanswered(format!("{what}: no answer: {}", chain(&error.without_url())))
}

/// The message in the body of an error.
fn message(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let text = match (&parsed["message"], &parsed["error"]) {
        (Value::String(text), _) | (_, Value::String(text)) => text.clone(),
        (Value::Array(parts), _) => parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; "),
        _ => body.to_owned(),
    };
    text.trim().chars().take(MAX_TEXT).collect()
}

/// The shortest pause that the headers ask for. Their names have the name of a limit at the end.
fn retry_hint(headers: &HeaderMap) -> Option<Duration> {
    let hints = headers.iter().filter(|(name, _)| name.as_str().starts_with("retry-after"));
    hints.filter_map(|(_, value)| parse_retry_after(value.to_str().ok()?, Timestamp::now())).max()
}

/// What an answer means that is no success.
fn meaning(status: StatusCode, hint: Option<Duration>, text: &str, what: &str) -> CloudError {
    let said = format!("{what} was answered with {}: {text}", status.as_u16());
    match status.as_u16() {
        401 => CloudError::Unauthorized(said),
        400 | 403 if is_quota(text) => CloudError::Quota(said),
        404 => CloudError::Missing(said),
        // The service changes the state of the thing at the moment.
        409 | 423 => CloudError::Busy { text: said, retry_after: hint },
        429 | 503 => CloudError::Busy { text: said, retry_after: hint },
        408 | 500.. => CloudError::Unanswered(said),
        _ => CloudError::Refused(said),
    }
}

/// Whether a message is about the resources of the whole organization, which become free again.
fn is_quota(text: &str) -> bool {
    let text = text.to_lowercase();
    let total =
        ["total cpu", "total memory", "total disk", "total gpu"].iter().any(|what| text.contains(what));
    (total && text.contains("limit exceeded"))
        || text.contains("quota exceeded")
        || text.contains("limit reached")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(status: u16, text: &str) -> &'static str {
        match meaning(StatusCode::from_u16(status).unwrap(), None, text, "POST /sandbox") {
            CloudError::Busy { .. } => "busy",
            CloudError::Unanswered(_) => "unanswered",
            CloudError::Unauthorized(_) => "unauthorized",
            CloudError::Quota(_) => "quota",
            CloudError::Refused(_) => "refused",
            CloudError::Missing(_) => "missing",
            CloudError::Build(_) | CloudError::NoImage(_) => "image",
        }
    }

    #[test]
    fn answers_have_a_meaning() {
        for (status, text, expected) in [
            (401, "Invalid credentials", "unauthorized"),
            (403, "Forbidden resource", "refused"),
            (403, "Total CPU limit exceeded. Maximum allowed: 10.", "quota"),
            (400, "Total disk limit exceeded. Maximum allowed: 30GiB.", "quota"),
            (403, "Snapshot quota exceeded. Maximum allowed: 100", "quota"),
            (400, "CPU request 8 exceeds maximum allowed per sandbox (4).", "refused"),
            (404, "Sandbox not found", "missing"),
            (409, "Sandbox state change in progress", "busy"),
            (429, "ThrottlerException: Too Many Requests", "busy"),
            (500, "Internal server error", "unanswered"),
            (502, "", "unanswered"),
            (503, "", "busy"),
        ] {
            assert_eq!(kind(status, text), expected, "{status} {text}");
        }
    }

    #[test]
    fn hints_are_read_whatever_the_limit_is_called() {
        let mut headers = HeaderMap::new();
        assert_eq!(retry_hint(&headers), None);
        headers.insert("retry-after-sandbox-create", "7".parse().unwrap());
        assert_eq!(retry_hint(&headers), Some(Duration::from_secs(7)));
    }

    #[test]
    fn messages_are_found_in_all_forms_of_errors() {
        assert_eq!(message(r#"{"statusCode": 400, "message": "no", "error": "Bad Request"}"#), "no");
        assert_eq!(message(r#"{"message": ["a", "b"], "error": null}"#), "a; b");
        assert_eq!(message(r#"{"error": "session not found"}"#), "session not found");
        assert_eq!(message("<html>"), "<html>");
    }
}
