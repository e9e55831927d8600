//! Decides which addresses a model may fetch.
//!
//! The model chooses the page, and a process fetches it that can reach more than the model should. Numeric
//! addresses are checked here before each request. Names are checked when they are resolved for the connection,
//! so a name cannot resolve to one address when it is checked and to another when it is used.

use std::{net::IpAddr, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rollout_core::address::is_public;
use url::{Host, Url};

use super::config::{WebConfig, WebConfigError};
use crate::resource::{ErrorCode, ToolError};

/// The longest accepted URL.
const MAX_URL_BYTES: usize = 8 << 10;

/// Checks addresses.
#[derive(Debug)]
pub(super) struct Guard {
    allow_private: bool,
    allowed: Vec<(Host<String>, Option<u16>)>,
    ports: Vec<u16>,
}

/// Where an accepted address may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// To the internet: its name must not resolve to any other address.
    Public,
    /// Anywhere.
    Anywhere,
}

impl Guard {
    pub(super) fn new(config: &WebConfig) -> Result<Self, WebConfigError> {
        let allowed = config
            .allow_hosts
            .iter()
            .map(|entry| parse_host(entry).ok_or_else(|| WebConfigError::Host(entry.clone())));
        Ok(Self {
            allow_private: config.allow_private,
            allowed: allowed.collect::<Result<_, _>>()?,
            ports: config.ports.clone(),
        })
    }

    /// Parses a URL as a model writes it.
    pub(super) fn parse(&self, text: &str) -> Result<Url, ToolError> {
        let text = text.trim();
        if text.len() > MAX_URL_BYTES {
            let message =
                format!("the address has {} bytes; at most {MAX_URL_BYTES} are allowed", text.len());
            return Err(ToolError::new(ErrorCode::InvalidUrl, message));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let message = format!("{text:?} is not the address of a page; write it as https://host/path");
            return Err(ToolError::new(ErrorCode::InvalidUrl, message));
        }
        let parsed = match Url::parse(text) {
            // Users write `example.com/page`.
            Err(url::ParseError::RelativeUrlWithoutBase) => Url::parse(&format!("https://{text}")),
            other => other,
        };
        parsed.map_err(|error| {
            let message =
                format!("{text:?} is not the address of a page ({error}); write it as https://host/path");
            ToolError::new(ErrorCode::InvalidUrl, message)
        })
    }

    /// Checks an address before it is requested.
    pub(super) fn admit(&self, url: &Url) -> Result<Reach, ToolError> {
        let refused = |why: &str| ToolError::new(ErrorCode::Refused, format!("{url} is not fetched: {why}"));
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refused("only http and https are supported"));
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(ToolError::new(ErrorCode::InvalidUrl, format!("{url} has no host")));
        };
        let host = without_trailing_dot(host.to_owned());
        let address = match &host {
            Host::Ipv4(address) => Some(IpAddr::V4(*address)),
            Host::Ipv6(address) => Some(IpAddr::V6(*address)),
            Host::Domain(_) => None,
        };
        let listed =
            self.allowed.iter().any(|(allowed, at)| *allowed == host && at.is_none_or(|at| at == port));
        let reach = if self.allow_private || listed { Reach::Anywhere } else { Reach::Public };
        if reach == Reach::Public && address.is_some_and(|address| !is_public(address)) {
            return Err(refused(PRIVATE));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("it contains a user name or a password"));
        }
        if !listed && !self.ports.is_empty() && !self.ports.contains(&port) {
            return Err(refused(&format!(
                "port {port} is not allowed; see `ports` in the settings of the web tools"
            )));
        }
        Ok(reach)
    }
}

/// Why private addresses are rejected, for the model and for the operator.
const PRIVATE: &str =
    "it is a private address; list the host in allow_hosts of the tool server's configuration";

/// Parses `host` or `host:port`.
fn parse_host(entry: &str) -> Option<(Host<String>, Option<u16>)> {
    let [http, https] =
        ["http", "https"].map(|scheme| Url::parse(&format!("{scheme}://{entry}")).ok()).map(|url| {
            url.filter(|url| url.path() == "/" && url.query().is_none() && url.fragment().is_none())
                .filter(|url| url.username().is_empty() && url.password().is_none() && !entry.ends_with('/'))
        });
    let (http, https) = (http?, https?);
    let port = http.port_or_known_default();
    // The two schemes have default ports unless the entry has one.
    let port = port.filter(|_| port == https.port_or_known_default());
    Some((without_trailing_dot(http.host()?.to_owned()), port))
}

/// `example.com.` is the same host as `example.com`.
fn without_trailing_dot(host: Host<String>) -> Host<String> {
    match host {
        Host::Domain(mut name) => {
            if name.ends_with('.') {
                name.pop();
            }
            Host::Domain(name)
        }
        address => address,
    }
}

/// Resolves names only to addresses of the internet.
#[derive(Debug)]
pub(super) struct PublicNames;

/// The error for a name that resolves only to private addresses.
#[derive(Debug, thiserror::Error)]
#[error("{PRIVATE}")]
pub(super) struct PrivateName;

impl PublicNames {
    pub(super) fn shared() -> Arc<Self> {
        Arc::new(Self)
    }
}

