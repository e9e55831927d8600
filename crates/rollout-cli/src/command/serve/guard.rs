//! Who is let in.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, Uri, header};

use super::problem::Problem;

/// Checks requests before anything is done for them.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    /// Whether only this machine can reach the service.
    loopback: bool,
    token: Option<String>,
}

impl Guard {
    pub(super) fn new(host: IpAddr, token: Option<String>) -> Self {
        Self { loopback: host.is_loopback(), token }
    }

    /// Refuses requests of strangers.
    ///
    /// Whoever can reach loopback may be a web page in a browser: its name resolves to this machine, and then the `Host`
    /// is not one of this machine's names.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        if self.loopback && !is_local(uri, headers) {
            let problem = Problem::new(StatusCode::FORBIDDEN, "the Host of the request is not this machine");
            return Err(problem.hint("use http://127.0.0.1 or http://localhost with the port"));
        }
        match &self.token {
            Some(token) if uri.path() != "/health" && !has_token(headers, token) => {
                let problem = Problem::new(StatusCode::UNAUTHORIZED, "the token is missing or wrong");
                Err(problem.hint("send `Authorization: Bearer <content of the token file>`"))
            }
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

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, given) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(given)
    });
    given.is_some_and(|given| same(given.trim_ascii(), token.as_bytes()))
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
        Guard::new(host.parse().unwrap(), token.map(str::to_owned))
    }

    fn status(guard: &Guard, path: &str, headers: &[(&'static str, &str)]) -> Option<u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        guard.check(&path.parse().unwrap(), &map).err().map(|problem| problem.status.as_u16())
    }

    #[test]
    fn on_loopback_the_host_is_a_name_of_this_machine() {
        let guard = guard("127.0.0.1", None);
        for host in ["localhost", "LOCALHOST:8321", "127.0.0.1", "127.0.0.1:1", "127.9.9.9", "[::1]:8321"] {
            assert_eq!(status(&guard, "/v1/info", &[("host", host)]), None, "{host}");
        }
        let strange =
            ["evil.example", "evil.example:8321", "localhost.evil.example", "10.0.0.1", "", "a b", "[::2]"];
        for host in strange {
            assert_eq!(status(&guard, "/v1/info", &[("host", host)]), Some(403), "{host:?}");
        }
        assert_eq!(status(&guard, "/v1/info", &[]), Some(403));
        assert_eq!(status(&guard, "/v1/info", &[("host", "localhost"), ("host", "evil.example")]), Some(403));
        assert_eq!(status(&guard, "http://evil.example/v1/info", &[("host", "localhost")]), Some(403));
    }

    #[test]
    fn beyond_loopback_names_are_free_and_tokens_are_not() {
        let guard = guard("0.0.0.0", Some("0123456789abcdef"));
        let host = ("host", "trainer.example");
        let with = |value| status(&guard, "/v1/info", &[host, ("authorization", value)]);
        assert_eq!(with("Bearer 0123456789abcdef"), None);
        assert_eq!(with("bearer 0123456789abcdef"), None);
        let wrong =
            ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Bearer ", "x"];
        for value in wrong {
            assert_eq!(with(value), Some(401), "{value:?}");
        }
        assert_eq!(status(&guard, "/v1/rollouts", &[host]), Some(401));
        assert_eq!(status(&guard, "/health", &[host]), None);
    }

    #[test]
    fn a_token_holds_on_loopback_too() {
        let guard = guard("::1", Some("0123456789abcdef"));
        assert_eq!(status(&guard, "/v1/info", &[("host", "localhost")]), Some(401));
    }
}
