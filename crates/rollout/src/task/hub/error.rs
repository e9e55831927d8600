//! Errors of datasets on a hub.

use std::{io, path::PathBuf};

use reqwest::StatusCode;

use super::super::retry::Transient;

/// Why a dataset cannot be read from a hub. URLs are shown without credentials and query.
#[derive(Debug, thiserror::Error)]
pub enum HubDataError {
    /// The address of the hub is invalid.
    #[error("invalid address of the hub: {0}; use https, or http on this machine")]
    Endpoint(String),
    /// The token has characters that a request cannot contain.
    #[error("invalid token for the hub")]
    Token,
    /// The client cannot be created.
    #[error("cannot create the HTTP client")]
    Client(#[source] reqwest::Error),
    /// The hub could not be reached, or the connection broke.
    #[error("cannot read {url}")]
    Failed {
        /// The URL.
        url: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// The hub returned an error.
    #[error("{url} answered with status {status}")]
    Status {
        /// The URL.
        url: String,
        /// Its status.
        status: StatusCode,
    },
    /// The hub redirected to an address that is not safe.
    #[error("{url} redirects to {to}, which is not followed")]
    Redirect {
        /// The URL.
        url: String,
        /// The address.
        to: String,
    },
    /// The hub sent something else than expected.
    #[error("unexpected answer from {url}: {reason}")]
    Strange {
        /// The URL.
        url: String,
        /// The problem.
        reason: String,
    },
    /// A file is not what the hub describes.
    #[error("{path} from {url} has the wrong content: its hash is {found}, expected {expected}")]
    Hash {
        /// The file.
        path: String,
        /// The URL.
        url: String,
        /// The hash that the hub names.
        expected: String,
        /// The hash of the content.
        found: String,
    },
    /// Something is not in the cache, and the network must not be used.
    #[error("{what} is not in the cache, and network access is turned off")]
    Offline {
        /// What is missing.
        what: String,
    },
    /// A file in the cache is damaged, and the network must not be used.
    #[error("the cached file {} is damaged: {reason}; network access is turned off", path.display())]
    Damaged {
        /// The file in the cache.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The files of a configuration or split cannot be found.
    #[error("{address}: {reason}")]
    Choice {
        /// The address.
        address: String,
        /// The problem, with the possible choices.
        reason: String,
    },
    /// The cache cannot be used.
    #[error("cannot use the cache in {}; check its owner and the free space", path.display())]
    Cache {
        /// The path in the cache.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl HubDataError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Status { status, .. } if matches!(status.as_u16(), 401 | 403 | 404) => {
                "check the name; a private or gated dataset needs a token in HF_TOKEN, and its terms must be accepted \
                 on the hub"
            }
            Self::Failed { .. } => "check the network, and HF_ENDPOINT if it is set",
            Self::Hash { .. } => {
                "run the command again; if the hash stays wrong, the hub or a proxy changes files"
            }
            Self::Damaged { .. } => "run the command again with a network: the file is downloaded again",
            Self::Offline { .. } => "download it first, with a network: `rollout datasets download NAME`",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

impl Transient for HubDataError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Failed { source, .. } => !source.is_builder(),
            Self::Status { status, .. } => {
                status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
            }
            _ => false,
        }
    }
}
