//! Requests to the hub, with authentication, retries and checks of redirects.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, header, redirect};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{HubError, commit::FileChanged};
use rollout_core::{address::is_loopback, redact::Redactor, text::cut};

/// The connection timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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

/// The maximum size of an answer.
const MAX_ANSWER: usize = 64 << 20;

/// A hub and a token for it.
#[derive(Debug, Clone)]
pub struct Hub {
    http: reqwest::Client,
    endpoint: Url,
    token: SecretString,
}

impl Hub {
    /// Creates a client for a hub, with a token that has write access. Nothing is sent yet.
    pub fn new(endpoint: &str, token: impl Into<SecretString>) -> Result<Self, HubError> {
        let token: SecretString = token.into();
        let token = SecretString::from(token.expose_secret().trim());
        if token.expose_secret().is_empty()
            || !token.expose_secret().bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(HubError::NoToken);
        }
        let url = Url::parse(endpoint).ok().filter(|url| {
            let bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
            bare && url.has_host()
                && (url.scheme() == "https" || url.scheme() == "http" && is_loopback(endpoint))
        });
        let Some(endpoint) = url else {
            // The user part of a URL may contain a password, and its query a key.
            let shown =
                endpoint.rsplit('@').next().and_then(|rest| rest.split('?').next()).unwrap_or_default();
            return Err(HubError::Endpoint(short(shown)));
        };
        let builder = match endpoint.scheme() {
            // Plain HTTP is used only on loopback, and a proxy would send the token to another machine.
            "http" => reqwest::Client::builder().no_proxy(),
            _ => reqwest::Client::builder(),
        };
        let http = builder
            .connect_timeout(CONNECT_TIMEOUT)
            // A redirect would send the token to another host.
            .redirect(redirect::Policy::none())
            .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(HubError::Setup)?;
        Ok(Self { http, endpoint, token })
    }

    /// Returns a URL on the hub. The path must be escaped already.
    pub(super) fn url(&self, path: &str) -> Url {
        let mut url = self.endpoint.clone();
        url.set_path(&format!("{}/{path}", self.endpoint.path().trim_end_matches('/')));
        url
    }

    /// Parses an upload URL from the hub.
    pub(super) fn given(&self, action: &str, href: &str) -> Result<Url, HubError> {
        let url = Url::parse(href)
            .ok()
            .filter(Url::has_host)
            .ok_or_else(|| HubError::strange(action, "an invalid URL"))?;
        match url.scheme() {
            "https" => Ok(url),
            "http" if self.endpoint.scheme() == "http" => Ok(url),
            _ => Err(HubError::Elsewhere { action: action.to_owned(), to: origin(&url) }),
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
            let is_hub = url.origin() == self.endpoint.origin();
            let mut request = self.http.request(method.clone(), url.clone()).timeout(ANSWER_TIMEOUT);
            if is_hub {
                request = request.bearer_auth(self.token.expose_secret());
            }
            let pause = match build(request).send().await {
                Ok(answer) if is_hub && answer.status().is_redirection() => {
                    let to = answer
                        .headers()
                        .get(header::LOCATION)
                        .and_then(|to| url.join(to.to_str().ok()?).ok());
                    let Some(to) = to else { return Err(self.refused(&action(), answer).await) };
                    redirects += 1;
                    if to.origin() != self.endpoint.origin() || redirects > MAX_REDIRECTS {
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
        let body = read(answer, MAX_ANSWER).await.map_err(|source| HubError::Unreachable {
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
        let said = short(&Redactor::new([self.token.expose_secret()]).text(reported));
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

/// Returns the delay that the hub requests, given in seconds or as a date.
fn retry_after(answer: &Response) -> Option<Duration> {
    let text = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = text.parse::<f64>().ok().or_else(|| {
        let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
        Some((date.as_second() - jiff::Timestamp::now().as_second()).max(0) as f64)
    })?;
    Duration::try_from_secs_f64(seconds).ok()
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
