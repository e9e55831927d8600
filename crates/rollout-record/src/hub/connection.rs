//! The address of a hub, a token for it, and the requests that may contain the token.

use std::time::Duration;

use reqwest::{Client, ClientBuilder, Method, RequestBuilder, Url, redirect};
use rollout_core::address::is_loopback;
use secrecy::{ExposeSecret as _, SecretString};

/// The connection timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of an answer that is kept in memory.
pub const MAX_HUB_ANSWER: usize = 64 << 20;

/// A hub and, if there is one, a token for it. The token is sent to nothing else.
#[derive(Debug, Clone)]
pub struct HubConnection {
    http: Client,
    endpoint: Url,
    token: Option<SecretString>,
}

/// Why a hub cannot be used. No message contains the token.
#[derive(Debug, thiserror::Error)]
pub enum HubConnectionError {
    /// The address is invalid, or tokens must not be sent to it.
    #[error("invalid address of the hub: {0}; use https, or http on this machine")]
    Endpoint(String),
    /// The token has characters that a request cannot contain.
    #[error("invalid token for the hub")]
    Token,
    /// The HTTP client cannot be created.
    #[error("cannot create the HTTP client")]
    Client(#[source] reqwest::Error),
}

impl HubConnection {
    /// Uses the hub at this address. White space around the token is removed, and an empty token is ignored. `configure`
    /// extends the HTTP client. Nothing is sent yet.
    pub fn new(
        endpoint: &str,
        token: Option<&SecretString>,
        configure: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Self, HubConnectionError> {
        let token = token.map(|token| token.expose_secret().trim()).filter(|token| !token.is_empty());
        if token.is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(HubConnectionError::Token);
        }
        let text = endpoint.trim();
        let url = Url::parse(text).ok().filter(|url| {
            let bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
            bare && url.has_host() && (url.scheme() == "https" || url.scheme() == "http" && is_loopback(text))
        });
        let Some(endpoint) = url else {
            // The user part of a URL may contain a password, and its query a key.
            let shown = text.rsplit('@').next().and_then(|rest| rest.split('?').next()).unwrap_or_default();
            return Err(HubConnectionError::Endpoint(shown.to_owned()));
        };
        let builder = match endpoint.scheme() {
            // Plain HTTP is used only on loopback, and a proxy would send the token to another machine.
            "http" => Client::builder().no_proxy(),
            _ => Client::builder(),
        };
        let builder = builder
            .connect_timeout(CONNECT_TIMEOUT)
            // Each redirect is checked first: its target may be another server.
            .redirect(redirect::Policy::none())
            .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")));
        let http = configure(builder).build().map_err(HubConnectionError::Client)?;
        Ok(Self { http, endpoint, token: token.map(SecretString::from) })
    }

    /// The address of the hub, without a slash at its end.
    pub fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// The token, if there is one.
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(SecretString::expose_secret)
    }

    /// A URL on the hub. The parts of its path are escaped.
    pub fn url<'p>(&self, parts: impl IntoIterator<Item = &'p str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    /// Whether a URL is on the hub itself.
    pub fn has(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    /// Whether a URL that the hub names may be used: over HTTPS, or over plain HTTP like the hub itself.
    pub fn allows(&self, url: &Url) -> bool {
        url.has_host()
            && (url.scheme() == "https" || url.scheme() == "http" && self.endpoint.scheme() == "http")
    }

    /// A request, with the token if it goes to the hub itself.
    pub fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let token = self.token().filter(|_| self.has(&url));
        let request = self.http.request(method, url);
        match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_sent_to_the_hub_and_nowhere_else() {
        let token = SecretString::from("hf_x\n");
        let hub = HubConnection::new("https://hub.example/base", Some(&token), |builder| builder).unwrap();
        let sent = |url: &str| {
            let request = hub.request(Method::GET, url.parse().unwrap()).build().unwrap();
            request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(sent("https://hub.example/other").as_deref(), Some("Bearer hf_x"));
        for other in ["http://hub.example/base", "https://hub.example:8443/", "https://cdn.hub.example/"] {
            assert_eq!(sent(other), None, "{other}");
        }
    }

    #[test]
    fn addresses_of_the_hub_are_as_safe_as_the_hub() {
        let allows = |hub: &str, url: &str| {
            HubConnection::new(hub, None, |builder| builder).unwrap().allows(&url.parse().unwrap())
        };
        assert!(allows("https://hub.example", "https://cdn.example/x"));
        assert!(!allows("https://hub.example", "http://cdn.example/x"));
        assert!(allows("http://127.0.0.1:1", "http://127.0.0.1:2/x"));
        assert!(!allows("http://127.0.0.1:1", "ftp://127.0.0.1:2/x"));
    }
}
