//! Why something could not be pushed.

use std::{path::PathBuf, time::Duration};

use reqwest::StatusCode;

use super::FileError;

/// Something could not be pushed. No text of it holds the token.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The address of the hub is no address, or one that tokens must not go to.
    #[error("`{0}` cannot be the address of a hub: it has to begin with https://, or be on this machine")]
    Endpoint(String),
    /// There is no token, or it cannot be one.
    #[error("there is no token for the hub")]
    NoToken,
    /// The client cannot be made.
    #[error("cannot set up connections to the hub")]
    Setup(#[source] reqwest::Error),
    /// The files cannot be pushed as they are.
    #[error(transparent)]
    Files(#[from] FileError),
    /// A file is not what it was a moment ago.
    #[error("{} changed while it was pushed", .0.display())]
    Changed(PathBuf),
    /// The hub was not reached, or broke off, however often it was tried.
    #[error("cannot {action}: no answer in {tries} tries")]
    Unreachable {
        /// What was asked for.
        action: String,
        /// How often.
        tries: u32,
        /// What went wrong the last time.
        source: reqwest::Error,
    },
    /// The hub does not take the token.
    #[error("cannot {action}: the hub does not accept the token{said}")]
    Unauthorized {
        /// What was asked for.
        action: String,
        /// What the hub says, after a colon.
        said: String,
    },
    /// The owner of the token may not write there.
    #[error("the token is of `{user}`, who has no dataset below `{owner}`")]
    NotTheOwner {
        /// Who has the token.
        user: String,
        /// Whose repository it would be.
        owner: String,
    },
    /// The repository can be read by everybody, and a private one was asked for.
    #[error("{0} exists already and is public, and it was to be private")]
    Public(String),
    /// The hub asks to be left alone for longer than anybody waits.
    #[error("cannot {action}: the hub wants to be asked again in {} s", .after.as_secs())]
    Busy {
        /// What was asked for.
        action: String,
        /// When it may be asked again.
        after: Duration,
    },
    /// The hub refused.
    #[error("cannot {action}: the hub answered with {status}{said}")]
    Refused {
        /// What was asked for.
        action: String,
        /// Its answer.
        status: StatusCode,
        /// What the hub says, after a colon.
        said: String,
    },
    /// The hub leads to another host, where the token must not go.
    #[error("cannot {action}: the hub leads to {to}, where the token does not go")]
    Elsewhere {
        /// What was asked for.
        action: String,
        /// The other host.
        to: String,
    },
    /// The hub answered with something that cannot be understood.
    #[error("cannot {action}: the hub answered with something else than its protocol has: {what}")]
    Strange {
        /// What was asked for.
        action: String,
        /// What is wrong with it.
        what: String,
    },
}

impl HubError {
    pub(super) fn strange(action: &str, what: impl Into<String>) -> Self {
        Self::Strange { action: action.to_owned(), what: what.into() }
    }

    /// What the reader can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoToken => {
                Some("set HF_TOKEN to a token that may write; the hub makes one in its settings")
            }
            Self::Unauthorized { .. } => Some("check that HF_TOKEN is valid and may write to the dataset"),
            Self::NotTheOwner { .. } => Some("give another OWNER, or the token of one who belongs to it"),
            Self::Endpoint(_) | Self::Elsewhere { .. } | Self::Strange { .. } => {
                Some("set HF_ENDPOINT to the address of the hub, or leave it unset for the public one")
            }
            Self::Public(_) => Some("make it private in its settings, or push to another name"),
            Self::Unreachable { .. } | Self::Busy { .. } | Self::Changed(_) => {
                Some("push again: what has arrived is not sent again")
            }
            Self::Setup(_) | Self::Files(_) | Self::Refused { .. } => None,
        }
    }
}
