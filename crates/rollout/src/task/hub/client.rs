//! Requests to a hub. The token is sent to the hub itself and to nothing that it redirects to.

use std::time::Duration;

use reqwest::{Method, Response, StatusCode, Url, header};
use serde_json::Value;

use super::{HubAccess, HubDataError};
use crate::download_client::without_secrets;
use rollout_record::hub::{HubConnection, HubConnectionError, MAX_HUB_ANSWER};

/// The timeout between two parts of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

const MAX_REDIRECTS: usize = 5;

/// A client of one hub.
#[derive(Debug)]
pub(super) struct HubClient {
    connection: HubConnection,
}

impl HubClient {
    pub(super) fn new(access: &HubAccess) -> Result<Self, HubDataError> {
        let connection = HubConnection::new(&access.endpoint, access.token.as_ref(), |builder| {
            // The hash of a file is that of its bytes as they are sent.
            builder.read_timeout(READ_TIMEOUT).no_gzip()
        });
        let connection = connection.map_err(|error| match error {
            HubConnectionError::Endpoint(shown) => HubDataError::Endpoint(shown),
            HubConnectionError::Token => HubDataError::Token,
            HubConnectionError::Client(source) => HubDataError::Client(source),
        })?;
        Ok(Self { connection })
    }

    /// The base URL of the hub.
    pub(super) fn endpoint(&self) -> &str {
        self.connection.endpoint()
    }

    /// A URL on the hub. The parts of its path are escaped.
    pub(super) fn url(&self, parts: &[&str]) -> Url {
        self.connection.url(parts.iter().copied())
    }

    /// Sends a request for a file from a byte on, and follows redirects.
    pub(super) async fn get(&self, url: &Url, from: u64) -> Result<Response, HubDataError> {
        let shown = without_secrets(url);
        let mut next = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.connection.request(Method::GET, next.clone());
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
            if !self.connection.allows(&to) {
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
            if body.len() + chunk.len() > MAX_HUB_ANSWER {
                return Err(HubDataError::Strange { url: shown, reason: "it is too large".to_owned() });
            }
            body.extend_from_slice(&chunk);
        }
        let value = serde_json::from_slice(&body)
            .map_err(|error| HubDataError::Strange { url: shown, reason: format!("not JSON: {error}") })?;
        Ok((value, next.filter(|next| self.connection.has(next))))
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
