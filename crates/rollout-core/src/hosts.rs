//! Lists of hosts that may be reached: names, names below a domain, addresses, and networks.

use std::{fmt, net::IpAddr, str::FromStr};

use crate::address::is_public;

/// An entry of a list of hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// A name, in lower case.
    Name(String),
    /// All names below a domain, written as `*.domain`.
    Below(String),
    /// A network, or a single address.
    Network {
        /// Its address.
        address: IpAddr,
        /// How many of the first bits count.
        bits: u8,
    },
}

/// Why a text is not an entry of a list of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host name, `*.` and a domain, an address, or a network such as 10.0.0.0/8")]
pub struct HostPatternError(String);

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, HostPatternError> {
        let error = || HostPatternError(text.to_owned());
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(Self::Network { address, bits: if address.is_ipv4() { 32 } else { 128 } });
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| error())?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(error)?;
            return Ok(Self::Network { address, bits });
        }
        let name = plain_name(text.strip_prefix("*.").unwrap_or(text)).ok_or_else(error)?;
        Ok(if text.starts_with("*.") { Self::Below(name) } else { Self::Name(name) })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Below(domain) => write!(f, "*.{domain}"),
            Self::Network { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

/// A host name in lower case and without a dot at its end.
fn plain_name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let label = |label: &str| {
        let allowed = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        !label.is_empty() && label.len() <= 63 && label.chars().all(allowed)
    };
    // A name of digits alone would be read as an address by some programs.
    let is_numeric = name.split('.').all(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    (name.len() <= 253 && name.split('.').all(label) && !is_numeric).then_some(name)
}

/// Hosts that may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostList(Vec<HostPattern>);

impl HostList {
    /// A list of these entries.
    pub fn new(patterns: impl IntoIterator<Item = HostPattern>) -> Self {
        Self(patterns.into_iter().collect())
    }

    /// Whether a host may be looked up: its name is listed, or it is an address.
    pub fn allows_name(&self, host: &str) -> bool {
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.lists(address);
        }
        let Some(name) = plain_name(host) else { return false };
        self.0.iter().any(|pattern| match pattern {
            HostPattern::Name(known) => *known == name,
            HostPattern::Below(domain) => {
                name.strip_suffix(domain).is_some_and(|start| start.len() > 1 && start.ends_with('.'))
            }
            HostPattern::Network { .. } => false,
        })
    }

    /// Whether an address of an allowed host may be connected to. Addresses of this machine and of private networks
    /// must be listed themselves: the owner of a name decides what it resolves to.
    pub fn allows_address(&self, address: IpAddr) -> bool {
        is_public(address) || self.lists(address)
    }

    fn lists(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|pattern| match pattern {
            HostPattern::Network { address: network, bits } => {
                contains(network.to_canonical(), *bits, address)
            }
            HostPattern::Name(_) | HostPattern::Below(_) => false,
        })
    }
}

fn contains(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    let same =
        |a: u128, b: u128, width: u8| bits == 0 || (a ^ b) >> u32::from(width.saturating_sub(bits)) == 0;
    match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(patterns: &[&str]) -> HostList {
        HostList::new(patterns.iter().map(|pattern| pattern.parse().unwrap()))
    }

    #[test]
    fn names_and_domains_are_matched_as_a_whole() {
        let hosts = list(&["example.org", "*.test", "10.0.0.0/8"]);
        for (host, allowed) in [
            ("example.org", true),
            ("EXAMPLE.org.", true),
            ("www.example.org", false),
            ("notexample.org", false),
            ("a.test", true),
            ("a.b.test", true),
            ("test", false),
            (".test", false),
            ("atest", false),
            ("10.1.2.3", true),
            ("11.1.2.3", false),
            ("", false),
        ] {
            assert_eq!(hosts.allows_name(host), allowed, "{host}");
        }
    }

    #[test]
    fn addresses_of_private_networks_must_be_listed() {
        let hosts = list(&["example.org", "127.0.0.1", "fd00::/8"]);
        for (address, allowed) in [
            ("93.184.216.34", true),
            ("127.0.0.1", true),
            ("127.0.0.2", false),
            ("::ffff:127.0.0.2", false),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("172.17.0.1", false),
            ("192.168.1.1", false),
            ("169.254.169.254", false),
            ("100.64.0.1", false),
            ("0.0.0.0", false),
            ("::1", false),
            ("fe80::1", false),
            ("fd00::1", true),
            ("64:ff9b::7f00:1", false),
            // NAT64 of a public address: the only way out of a network with IPv6 alone.
            ("64:ff9b::8.8.8.8", true),
            ("64:ff9b:1::8.8.8.8", false),
            ("fec0::1", false),
            ("::10.0.0.1", false),
            ("2001::1", false),
            ("5f00::1", false),
            ("2606:2800:220:1::1", true),
        ] {
            assert_eq!(hosts.allows_address(address.parse().unwrap()), allowed, "{address}");
        }
    }

    #[test]
    fn other_texts_are_not_hosts() {
        for text in ["", "*", "*.", "a b", "http://a", "a:80", "10.0.0.0/33", "1.2.3", "a..b", "*.*.a"] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }
}
