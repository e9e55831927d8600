//! The HTTP client of downloads, and the form in which their URLs may be shown.

use std::time::Duration;

use reqwest::{Client, Url, redirect};

/// The timeout for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const MAX_REDIRECTS: usize = 5;

/// A client that follows few redirects, and none from https to http. `read_timeout` is the timeout between two parts
/// of an answer.
pub(crate) fn download_client(read_timeout: Duration) -> reqwest::Result<Client> {
    Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(read_timeout)
        .redirect(redirect::Policy::custom(|attempt| {
            let downgrade = attempt.url().scheme() == "http"
                && attempt.previous().last().is_some_and(|previous| previous.scheme() == "https");
            if attempt.previous().len() > MAX_REDIRECTS {
                attempt.error("too many redirects")
            } else if downgrade {
                attempt.error("a redirect leads from https to http")
            } else {
                attempt.follow()
            }
        }))
        .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// The URL without credentials and query.
pub(crate) fn without_secrets(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail only for URLs without a host, and http URLs have one.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}
