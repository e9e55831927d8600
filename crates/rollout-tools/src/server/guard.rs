//! Who is let in.

use std::{fmt, net::IpAddr};

use axum::http::{HeaderMap, Uri, header};

/// The fewest characters of a token.
const MIN_TOKEN_CHARS: usize = 16;

/// Checks requests before anything is done for them.
#[derive(Clone)]
pub struct Guard {
    /// Whether only this machine can reach the service.
    loopback: bool,
    token: Option<Token>,
}

/// What clients prove themselves with.
#[derive(Clone)]
pub struct Token(String);

/// A text that cannot be a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token is one line of at least {MIN_TOKEN_CHARS} visible ASCII characters")]
pub struct NotAToken;

/// Why a request is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is meant for another machine.
    #[error("the Host of the request is not this machine")]
    Host,
    /// It does not prove who sends it.
    #[error("the token is missing or wrong")]
    Token,
}

impl Refused {
    /// What the client can do about it.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Host => "use http://127.0.0.1 or http://localhost with the port",
            Self::Token => "send `Authorization: Bearer <content of the token file>`",
        }
    }
}

impl Token {
    /// Takes the content of a file, without the white space around it.
    pub fn new(text: &str) -> Result<Self, NotAToken> {
        let token = text.trim();
        if token.len() < MIN_TOKEN_CHARS || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NotAToken);
        }
        Ok(Self(token.to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("loopback", &self.loopback).field("token", &self.token).finish()
    }
}

impl Guard {
    /// Guards a service at this address. Without a token, only loopback is safe.
    pub fn new(host: IpAddr, token: Option<Token>) -> Self {
        Self { loopback: host.is_loopback(), token }
    }

    /// Refuses requests of strangers.
    ///
    /// Whoever can reach loopback may be a web page in a browser: its name resolves to this machine, and then the `Host`
    /// is not one of this machine's names.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        if self.loopback && !is_local(uri, headers) {
            return Err(Refused::Host);
        }
        match &self.token {
            Some(token) if uri.path() != "/health" && !has_token(headers, token) => Err(Refused::Token),
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
    let Some(host) = host.and_then(|host| host.parse::<axum::http::uri::Authority>().ok()) else {
        return false;
    };
    let name = host.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn has_token(headers: &HeaderMap, token: &Token) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, given) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(given)
    });
    given.is_some_and(|given| same(given.trim_ascii(), token.0.as_bytes()))
}

/// Compares in a time that does not depend on where the two differ.
fn same(left: &[u8], right: &[u8]) -> bool {
    let differing = left.iter().zip(right).fold(0, |bits, (left, right)| bits | (left ^ right));
    std::hint::black_box(differing) == 0 && left.len() == right.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(host: &str, token: Option<&str>) -> Guard {
        Guard::new(host.parse().unwrap(), token.map(|token| Token::new(token).unwrap()))
    }

    fn refused(guard: &Guard, path: &str, headers: &[(&'static str, &str)]) -> Option<Refused> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        guard.check(&path.parse().unwrap(), &map).err()
    }

    #[test]
    fn on_loopback_the_host_is_a_name_of_this_machine() {
        let guard = guard("127.0.0.1", None);
        for host in ["localhost", "LOCALHOST:8321", "127.0.0.1", "127.0.0.1:1", "127.9.9.9", "[::1]:8321"] {
            assert_eq!(refused(&guard, "/v1/info", &[("host", host)]), None, "{host}");
        }
        let strange =
            ["evil.example", "evil.example:8321", "localhost.evil.example", "10.0.0.1", "", "a b", "[::2]"];
        for host in strange {
            assert_eq!(refused(&guard, "/v1/info", &[("host", host)]), Some(Refused::Host), "{host:?}");
        }
        assert_eq!(refused(&guard, "/v1/info", &[]), Some(Refused::Host));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(refused(&guard, "/v1/info", &two), Some(Refused::Host));
        let absolute = "http://evil.example/v1/info";
        assert_eq!(refused(&guard, absolute, &[("host", "localhost")]), Some(Refused::Host));
    }

    #[test]
    fn beyond_loopback_names_are_free_and_tokens_are_not() {
        let guard = guard("0.0.0.0", Some("0123456789abcdef"));
        let host = ("host", "trainer.example");
        let with = |value| refused(&guard, "/v1/info", &[host, ("authorization", value)]);
        assert_eq!(with("Bearer 0123456789abcdef"), None);
        assert_eq!(with("bearer 0123456789abcdef"), None);
        let wrong =
            ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Bearer ", "x"];
        for value in wrong {
            assert_eq!(with(value), Some(Refused::Token), "{value:?}");
        }
        assert_eq!(refused(&guard, "/v1/rollouts", &[host]), Some(Refused::Token));
        assert_eq!(refused(&guard, "/health", &[host]), None);
    }

    #[test]
    fn a_token_holds_on_loopback_too() {
        let guard = guard("::1", Some("0123456789abcdef"));
        assert_eq!(refused(&guard, "/v1/info", &[("host", "localhost")]), Some(Refused::Token));
    }

    #[test]
    fn a_token_is_one_long_visible_word_and_is_not_shown() {
        for text in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdéf"] {
            assert_eq!(Token::new(text).err(), Some(NotAToken), "{text:?}");
        }
        let token = Token::new(" 0123456789abcdef\n").unwrap();
        assert_eq!(format!("{token:?}"), "Token");
    }
}
