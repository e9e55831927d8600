//! Errors of a push.

use std::{path::PathBuf, time::Duration};

use reqwest::StatusCode;

use super::FileError;

/// A push failed. No message contains the token.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The URL of the hub is invalid, or tokens must not be sent to it.
    #[error("`{0}` is not a valid hub URL: it must start with https://, or be on this machine")]
    Endpoint(String),
    /// The token is missing or invalid.
    #[error("the token for the hub is missing or invalid")]
    NoToken,
    /// The HTTP client cannot be created.
    #[error("cannot set up connections to the hub")]
    Setup(#[source] reqwest::Error),
    /// The files cannot be pushed.
    #[error(transparent)]
    Files(#[from] FileError),
    /// A file changed.
    #[error("{} changed while it was pushed", .0.display())]
    Changed(PathBuf),
    /// The hub was not reached, or closed the connection, in all tries.
    #[error("cannot {action}: no answer in {tries} tries")]
    Unreachable {
        /// The action.
        action: String,
        /// The number of tries.
        tries: u32,
        /// The last error.
        source: reqwest::Error,
    },
    /// The hub rejected the token.
    #[error("cannot {action}: the hub rejected the token{said}")]
    Unauthorized {
        /// The action.
        action: String,
        /// The message of the hub, after a colon.
        said: String,
    },
    /// The token has no access to the owner's datasets.
    #[error("the token belongs to `{user}`, who cannot write to datasets of `{owner}`")]
    NotTheOwner {
        /// The user of the token.
        user: String,
        /// The owner of the repository.
        owner: String,
    },
    /// The repository is public, but a private one was requested.
    #[error("{0} already exists and is public, but a private dataset was requested")]
    Public(String),
    /// The hub requests a longer delay than the maximum.
    #[error("cannot {action}: the hub asks to retry in {} s", .after.as_secs())]
    Busy {
        /// The action.
        action: String,
        /// The requested delay.
        after: Duration,
    },
    /// The hub rejected the request.
    #[error("cannot {action}: the hub answered with {status}{said}")]
    Refused {
        /// The action.
        action: String,
        /// The status.
        status: StatusCode,
        /// The message of the hub, after a colon.
        said: String,
    },
    /// The hub redirects to another host, and the token must not be sent there.
    #[error("cannot {action}: the hub redirects to {to}, and the token is not sent to other hosts")]
    Elsewhere {
        /// The action.
        action: String,
        /// The other host.
        to: String,
    },
    /// The hub's answer is invalid.
    #[error("cannot {action}: invalid answer of the hub: {what}")]
    Strange {
        /// The action.
        action: String,
        /// The problem.
        what: String,
    },
}

impl HubError {
    pub(super) fn strange(action: &str, what: impl Into<String>) -> Self {
        Self::Strange { action: action.to_owned(), what: what.into() }
    }

    /// Returns advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoToken => {
                Some("set HF_TOKEN to a token with write access, created in the settings of the hub")
            }
            Self::Unauthorized { .. } => {
                Some("check that HF_TOKEN is valid and has write access to the dataset")
            }
            Self::NotTheOwner { .. } => Some("use another OWNER, or a token of a member"),
            Self::Endpoint(_) | Self::Elsewhere { .. } | Self::Strange { .. } => {
                Some("set HF_ENDPOINT to the URL of the hub, or unset it for the public hub")
            }
            Self::Public(_) => Some("make it private in its settings, or push to another name"),
            Self::Unreachable { .. } | Self::Busy { .. } | Self::Changed(_) => {
                Some("push again; files that are already on the hub are not sent again")
            }
            Self::Setup(_) | Self::Files(_) | Self::Refused { .. } => None,
        }
    }
}
