//! Requests to a proxy: the host that they name, and their form for that host.

/// A request to a proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProxyRequest {
    /// The host, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) kind: RequestKind,
}

/// What is asked of the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// A connection.
    Connect,
    /// An HTTP request, with its head as the host gets it.
    Forward(Vec<u8>),
}

impl ProxyRequest {
    /// Reads the head of a request. `None` if it is not one for a proxy.
    pub(super) fn parse(head: &[u8]) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !version.starts_with("HTTP/1.") {
            return None;
        }
        if method == "CONNECT" {
            let (host, port) = authority(target, None)?;
            return Some(Self { host, port, kind: RequestKind::Connect });
        }
        let rest = target.strip_prefix("http://")?;
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (written, path) = rest.split_at(at);
        let (host, port) = authority(written, Some(80))?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        // The host that was checked is the one that the server is asked for.
        let mut forwarded = format!("{method} {slash}{path} HTTP/1.1\r\nHost: {written}\r\n");
        for line in lines {
            let name = line.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
            let is_of_proxy = matches!(
                name.as_str(),
                "host" | "connection" | "proxy-connection" | "proxy-authorization" | "keep-alive"
            );
            if !is_of_proxy {
                forwarded += line;
                forwarded += "\r\n";
            }
        }
        // Without this, a second request on the same connection would go to the first host.
        forwarded += "Connection: close\r\n\r\n";
        Some(Self { host, port, kind: RequestKind::Forward(forwarded.into_bytes()) })
    }
}

/// The host and the port of an authority. Credentials are not allowed.
fn authority(text: &str, default: Option<u16>) -> Option<(String, u16)> {
    if text.contains('@') {
        return None;
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => default?,
    };
    (!host.is_empty()).then(|| (host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_the_url_counts_and_the_header_is_replaced() {
        let head =
            b"POST http://Example.org/a HTTP/1.1\r\nHost: inside\r\nProxy-Authorization: x\r\nX: y\r\n\r\n";
        let request = ProxyRequest::parse(head).unwrap();
        assert_eq!((request.host.as_str(), request.port), ("example.org", 80));
        let RequestKind::Forward(forwarded) = request.kind else { panic!("a request is forwarded") };
        let expected = "POST /a HTTP/1.1\r\nHost: Example.org\r\nX: y\r\nConnection: close\r\n\r\n";
        assert_eq!(String::from_utf8(forwarded).unwrap(), expected);
    }

    #[test]
    fn hosts_may_have_ports_and_brackets() {
        let host = |line: &str| {
            let head = format!("{line}\r\n\r\n");
            ProxyRequest::parse(head.as_bytes()).map(|request| format!("{} {}", request.host, request.port))
        };
        assert_eq!(host("CONNECT a.test:443 HTTP/1.1").as_deref(), Some("a.test 443"));
        assert_eq!(host("CONNECT [::1]:443 HTTP/1.1").as_deref(), Some("::1 443"));
        assert_eq!(host("GET http://a.test:81?q HTTP/1.0").as_deref(), Some("a.test 81"));
        for line in [
            "GET / HTTP/1.1",
            "GET https://a.test/ HTTP/1.1",
            "CONNECT a.test HTTP/1.1",
            "CONNECT a.test:x HTTP/1.1",
            "CONNECT :443 HTTP/1.1",
            "GET http://user@a.test/ HTTP/1.1",
            "GET http://a.test/ HTTP/2",
            "nonsense",
        ] {
            assert_eq!(host(line), None, "{line}");
        }
    }
}
