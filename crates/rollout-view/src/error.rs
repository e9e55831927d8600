//! Why a page cannot be shown or written.

use std::{io, path::PathBuf};

use rollout_record::{notes::NotesError, saved::SavedError};

/// Why a page cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The directory cannot be read.
    #[error("cannot read the directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A job cannot be read.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// Jobs cannot be compared.
    #[error(transparent)]
    Compare(#[from] rollout_record::compare::CompareError),
    /// Tags or comments cannot be read or written.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// A file cannot be read.
    #[error("cannot read {name}")]
    File {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// There is no such page.
    #[error("{0} does not exist")]
    NotFound(String),
    /// A page cannot be rendered.
    #[error("cannot render the page")]
    Render(#[from] askama::Error),
    /// A page cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory of an export is not empty.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The address cannot be used.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system has no random numbers for the token.
    #[error("cannot create a token")]
    Random(#[source] getrandom::Error),
}

impl ViewError {
    /// What the user can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Directory { .. } => Some("pass a job directory, or the directory that contains jobs"),
            Self::NotEmpty(_) => Some("choose a new or empty directory"),
            Self::Listen { .. } => Some("choose another address with --bind"),
            Self::Compare(error) => error.hint(),
            _ => None,
        }
    }
}
