//! Requests to the hub, with authentication, retries and checks of redirects.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, header};
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    HubError,
    commit::FileChanged,
    connection::{HubConnection, HubConnectionError, MAX_HUB_ANSWER},
};
use rollout_core::{parse_retry_after, redact::Redactor, text::cut};

/// The timeout of an answer, in addition to the time for sending data.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The minimum speed of sending, in bytes per second.
const LEAST_SPEED: u64 = 32 << 10;

/// The maximum number of tries of a request.
const TRIES: u32 = 6;

/// The delay before the second try. It doubles for each further try.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The maximum delay that the hub may request.
const MAX_WAIT: Duration = Duration::from_secs(120);

const MAX_REDIRECTS: u32 = 5;

/// A hub and a token for it.
#[derive(Debug, Clone)]
pub struct Hub {
    connection: HubConnection,
}

impl Hub {
    /// Creates a client for a hub, with a token that has write access. Nothing is sent yet.
    pub fn new(endpoint: &str, token: impl Into<SecretString>) -> Result<Self, HubError> {
        let connection = HubConnection::new(endpoint, Some(&token.into()), |builder| builder);
        let connection = connection.map_err(|error| match error {
            HubConnectionError::Endpoint(shown) => HubError::Endpoint(short(&shown)),
            HubConnectionError::Token => HubError::NoToken,
            HubConnectionError::Client(source) => HubError::Setup(source),
        })?;
        if connection.token().is_some() { Ok(Self { connection }) } else { Err(HubError::NoToken) }
    }

    /// Returns a URL on the hub.
    pub(super) fn url(&self, path: &str) -> Url {
        self.connection.url(path.split('/'))
    }

    /// Parses an upload URL from the hub.
    pub(super) fn given(&self, action: &str, href: &str) -> Result<Url, HubError> {
        let url = Url::parse(href)
            .ok()
            .filter(Url::has_host)
            .ok_or_else(|| HubError::strange(action, "an invalid URL"))?;
        match self.connection.allows(&url) {
            true => Ok(url),
            false => Err(HubError::Elsewhere { action: action.to_owned(), to: origin(&url) }),
        }
    }

    /// Sends a request, and retries it while the failure may be temporary. The token is sent only to the hub itself.
    pub(super) async fn send(
        &self,
        action: &str,
        method: &Method,
        url: Url,
        build: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, HubError> {
        let action = || action.to_owned();
        let (mut url, mut wait, mut tries, mut redirects) = (url, FIRST_WAIT, 1, 0);
        loop {
            let is_hub = self.connection.has(&url);
            let request = self.connection.request(method.clone(), url.clone()).timeout(ANSWER_TIMEOUT);
            let pause = match build(request).send().await {
                Ok(answer) if is_hub && answer.status().is_redirection() => {
                    let to = answer
                        .headers()
                        .get(header::LOCATION)
                        .and_then(|to| url.join(to.to_str().ok()?).ok());
                    let Some(to) = to else { return Err(self.refused(&action(), answer).await) };
                    redirects += 1;
                    if !self.connection.has(&to) || redirects > MAX_REDIRECTS {
                        return Err(HubError::Elsewhere { action: action(), to: origin(&to) });
                    }
                    url = to;
                    continue;
                }
                Ok(answer) if !is_passing(answer.status()) => return Ok(answer),
                Ok(answer) => {
                    let after = retry_after(&answer);
                    if let Some(after) = after.filter(|after| *after > MAX_WAIT) {
                        return Err(HubError::Busy { action: action(), after });
                    }
                    if tries == TRIES {
                        return Err(self.refused(&action(), answer).await);
                    }
                    after
                }
                Err(error) => {
                    let error = error.without_url();
                    if let Some(changed) = FileChanged::cause_of(&error) {
                        return Err(HubError::Changed(changed.0.clone()));
                    }
                    if tries == TRIES || error.is_builder() {
                        return Err(HubError::Unreachable { action: action(), tries, source: error });
                    }
                    None
                }
            };
            tokio::time::sleep(pause.unwrap_or(wait)).await;
            (tries, wait) = (tries + 1, wait * 2);
        }
    }

    /// Sends a request, and requires a success status.
    pub(super) async fn ask(
        &self,
        action: &str,
        method: Method,
        url: Url,
        build: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, HubError> {
        let answer = self.send(action, &method, url, build).await?;
        if answer.status().is_success() { Ok(answer) } else { Err(self.refused(action, answer).await) }
    }

    /// Sends a request, and parses the JSON answer.
    pub(super) async fn json<T: DeserializeOwned>(
        &self,
        action: &str,
        method: Method,
        url: Url,
        build: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<T, HubError> {
        let answer = self.ask(action, method, url, build).await?;
        let body = read(answer, MAX_HUB_ANSWER).await.map_err(|source| HubError::Unreachable {
            action: action.to_owned(),
            tries: 1,
            source: source.without_url(),
        })?;
        serde_json::from_slice(&body).map_err(|error| HubError::strange(action, error.to_string()))
    }

    /// Converts an error response to an error.
    pub(super) async fn refused(&self, action: &str, answer: Response) -> HubError {
        let (action, status) = (action.to_owned(), answer.status());
        let body = read(answer, 64 << 10).await.unwrap_or_default();
        let text = String::from_utf8_lossy(&body);
        let reported = serde_json::from_str::<Value>(&text).ok();
        let reported = reported.as_ref().and_then(|value| value.get("error")?.as_str()).unwrap_or(&text);
        let said = short(&Redactor::new(self.connection.token()).text(reported));
        let said = if said.is_empty() { said } else { format!(": {said}") };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => HubError::Unauthorized { action, said },
            _ => HubError::Refused { action, status, said },
        }
    }
}

/// Returns the timeout for sending this many bytes and receiving the answer.
pub(super) fn time_for(bytes: u64) -> Duration {
    ANSWER_TIMEOUT + Duration::from_secs(bytes / LEAST_SPEED)
}

/// Whether a failure with this status may be temporary.
fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500..)
}

