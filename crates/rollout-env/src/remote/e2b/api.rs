//! Requests to E2B's API, and what its answers mean.

use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use secrecy::ExposeSecret as _;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value as Json;

use super::{
    super::{CloudError, backend::retry_after},
    access::Access,
};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long an answer may take. Creations include the start of the sandbox.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(80);

/// The most characters of an error's text.
const MOST_TEXT: usize = 500;

/// The words of the answer to a creation above the account's number of sandboxes.
const QUOTA: &str = "maximum number of concurrent";

/// A client of the API.
pub(super) struct Api {
    client: Client,
    pub(super) access: Access,
}

/// The body of an error.
#[derive(Deserialize)]
struct ApiError {
    message: String,
}

impl Api {
    pub(super) fn new(access: Access) -> Self {
        // A client without special needs is always made.
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).build().unwrap_or_default();
        Self { client, access }
    }

    /// The client, for requests to other addresses.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.access.api))
            .header("X-API-Key", self.access.key.expose_secret())
            .timeout(ANSWER_TIMEOUT)
    }

    /// A request without a body.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CloudError> {
        let (answer, _) = self.page(path).await?;
        Ok(answer)
    }

    /// One page of a list, and the token of the next.
    pub(super) async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<(T, Option<String>), CloudError> {
        let answer = self.answer(self.request(Method::GET, path)).await?;
        let next = answer.headers().get("x-next-token").and_then(|token| token.to_str().ok());
        let next = next.filter(|token| !token.is_empty()).map(str::to_owned);
        Ok((decoded(answer).await?, next))
    }

    /// A request with a body. `key` makes it happen once, however often it is sent.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Json,
        key: Option<&str>,
    ) -> Result<T, CloudError> {
        let mut request = self.request(Method::POST, path).json(body);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        decoded(self.answer(request).await?).await
    }

    /// A request whose answer has no body.
    pub(super) async fn tell(
        &self,
        method: Method,
        path: &str,
        body: Option<&Json>,
    ) -> Result<(), CloudError> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.answer(request).await.map(drop)
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Response, CloudError> {
        let answer = request.send().await.map_err(|error| unanswered(&error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let hint = retry_after(answer.headers());
        let text = answer.bytes().await.unwrap_or_default();
        let text = serde_json::from_slice::<ApiError>(&text)
            .map_or_else(|_| String::from_utf8_lossy(&text).into_owned(), |error| error.message);
        let text: String = text.trim().chars().take(MOST_TEXT).collect();
        // A server that repeats what it was sent must not put the key into a record.
        let text = text.replace(self.access.key.expose_secret(), "…");
        Err(meaning(status, text, hint))
    }
}

async fn decoded<T: DeserializeOwned>(answer: Response) -> Result<T, CloudError> {
    let text = answer.bytes().await.map_err(|error| unanswered(&error))?;
    serde_json::from_slice(&text)
        .map_err(|error| CloudError::Refused(format!("unexpected answer of E2B: {error}")))
}

/// What an answer means that is not a success.
fn meaning(status: StatusCode, text: String, retry_after: Option<Duration>) -> CloudError {
    let said = if text.is_empty() { format!("E2B answered {status}") } else { format!("E2B: {text}") };
    match status {
        StatusCode::UNAUTHORIZED => CloudError::Unauthorized(said),
        StatusCode::TOO_MANY_REQUESTS if text.to_lowercase().contains(QUOTA) => CloudError::Quota(said),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::SERVICE_UNAVAILABLE => CloudError::Busy { text: said, retry_after },
        StatusCode::NOT_FOUND => CloudError::Missing(said),
        // A gateway does not know what happened behind it.
        status if status.is_server_error() => CloudError::Unanswered(said),
        _ => CloudError::Refused(said),
    }
}

/// What a request without an answer means.
pub(super) fn unanswered(error: &reqwest::Error) -> CloudError {
    let text = format!("E2B does not answer: {}", rollout_core::text::chain(error));
    if error.is_connect() {
        CloudError::Busy { text, retry_after: None }
    } else {
        CloudError::Unanswered(text)
    }
}

/// A value for a query.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_their_meaning() {
        let of = |status: u16, text: &str| {
            meaning(StatusCode::from_u16(status).unwrap(), text.to_owned(), Some(Duration::from_secs(2)))
        };
        assert!(matches!(of(401, "no"), CloudError::Unauthorized(_)));
        assert!(matches!(of(429, "slow down"), CloudError::Busy { retry_after: Some(_), .. }));
        let quota = "You have reached the maximum number of concurrent E2B sandboxes (20)";
        assert!(matches!(of(429, quota), CloudError::Quota(_)));
        assert!(matches!(of(503, ""), CloudError::Busy { .. }));
        assert!(matches!(of(504, ""), CloudError::Unanswered(_)));
        assert!(matches!(of(404, ""), CloudError::Missing(_)));
        assert!(matches!(of(400, ""), CloudError::Refused(_)));
    }

    #[test]
    fn values_of_queries_are_encoded() {
        assert_eq!(encoded("a b=ü"), "a%20b%3D%C3%BC");
    }
}