impl Resolve for PublicNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let any = !found.is_empty();
            let public: Vec<_> = found.into_iter().filter(|address| is_public(address.ip())).collect();
            if any && public.is_empty() {
                return Err(PrivateName.into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guard(config: &str) -> Guard {
        Guard::new(&serde_json::from_str(config).unwrap()).unwrap()
    }

    fn verdict(guard: &Guard, url: &str) -> Result<Reach, ErrorCode> {
        guard.parse(url).and_then(|url| guard.admit(&url)).map_err(|error| error.code)
    }

    #[test]
    fn every_spelling_of_a_private_address_is_rejected() {
        let guard = guard("{}");
        for url in [
            "http://127.0.0.1/",
            "HTTP://127.0.0.1/",
            "hTTps://127.0.0.1:8443/",
            "http://2130706433/",
            "http://0177.0.0.1/",
            "http://017700000001/",
            "http://0x7f.0.0.1/",
            "http://0x7f000001/",
            "http://127.1/",
            "http://127.0.1/",
            "http://0/",
            "http://127.0.0.1./",
            "http://good@127.0.0.1/",
            "http://example.com@127.0.0.1/",
            "http://example.com:80@127.0.0.1/",
            "http:\\\\127.0.0.1\\",
            "http:/127.0.0.1/",
            "http:127.0.0.1/",
            "  http://127.0.0.1/",
            "http://127.0.0.1\t/",
            "http://%31%32%37.0.0.1/",
            "http://１２７.０.０.１/",
            "http://127。0。0。1/",
            "http://①②⑦.⓪.⓪.①/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[0:0:0:0:0:ffff:a9fe:a9fe]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://10.0.0.8:9200/",
            "127.0.0.1/admin",
        ] {
            assert_eq!(verdict(&guard, url), Err(ErrorCode::Refused), "{url}");
        }
    }

    #[test]
    fn only_addresses_of_pages_are_accepted() {
        let guard = guard("{}");
        for url in [
            "file:///etc/passwd",
            "ftp://example.com/",
            "gopher://example.com/",
            "data:text/plain,x",
            "localhost:80/x",
        ] {
            assert_eq!(verdict(&guard, url), Err(ErrorCode::Refused), "{url}");
        }
        for url in [
            "",
            "http://",
            "http://[::1",
            "http://exa mple.com/",
            "https://256.256.256.256/",
            "http://1.2.3.4.5/",
            "http://[fe80::1%25eth0]/",
        ] {
            assert_eq!(verdict(&guard, url), Err(ErrorCode::InvalidUrl), "{url}");
        }
        assert_eq!(
            verdict(&guard, &format!("http://example.com/{}", "a".repeat(9000))),
            Err(ErrorCode::InvalidUrl)
        );
        assert_eq!(verdict(&guard, "http://user:secret@example.com/"), Err(ErrorCode::Refused));
        assert_eq!(verdict(&guard, "example.com/page"), Ok(Reach::Public));
        assert_eq!(verdict(&guard, "https://例え.jp:8443/?q=1#part"), Ok(Reach::Public));
    }

    #[test]
    fn a_listed_host_is_allowed_at_its_port() {
        let guard =
            guard(r#"{"allow_hosts": ["127.0.0.1:8080", "wiki.corp", "[::1]:80"], "ports": [80, 443]}"#);
        assert_eq!(verdict(&guard, "http://127.0.0.1:8080/x"), Ok(Reach::Anywhere));
        assert_eq!(verdict(&guard, "http://0x7f.1:8080/x"), Ok(Reach::Anywhere));
        assert_eq!(verdict(&guard, "http://127.0.0.1:8081/"), Err(ErrorCode::Refused));
        assert_eq!(verdict(&guard, "https://WIKI.corp.:9443/"), Ok(Reach::Anywhere));
        assert_eq!(verdict(&guard, "http://[::1]/"), Ok(Reach::Anywhere));
        assert_eq!(verdict(&guard, "https://[::1]/"), Err(ErrorCode::Refused));
        assert_eq!(verdict(&guard, "https://example.com/"), Ok(Reach::Public));
        assert_eq!(verdict(&guard, "https://example.com:8443/"), Err(ErrorCode::Refused));
        assert_eq!(verdict(&guard, "https://x.wiki.corp/"), Ok(Reach::Public));
    }

    #[test]
    fn an_invalid_entry_is_reported() {
        for entry in ["", "http://x", "a/b", "user@host", "x:99999", "host?q", "host/"] {
            let config = WebConfig { allow_hosts: vec![entry.to_owned()], ..WebConfig::default() };
            assert!(Guard::new(&config).is_err(), "{entry:?} passed for a host");
        }
    }

    proptest! {
        #[test]
        fn a_private_address_is_rejected_however_its_numbers_are_written(
            low in 0..1u32 << 24,
            network in prop::sample::select(vec![0u32, 10, 127]),
            radix in 0..3usize,
            parts in 1..=4usize,
        ) {
            let bits = network << 24 | low;
            // The last part stands for all remaining bytes.
            let mut words: Vec<u32> = (0..parts - 1).map(|part| bits >> (24 - 8 * part) & 0xff).collect();
            words.push(bits & (u32::MAX >> (8 * (parts - 1))));
            let words: Vec<String> = words.iter().map(|word| match radix {
                0 => format!("{word}"),
                1 => format!("0{word:o}"),
                _ => format!("0x{word:X}"),
            }).collect();
            let url = format!("http://{}/", words.join("."));
            prop_assert_eq!(verdict(&guard("{}"), &url), Err(ErrorCode::Refused), "{}", url);
        }

        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = verdict(&guard("{}"), &text);
        }
    }
}
