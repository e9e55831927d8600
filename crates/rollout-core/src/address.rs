//! Checks of URLs.

use std::net::IpAddr;

use url::Url;

/// Whether a URL refers to this machine.
pub fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok_and(|address| address.is_loopback()) || host == "localhost" || host.ends_with(".localhost")
}
