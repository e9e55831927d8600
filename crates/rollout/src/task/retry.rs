//! Retries requests to registries and repositories after temporary failures of the network or the server.

use std::fmt::Display;

use super::{download::DownloadError, git::GitError, registry::RegistryError};
use crate::config::RetryConfig;

/// Whether a retry may help.
pub(super) trait Transient: Display {
    fn is_transient(&self) -> bool;
}

/// Retries until the request succeeds or fails permanently, at most as often as the job's `retry` allows.
pub(super) async fn retried<T, E: Transient, F: Future<Output = Result<T, E>>>(
    retry: &RetryConfig,
    progress: &(dyn Fn(String) + Send + Sync),
    ask: impl Fn() -> F,
) -> Result<T, E> {
    let mut tries = 1;
    loop {
        match ask().await {
            Err(error) if error.is_transient() => {
                let Some(delay) = retry.delay_after(tries) else { return Err(error) };
                progress(format!("{error}; starting try {} of {}", tries + 1, retry.max_attempts));
                tokio::time::sleep(delay).await;
                tries += 1;
            }
            answer => return answer,
        }
    }
}

impl Transient for DownloadError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Failed { source, .. } => !source.is_redirect() && !source.is_builder(),
            Self::Status { status, .. } => {
                status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
            }
            Self::Url | Self::TooLarge { .. } => false,
        }
    }
}

impl Transient for RegistryError {
    fn is_transient(&self) -> bool {
        matches!(self, Self::Download(error) if error.is_transient())
    }
}

/// Messages of git, curl and ssh about temporary failures.
const SIGNS: [&str; 13] = [
    "returned error: 5",
    "returned error: 429",
    "HTTP 5",
    "Could not resolve host",
    "Failed to connect",
    "Couldn't connect",
    "Connection reset",
    "Connection refused",
    "timed out",
    "too slow",
    "early EOF",
    "unexpected disconnect",
    "hung up unexpectedly",
];

impl Transient for GitError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Failed { detail, .. } => {
                let refused = ["Permission denied", "Authentication failed", "not found"];
                SIGNS.iter().any(|sign| detail.contains(sign))
                    && !refused.iter().any(|sign| detail.contains(sign))
            }
            Self::Missing { .. }
            | Self::TooOld { .. }
            | Self::NoCommit { .. }
            | Self::NoRevision { .. }
            | Self::Offline { .. }
            | Self::Changed { .. }
            | Self::NoHead { .. }
            | Self::Cache { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_failures_are_retried() {
        let failed = |detail: &str| GitError::Failed {
            action: "fetch from",
            url: "https://example.com/a".to_owned(),
            detail: detail.to_owned(),
        };
        for (detail, transient) in [
            ("fatal: unable to access 'x': The requested URL returned error: 503", true),
            ("fatal: unable to access 'x': Could not resolve host: example.com", true),
            ("fatal: unable to access 'x': The requested URL returned error: 403", false),
            ("fatal: repository 'x' not found", false),
            ("Permission denied (publickey). / fatal: the remote end hung up unexpectedly", false),
        ] {
            assert_eq!(failed(detail).is_transient(), transient, "{detail}");
        }
    }
}
