//! A client for the API of machines: one request, one answer, and what its errors mean.

use std::time::Duration;

use reqwest::{Client, Method, Response, StatusCode, header};
use rollout_core::text::chain;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::access::Access;
use crate::remote::backend::{CloudError, retry_after};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(15);

/// How long an answer may take. Fly creates a machine before it answers.
const ANSWER: Duration = Duration::from_secs(75);

/// The longest part of an error that is quoted.
const MAX_QUOTE: usize = 500;

/// A client for the API.
pub(super) struct Api {
    client: Client,
    access: Access,
}

/// The body of an error.
#[derive(Debug, Default, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: String,
    #[serde(default)]
    status: String,
}

impl Api {
    pub(super) fn new(access: Access) -> Self {
        let client = Client::builder()
            .connect_timeout(CONNECT)
            .timeout(ANSWER)
            .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
            .build();
        // Only a broken installation of certificates makes this fail; the default client reports that with each call.
        Self { client: client.unwrap_or_default(), access }
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Sends a request, and reads the answer as JSON. `path` starts after `/v1`.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<T, CloudError> {
        let what = format!("{method} {path}");
        let answer = self.send(method, path, query, body, &what).await?;
        answer.json().await.map_err(|error| {
            CloudError::Unanswered(format!("{what}: the answer is incomplete: {}", chain(&error)))
        })
    }

    /// Sends a request whose answer does not matter.
    pub(super) async fn order(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<(), CloudError> {
        let what = format!("{method} {path}");
        self.send(method, path, query, body, &what).await.map(drop)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
        what: &str,
    ) -> Result<Response, CloudError> {
        let url = address(&self.access.api, path, query);
        let url = url.ok_or_else(|| CloudError::Refused(format!("{:?} is no URL", self.access.api)))?;
        let mut value =
            header::HeaderValue::from_str(self.access.authorization().expose_secret()).map_err(|_| {
                CloudError::Unauthorized(
                    "the token contains characters that are not allowed in an HTTP header".to_owned(),
                )
            })?;
        value.set_sensitive(true);
        let mut request = self.client.request(method, url).header(header::AUTHORIZATION, value);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(|error| {
            let is_connect = error.is_connect();
            let text = format!("{what}: {}", chain(&error.without_url()));
            // Without a connection, nothing was asked.
            if is_connect {
                CloudError::Busy { text, retry_after: None }
            } else {
                CloudError::Unanswered(text)
            }
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let retry_after = retry_after(answer.headers());
        let text = answer.text().await.unwrap_or_default();
        let body: ErrorBody = serde_json::from_str(&text)
            .unwrap_or_else(|_| ErrorBody { error: text.trim().to_owned(), status: String::new() });
        let quoted: String = self.access.without_token(&body.error).chars().take(MAX_QUOTE).collect();
        Err(meaning(status, &body.status, quoted, what, retry_after))
    }
}

/// The address of a call. Values are encoded.
fn address(base: &str, path: &str, query: &[(&str, &str)]) -> Option<reqwest::Url> {
    let mut url: reqwest::Url = format!("{base}/v1{path}").parse().ok()?;
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    Some(url)
}

/// What an error means. `kind` is the word that the API gives besides the text.
fn meaning(
    status: StatusCode,
    kind: &str,
    error: String,
    what: &str,
    retry_after: Option<Duration>,
) -> CloudError {
    let error = if error.is_empty() { format!("status {}", status.as_u16()) } else { error };
    let text = format!("{what}: {error}");
    let has = |words: &[&str]| words.iter().any(|word| error.to_ascii_lowercase().contains(word));
    if kind == "insufficient_capacity"
        || status == StatusCode::CONFLICT && has(&["insufficient", "no capacity"])
    {
        let text = format!("{text}; Fly has no room in the region: `provider_config.region` names another");
        return CloudError::Busy { text, retry_after };
    }
    match status.as_u16() {
        401 | 403 => CloudError::Unauthorized(text),
        404 | 410 => CloudError::Missing(text),
        429 => CloudError::Busy { text, retry_after },
        // The machine of an earlier attempt has the name. It is found by its label.
        409 if has(&["unique machine name", "already_exists", "already exists"]) => {
            CloudError::Unanswered(text)
        }
        409 => CloudError::Busy { text, retry_after },
        408 => CloudError::Unanswered(text),
        status if status >= 500 => CloudError::Unanswered(text),
        _ if has(&["quota", "limit of machines", "machine limit", "maximum number"]) => {
            CloudError::Quota(text)
        }
        _ if has(&["manifest", "image not found", "failed to pull", "could not resolve image"]) => {
            CloudError::NoImage(text)
        }
        _ => CloudError::Refused(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, kind: &str, error: &str) -> CloudError {
        let status = StatusCode::from_u16(status).unwrap();
        meaning(status, kind, error.to_owned(), "POST /x", Some(Duration::from_secs(7)))
    }

    #[test]
    fn a_busy_server_may_name_a_date() {
        let date = "Fri, 01 Jan 2500 00:00:00 GMT".parse().unwrap();
        let wait = retry_after(&header::HeaderMap::from_iter([(header::RETRY_AFTER, date)]));
        assert!(wait.unwrap() > Duration::from_secs(3600), "{wait:?}");
    }

    #[test]
    fn errors_have_a_meaning() {
        let hint = Some(Duration::from_secs(7));
        assert!(
            matches!(of(429, "", "slow down"), CloudError::Busy { retry_after, .. } if retry_after == hint)
        );
        assert!(matches!(of(422, "insufficient_capacity", "no room"), CloudError::Busy { .. }));
        assert!(matches!(of(409, "", "insufficient memory available"), CloudError::Busy { .. }));
        let name =
            "already_exists: unique machine name violation, machine ID 1 already exists with name \"x\"";
        assert!(matches!(of(409, "", name), CloudError::Unanswered(_)));
        assert!(matches!(of(408, "", "deadline_exceeded"), CloudError::Unanswered(_)));
        assert!(matches!(of(503, "", ""), CloudError::Unanswered(_)));
        assert!(matches!(of(401, "", "unauthorized"), CloudError::Unauthorized(_)));
        assert!(matches!(of(404, "", "machine not found"), CloudError::Missing(_)));
        assert!(matches!(of(422, "", "you reached the maximum number of machines"), CloudError::Quota(_)));
        assert!(matches!(of(400, "", "failed to get manifest r/a:1"), CloudError::NoImage(_)));
        assert!(matches!(of(400, "", "invalid_argument: bad"), CloudError::Refused(_)));
        assert_eq!(of(400, "", "").to_string(), "POST /x: status 400");
    }

    #[test]
    fn values_of_queries_are_encoded() {
        let url = address("http://h", "/apps/a/machines", &[("metadata.rollout-key", "a&b")]).unwrap();
        assert_eq!(url.as_str(), "http://h/v1/apps/a/machines?metadata.rollout-key=a%26b");
    }
}