/// Returns the delay that the hub requests.
fn retry_after(answer: &Response) -> Option<Duration> {
    parse_retry_after(answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?, jiff::Timestamp::now())
}

/// Returns the start of a server's message on one line.
pub(super) fn short(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    let words =
        text.split(|char: char| char.is_whitespace() || char.is_control()).filter(|word| !word.is_empty());
    cut(&words.collect::<Vec<_>>().join(" "), MAX_CHARS)
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

async fn read(mut answer: Response, limit: usize) -> reqwest::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        let room = limit - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == limit {
            break;
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_over_encrypted_connections_or_nowhere() {
        for endpoint in
            ["https://huggingface.co", "https://example.org/hub/", "http://127.0.0.1:80", "http://localhost"]
        {
            assert!(Hub::new(endpoint, "hf_x").is_ok(), "{endpoint}");
        }
        for endpoint in [
            "http://huggingface.co",
            "ftp://x",
            "file:///x",
            "huggingface.co",
            "",
            "https://u:p@x",
            "https://x?y",
        ] {
            assert!(matches!(Hub::new(endpoint, "hf_x"), Err(HubError::Endpoint(_))), "{endpoint}");
        }
    }

    #[test]
    fn an_invalid_token_is_rejected_and_tokens_are_not_shown() {
        for token in ["", " \n", "hf_a b", "hf_ü"] {
            assert!(matches!(Hub::new("https://huggingface.co", token), Err(HubError::NoToken)), "{token:?}");
        }
        let hub = Hub::new("https://huggingface.co", "hf_secret\n").unwrap();
        assert!(!format!("{hub:?}").contains("hf_secret"));
    }

    #[test]
    fn files_go_nowhere_less_safe_than_the_hub() {
        let hub = Hub::new("https://huggingface.co", "hf_x").unwrap();
        assert!(hub.given("x", "https://storage.example/a?b=c").is_ok());
        assert!(matches!(hub.given("x", "http://storage.example/a"), Err(HubError::Elsewhere { .. })));
        assert!(matches!(hub.given("x", "file:///etc/passwd"), Err(HubError::Strange { .. })));
        assert!(matches!(hub.given("x", "/relative"), Err(HubError::Strange { .. })));
    }
}
