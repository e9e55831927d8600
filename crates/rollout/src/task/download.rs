//! Small files from `http` and `https` URLs, bounded in time and size.

use std::time::Duration;

use reqwest::{Client, StatusCode, Url, redirect};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a server may stay silent.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the whole answer may take.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(120);

const MAX_REDIRECTS: usize = 5;

/// Why a file cannot be downloaded. URLs are without credentials and without their query.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The text is no URL that can be downloaded from.
    #[error("only http and https URLs can be downloaded from; use `path` for a file on this machine")]
    Url,
    /// The server was not reached, or broke off.
    #[error("{url} did not answer as it should; check the URL and the network")]
    Failed {
        /// The URL.
        url: String,
        /// What went wrong.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused.
    #[error("{url} answered with status {status}")]
    Status {
        /// The URL.
        url: String,
        /// Its answer.
        status: StatusCode,
    },
    /// The file is too large.
    #[error("{url} is larger than {} MiB", limit / 1024 / 1024)]
    TooLarge {
        /// The URL.
        url: String,
        /// The most that is read, in bytes.
        limit: u64,
    },
}

/// Downloads a file of limited size. The first value is the URL as it may be shown.
pub(super) async fn get(text: &str, limit: u64) -> Result<(String, Vec<u8>), DownloadError> {
    let url = Url::parse(text).map_err(|_| DownloadError::Url)?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(DownloadError::Url);
    }
    let shown = without_secrets(url.clone());
    let failed =
        |source: reqwest::Error| DownloadError::Failed { url: shown.clone(), source: source.without_url() };
    let too_large = || DownloadError::TooLarge { url: shown.clone(), limit };
    let client = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .timeout(TOTAL_TIMEOUT)
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
        .map_err(failed)?;
    let mut response = client.get(url).send().await.map_err(failed)?;
    if !response.status().is_success() {
        return Err(DownloadError::Status { url: shown, status: response.status() });
    }
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if (bytes.len() + chunk.len()) as u64 > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((shown, bytes))
}

fn without_secrets(mut url: Url) -> String {
    url.set_query(None);
    url.set_fragment(None);
    // These fail only for URLs without a host, which http URLs have.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}
