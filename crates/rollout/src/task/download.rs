//! Downloads small files from `http` and `https` URLs, with limits of time and size.

use std::time::Duration;

use reqwest::{StatusCode, Url};

use crate::download_client::{download_client, without_secrets};

/// The timeout between two parts of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of the whole answer.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Why a file cannot be downloaded. URLs are shown without credentials and query.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The URL is invalid.
    #[error("only http and https URLs are supported; use `path` for a file on this machine")]
    Url,
    /// The server could not be reached, or the connection broke.
    #[error("cannot download {url}; check the URL and the network")]
    Failed {
        /// The URL.
        url: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// The server returned an error.
    #[error("{url} answered with status {status}")]
    Status {
        /// The URL.
        url: String,
        /// Its status.
        status: StatusCode,
    },
    /// The file is too large.
    #[error("{url} is larger than {} MiB", limit / 1024 / 1024)]
    TooLarge {
        /// The URL.
        url: String,
        /// The limit, in bytes.
        limit: u64,
    },
}

/// The URL without secrets.
pub(super) fn shown_url(text: &str) -> Result<String, DownloadError> {
    parsed(text).map(|url| without_secrets(&url))
}

fn parsed(text: &str) -> Result<Url, DownloadError> {
    let url = Url::parse(text).map_err(|_| DownloadError::Url)?;
    if ["http", "https"].contains(&url.scheme()) { Ok(url) } else { Err(DownloadError::Url) }
}

/// Downloads a file of limited size. The first value is the URL without secrets.
pub(super) async fn get(text: &str, limit: u64) -> Result<(String, Vec<u8>), DownloadError> {
    let url = parsed(text)?;
    let shown = without_secrets(&url);
    let failed =
        |source: reqwest::Error| DownloadError::Failed { url: shown.clone(), source: source.without_url() };
    let too_large = || DownloadError::TooLarge { url: shown.clone(), limit };
    let client = download_client(READ_TIMEOUT).map_err(failed)?;
    let mut response = client.get(url).timeout(TOTAL_TIMEOUT).send().await.map_err(failed)?;
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
