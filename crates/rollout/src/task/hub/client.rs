//! Requests to a hub. The token is sent to the hub itself and to nothing that it redirects to.

use std::time::Duration;

use reqwest::{Client, Response, StatusCode, Url, header, redirect};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use super::{HubAccess, HubDataError};
use crate::download_client::without_secrets;
use rollout_core::address::is_loopback;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout between two parts of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

const MAX_REDIRECTS: usize = 5;

/// The maximum size of a description.
const MAX_ANSWER: usize = 64 << 20;

/// A client of one hub.
#[derive(Debug)]
pub(super) struct HubClient {
    http: Client,
    endpoint: Url,
    token: Option<SecretString>,
}

impl HubClient {
    pub(super) fn new(access: &HubAccess) -> Result<Self, HubDataError> {
        let text = access.endpoint.trim();
        let url = Url::parse(text).ok().filter(|url| {
            let bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
            bare && url.has_host() && (url.scheme() == "https" || url.scheme() == "http" && is_loopback(text))
        });
        let Some(endpoint) = url else {
            // The user part of a URL may contain a password, and its query a key.
            let shown = text.rsplit('@').next().and_then(|rest| rest.split('?').next()).unwrap_or_default();
            return Err(HubDataError::Endpoint(shown.to_owned()));
        };
        let token = access.token.as_ref().map(|token| SecretString::from(token.expose_secret().trim()));
        let token = token.filter(|token| !token.expose_secret().is_empty());
        if token
            .as_ref()
            .is_some_and(|token| !token.expose_secret().bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(HubDataError::Token);
        }
        let builder = match endpoint.scheme() {
            // Plain HTTP is used only on loopback, and a proxy would send the token to another machine.
            "http" => Client::builder().no_proxy(),
            _ => Client::builder(),
        };
        let http = builder
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(redirect::Policy::none())
            // The hash of a file is that of its bytes as they are sent.
            .no_gzip()
            .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(HubDataError::Client)?;
        Ok(Self { http, endpoint, token })
    }

    /// The base URL of the hub.
    pub(super) fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// A URL on the hub. The parts of its path are escaped.
    pub(super) fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    /// Sends a request for a file from a byte on, and follows redirects.
    pub(super) async fn get(&self, url: &Url, from: u64) -> Result<Response, HubDataError> {
        let shown = without_secrets(url);
        let mut next = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.http.get(next.clone());
            if let Some(token) = self.token.as_ref().filter(|_| next.origin() == self.endpoint.origin()) {
                request = request.bearer_auth(token.expose_secret());
            }
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let answer = request.send().await.map_err(|source| failed(&shown, source))?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let to = answer.headers().get(header::LOCATION);
            let to =
                to.and_then(|to| next.join(to.to_str().ok()?).ok()).ok_or_else(|| HubDataError::Strange {
                    url: shown.clone(),
                    reason: "a redirect without an address".to_owned(),
                })?;
            let is_safe = to.scheme() == "https" || to.scheme() == "http" && self.endpoint.scheme() == "http";
            if !is_safe || !to.has_host() {
                return Err(HubDataError::Redirect { url: shown, to: without_secrets(&to) });
            }
            next = to;
        }
        Err(HubDataError::Strange { url: shown, reason: "too many redirects".to_owned() })
    }

    /// The JSON at a URL, and the URL of the next page if there is one.
    pub(super) async fn json(&self, url: &Url) -> Result<(Value, Option<Url>), HubDataError> {
        let shown = without_secrets(url);
        let mut answer = success(&shown, self.get(url, 0).await?)?;
        let next = answer.headers().get(header::LINK).and_then(|link| next_page(url, link.to_str().ok()?));
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|source| failed(&shown, source))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(HubDataError::Strange { url: shown, reason: "it is too large".to_owned() });
            }
            body.extend_from_slice(&chunk);
        }
        let value = serde_json::from_slice(&body)
            .map_err(|error| HubDataError::Strange { url: shown, reason: format!("not JSON: {error}") })?;
        Ok((value, next.filter(|next| next.origin() == self.endpoint.origin())))
    }
}

pub(super) fn success(shown: &str, answer: Response) -> Result<Response, HubDataError> {
    match answer.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(answer),
        status => Err(HubDataError::Status { url: shown.to_owned(), status }),
    }
}

pub(super) fn failed(shown: &str, source: reqwest::Error) -> HubDataError {
    HubDataError::Failed { url: shown.to_owned(), source: source.without_url() }
}

/// The target of `<URL>; rel="next"`.
fn next_page(base: &Url, link: &str) -> Option<Url> {
    link.split(',').find_map(|part| {
        let (target, rest) = part.trim().strip_prefix('<')?.split_once('>')?;
        rest.contains("rel=\"next\"").then(|| base.join(target).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(endpoint: &str, token: Option<&str>) -> Result<HubClient, HubDataError> {
        HubClient::new(&HubAccess { endpoint: endpoint.to_owned(), token: token.map(Into::into) })
    }

    #[test]
    fn a_hub_is_asked_over_encrypted_connections_or_on_this_machine() {
        for endpoint in ["https://huggingface.co", "https://example.org/hub/", "http://127.0.0.1:80"] {
            assert!(client(endpoint, Some("hf_x\n")).is_ok(), "{endpoint}");
        }
        for endpoint in
            ["http://huggingface.co", "ftp://x", "huggingface.co", "", "https://u:p@x", "https://x?y"]
        {
            assert!(matches!(client(endpoint, None), Err(HubDataError::Endpoint(_))), "{endpoint}");
        }
        assert!(matches!(client("https://huggingface.co", Some("a b")), Err(HubDataError::Token)));
        let shown = format!("{:?}", client("https://huggingface.co", Some("hf_secret")).unwrap());
        assert!(!shown.contains("hf_secret"));
    }

    #[test]
    fn names_are_escaped_in_urls() {
        let url = client("https://example.org/hub/", None).unwrap().url(&["a b", "refs/x", "ü"]);
        assert_eq!(url.as_str(), "https://example.org/hub/a%20b/refs%2Fx/%C3%BC");
    }

    #[test]
    fn the_next_page_is_read_from_the_link() {
        let base = Url::parse("https://example.org/api/x?y=1").unwrap();
        let next = next_page(&base, r#"<https://example.org/api/x?cursor=2>; rel="next""#);
        assert_eq!(next.unwrap().as_str(), "https://example.org/api/x?cursor=2");
        assert_eq!(next_page(&base, r#"</a>; rel="prev""#), None);
    }
}
