//! Packages of agents: fetched once on the host, checked, unpacked, and kept for all later trials.
//!
//! An agent comes from a package registry: npm for programs and for JavaScript, PyPI for Python. Everything is fetched
//! by the host, so neither a task's image nor its network needs to provide for an agent.

mod download;
mod error;
mod npm;
mod python;
mod tool;
mod unpack;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use reqwest::Client;
use secrecy::SecretString;
use tokio::sync::OnceCell;

pub use error::PackageError;
pub(crate) use python::PythonSpec;

use rollout_env::blocking::blocking;

/// Where packages come from, and where they are kept.
#[derive(Debug, Clone)]
pub struct PackageSources {
    /// The directory that packages are kept in; made when it is needed. Other processes may use it at the same time.
    pub cache_dir: PathBuf,
    /// The registry of npm packages. Without it, this machine's npm is asked for its own.
    pub npm_registry: Option<String>,
    /// What the registry knows its clients by, if it wants to.
    pub npm_token: Option<SecretString>,
    /// The index of Python packages, in the form of pip's `index-url`. Without it, pip is asked for its own.
    pub pypi_index: Option<String>,
    /// A Python of this machine with pip, which installs Python packages.
    pub python: PathBuf,
    /// Variables of the programs that install packages, such as those of a proxy.
    pub variables: Vec<(String, String)>,
}

impl PackageSources {
    /// The registries that this machine's npm and pip use.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            npm_registry: None,
            npm_token: None,
            pypi_index: None,
            python: PathBuf::from("python3"),
            variables: Vec::new(),
        }
    }
}

/// The packages of this machine.
#[derive(Debug)]
pub struct Packages {
    sources: PackageSources,
    /// Created by the first download: most jobs have none, and a client reads all certificates of the machine.
    client: OnceCell<Client>,
    npm_registry: OnceCell<String>,
}

/// A directory of the host, and where it belongs among the files of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) dir: PathBuf,
    /// Relative to the agent's directory in the environment.
    pub(crate) place: String,
}

impl Packages {
    /// Nothing is fetched yet.
    pub fn new(sources: PackageSources) -> Self {
        let npm_registry = OnceCell::new_with(sources.npm_registry.clone());
        Self { sources, client: OnceCell::new(), npm_registry }
    }

    async fn client(&self) -> Result<&Client, PackageError> {
        let create = || async {
            let created = tokio::task::spawn_blocking(download::client).await;
            created.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
        };
        self.client.get_or_try_init(create).await
    }

    /// A directory of the cache.
    fn dir(&self, kind: &str) -> PathBuf {
        self.sources.cache_dir.join("packages").join(kind)
    }
}

/// Keeps other processes, and other trials of this one, from making the same thing until it is dropped.
async fn lock(path: PathBuf) -> Result<File, PackageError> {
    let shown = path.clone();
    let locked = blocking(move || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        Ok(file)
    });
    locked.await.map_err(|source| PackageError::io(&shown, source))
}

/// Puts a finished directory to its place in one step, in place of what a crash may have left there.
fn put(finished: &Path, place: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(finished, place)
}

/// This machine's processor, in the words of npm.
pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "x64",
    }
}
