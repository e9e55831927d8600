//! Decides which requests are served: those for this machine that have the token.

use std::{fmt, net::IpAddr};

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority},
    middleware::{self, Next},
    response::IntoResponse,
};

/// The fewest characters of a token.
const MIN_TOKEN_CHARS: usize = 16;

/// Checks requests before they are handled.
#[derive(Debug, Clone)]
pub struct AccessGuard {
    /// Whether only this machine can reach the service.
    loopback: bool,
    token: Option<AccessToken>,
}

/// The secret that clients send.
#[derive(Clone)]
pub struct AccessToken(String);

/// The error for a text that cannot be a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token must be one line of at least {MIN_TOKEN_CHARS} visible ASCII characters")]
pub struct InvalidToken;

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The request is for another machine.
    #[error("the Host of the request is not this machine")]
    Host,
    /// The request has no valid token.
    #[error("the token is missing or wrong")]
    Token,
}

impl AccessError {
    /// The status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
        }
    }

    /// Advice for the client.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Host => "use http://127.0.0.1 or http://localhost with the port",
            Self::Token => "send `Authorization: Bearer <content of the token file>`",
        }
    }
}

impl AccessToken {
    /// Reads a token from the content of a file; white space around it is ignored.
    pub fn new(text: &str) -> Result<Self, InvalidToken> {
        let token = text.trim();
        if token.len() < MIN_TOKEN_CHARS || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidToken);
        }
        Ok(Self(token.to_owned()))
    }

    /// Whether a client sent this token. The time that this takes does not depend on the token.
    pub fn is(&self, given: &[u8]) -> bool {
        same(given, self.0.as_bytes())
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken")
    }
}

impl AccessGuard {
    /// Guards a service at this address. Without a token, only loopback is safe.
    pub fn new(host: IpAddr, token: Option<AccessToken>) -> Self {
        Self { loopback: host.is_loopback(), token }
    }

    /// Passes only valid requests to the routes; `respond` answers the others.
    pub fn protect<R>(self, router: Router, respond: fn(AccessError) -> R) -> Router
    where
        R: IntoResponse + 'static,
    {
        router.layer(middleware::from_fn(move |request: Request, next: Next| {
            let checked = self.check(request.uri(), request.headers());
            async move {
                let Err(denied) = checked else { return next.run(request).await };
                let mut response = respond(denied).into_response();
                if denied == AccessError::Token {
                    response
                        .headers_mut()
                        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                }
                response
            }
        }))
    }

    /// Checks the `Host` and the token. `/health` needs no token.
    ///
    /// A web page in a browser can reach loopback through a name that resolves to this machine. The `Host` of
    /// its requests is that name, which is not a name of this machine.
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), AccessError> {
        if self.loopback && !is_local(uri, headers) {
            return Err(AccessError::Host);
        }
        match &self.token {
            Some(token) if uri.path() != "/health" && !has_token(headers, token) => Err(AccessError::Token),
            _ => Ok(()),
        }
    }
}

fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (uri.authority(), hosts.next(), hosts.next()) {
        (_, _, Some(_)) => return false,
        (Some(authority), _, _) => Some(authority.as_str()),
        (None, host, _) => host.and_then(|host| host.to_str().ok()),
    };
    let Some(host) = host.and_then(|host| host.parse::<Authority>().ok()) else {
        return false;
    };
    let name = host.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn has_token(headers: &HeaderMap, token: &AccessToken) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, given) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(given)
    });
    given.is_some_and(|given| token.is(given.trim_ascii()))
}

/// Compares in constant time.
fn same(left: &[u8], right: &[u8]) -> bool {
    let differing = left.iter().zip(right).fold(0, |bits, (left, right)| bits | (left ^ right));
    std::hint::black_box(differing) == 0 && left.len() == right.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(host: &str, token: Option<&str>) -> AccessGuard {
        AccessGuard::new(host.parse().unwrap(), token.map(|token| AccessToken::new(token).unwrap()))
    }

    fn refused(guard: &AccessGuard, path: &str, headers: &[(&'static str, &str)]) -> Option<AccessError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        guard.check(&path.parse().unwrap(), &map).err()
    }

    #[test]
    fn on_loopback_the_host_must_be_this_machine() {
        let guard = guard("127.0.0.1", None);
        for host in ["localhost", "LOCALHOST:8321", "127.0.0.1", "127.0.0.1:1", "127.9.9.9", "[::1]:8321"] {
            assert_eq!(refused(&guard, "/v1/info", &[("host", host)]), None, "{host}");
        }
        let strange =
            ["evil.example", "evil.example:8321", "localhost.evil.example", "10.0.0.1", "", "a b", "[::2]"];
        for host in strange {
            assert_eq!(refused(&guard, "/v1/info", &[("host", host)]), Some(AccessError::Host), "{host:?}");
        }
        assert_eq!(refused(&guard, "/v1/info", &[]), Some(AccessError::Host));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(refused(&guard, "/v1/info", &two), Some(AccessError::Host));
        let absolute = "http://evil.example/v1/info";
        assert_eq!(refused(&guard, absolute, &[("host", "localhost")]), Some(AccessError::Host));
    }

    #[test]
    fn beyond_loopback_any_name_is_allowed_and_a_token_is_required() {
        let guard = guard("0.0.0.0", Some("0123456789abcdef"));
        let host = ("host", "trainer.example");
        let with = |value| refused(&guard, "/v1/info", &[host, ("authorization", value)]);
        assert_eq!(with("Bearer 0123456789abcdef"), None);
        assert_eq!(with("bearer 0123456789abcdef"), None);
        let wrong =
            ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Bearer ", "x"];
        for value in wrong {
            assert_eq!(with(value), Some(AccessError::Token), "{value:?}");
        }
        assert_eq!(refused(&guard, "/v1/rollouts", &[host]), Some(AccessError::Token));
        assert_eq!(refused(&guard, "/health", &[host]), None);
    }

    #[test]
    fn a_token_is_also_checked_on_loopback() {
        let guard = guard("::1", Some("0123456789abcdef"));
        assert_eq!(refused(&guard, "/v1/info", &[("host", "localhost")]), Some(AccessError::Token));
    }

    #[test]
    fn a_token_is_one_long_visible_word_and_is_not_shown() {
        for text in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdéf"] {
            assert_eq!(AccessToken::new(text).err(), Some(InvalidToken), "{text:?}");
        }
        let token = AccessToken::new(" 0123456789abcdef\n").unwrap();
        assert_eq!(format!("{token:?}"), "AccessToken");
    }
}
