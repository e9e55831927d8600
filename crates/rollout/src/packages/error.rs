//! Why a package cannot be had.

use std::{
    io,
    path::{Path, PathBuf},
};

use reqwest::StatusCode;

/// Why a package cannot be had. URLs are without credentials and without their query.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// No HTTP client can be made.
    #[error("packages cannot be fetched")]
    Client(#[source] reqwest::Error),
    /// The name or the version is not one.
    #[error("{0:?} is not the name and version of a package")]
    Name(String),
    /// The text is no URL that can be fetched from.
    #[error("{0:?} is not the http or https URL of a package registry")]
    Url(String),
    /// The registry was not reached, or broke off.
    #[error("invalid answer from {url}; check the URL and the network")]
    Request {
        /// The URL.
        url: String,
        /// What went wrong.
        #[source]
        source: reqwest::Error,
    },
    /// The registry refused.
    #[error("{url} answered with status {status}")]
    Status {
        /// The URL.
        url: String,
        /// Its answer.
        status: StatusCode,
    },
    /// The answer of the registry cannot be read.
    #[error("{url} does not describe a package: {problem}")]
    Answer {
        /// The URL.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The registry does not have the version.
    #[error("{package} has no version {version}; the latest is {latest}")]
    NoVersion {
        /// The package.
        package: String,
        /// The version that was wanted.
        version: String,
        /// The latest one.
        latest: String,
    },
    /// The registry did not name the latest version.
    #[error(
        "the latest version of {package} is not known after {seconds} seconds; check the network, or name a version"
    )]
    VersionTimeout {
        /// The package.
        package: String,
        /// How long the registry was given.
        seconds: u64,
    },
    /// The file is not the one that the registry describes.
    #[error("{package}: the file does not have the hash that the registry gives for it ({expected})")]
    Integrity {
        /// The package.
        package: String,
        /// The hash that it must have.
        expected: String,
    },
    /// The archive contains what no package needs.
    #[error("{package}: invalid archive: {problem}")]
    Unsafe {
        /// The package.
        package: String,
        /// What it contains.
        problem: String,
    },
    /// The file is too large.
    #[error("{url} is larger than {} MiB", limit >> 20)]
    TooLarge {
        /// The URL.
        url: String,
        /// The most that is fetched, in bytes.
        limit: u64,
    },
    /// The registry of npm packages is not known.
    #[error("the address of the npm registry is missing; install npm, or set npm_config_registry")]
    NpmRegistry(#[source] Box<PackageError>),
    /// A program that installs packages failed.
    #[error("{program} cannot install {package}: {problem}")]
    Tool {
        /// The program.
        program: &'static str,
        /// What it was to install.
        package: String,
        /// Its last lines.
        problem: String,
    },
    /// A file of the cache cannot be read or written.
    #[error("cannot use {path}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl PackageError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Whether another try may go better.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Request { .. } | Self::VersionTimeout { .. } => true,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }
}
