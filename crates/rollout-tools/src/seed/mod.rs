//! Files that a client may name: those below the roots that the operator of the server allows.
//!
//! Every path comes from a client or a model and may be hostile. The kernel resolves it beneath the root in one
//! step, so that neither `..` nor a symbolic link leaves the root, not even one that is created between a check
//! and the opening.

mod files;
mod roots;

use std::collections::HashSet;
use std::error::Error as _;
use std::path::PathBuf;

pub(crate) use files::{SeedFile, Stamp};
pub(crate) use roots::Roots;

use crate::{
    arguments,
    resource::{ErrorCode, Params, PlannedUse, ToolError},
};

/// The parameters, of a session or of a call, that name the files: the first one that is present is used.
pub(crate) const NAMES: [&str; 2] = ["seed_path", "folder"];
/// The most paths of a session or a call. Each is resolved, and a folder is walked.
const MOST_SEEDS: usize = 100;

/// The default roots.
pub(crate) fn default_roots() -> Vec<PathBuf> {
    vec![PathBuf::from(".")]
}

/// Why files could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeedError {
    /// Neither the session nor the call names files.
    #[error(
        "no files are given: open the session with a `seed_path` that names a file or a folder, or pass one with the call"
    )]
    Unnamed,
    /// The path is outside the roots.
    #[error(
        "`{path}` is not below a folder that this server may read; add the folder to `roots` of these tools in the server's configuration"
    )]
    Outside { path: String },
    /// The path is outside the files of the session.
    #[error("`{path}` is not part of the files of this session")]
    OutsideSession { path: String },
    /// The path has a part that begins with a dot.
    #[error("`{path}` is hidden: names that begin with a dot are not served")]
    Hidden { path: String },
    /// The file does not exist.
    #[error("`{path}` does not exist below the folders of this server")]
    Missing { path: String },
    /// It is a device, a pipe, or a file of the kernel.
    #[error("`{path}` is neither a file nor a folder")]
    NotAFile { path: String },
    /// The folder contains too many files.
    #[error("`{path}` contains more than {most} files; name a smaller folder")]
    TooMany { path: String, most: usize },
    /// The folder contains too many entries, wanted or not.
    #[error("there are more than {most} files and folders in `{path}`; name a smaller folder")]
    TooMuch { path: String, most: usize },
    /// A root cannot be opened.
    #[error("the folder `{path}`, one of `roots` in the server's configuration, cannot be opened")]
    Root { path: String, source: std::io::Error },
    /// The file cannot be read.
    #[error("`{path}` cannot be read")]
    Unreadable { path: String, source: std::io::Error },
}

impl From<SeedError> for ToolError {
    fn from(error: SeedError) -> Self {
        let code = match error {
            SeedError::Unnamed => ErrorCode::NotInitialized,
            SeedError::Outside { .. }
            | SeedError::OutsideSession { .. }
            | SeedError::Hidden { .. }
            | SeedError::NotAFile { .. }
            | SeedError::TooMany { .. }
            | SeedError::TooMuch { .. } => ErrorCode::Refused,
            SeedError::Missing { .. } => ErrorCode::NoResults,
            SeedError::Root { .. } => ErrorCode::ResourceFailed,
            SeedError::Unreadable { .. } => ErrorCode::ExecutionError,
        };
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        Self::new(code, format!("{error}{cause}"))
    }
}

/// Where the files of a session are.
#[derive(Debug, Clone)]
pub(crate) struct Seeds {
    roots: Vec<PathBuf>,
    session: Vec<String>,
}

impl Seeds {
    /// Opens the files of a session's configuration, all of which must exist.
    pub(crate) async fn open(roots: &[PathBuf], config: &Params) -> Result<Self, ToolError> {
        Self::of(roots, named(config)?).await
    }

    /// Opens the files of a session, all of which must exist.
    pub(crate) async fn of(roots: &[PathBuf], session: Vec<String>) -> Result<Self, ToolError> {
        let seeds = Self { roots: roots.to_vec(), session };
        let checked = seeds.clone();
        blocking(move || {
            let roots = Roots::open(&checked.roots)?;
            checked.session.iter().try_for_each(|path| roots.find(path).map(drop))
        })
        .await?;
        Ok(seeds)
    }

    /// Checks whether sessions and calls can open the files of a client's planned use. Returns warnings.
    pub(crate) async fn check(roots: &[PathBuf], planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        let mut wanted = named(&planned.config)?;
        wanted.extend(planned.paths.iter().filter(|path| !path.trim().is_empty()).cloned());
        Self::of(roots, wanted).await?;
        Ok(planned.warnings(&NAMES))
    }

    /// Whether the session has no files.
    pub(crate) fn is_empty(&self) -> bool {
        self.session.is_empty()
    }

    /// Whether a call names files itself.
    pub(crate) fn are_named(params: &Params) -> bool {
        NAMES.iter().any(|name| params.contains_key(*name))
    }

    /// Lists the files of a call whose names match `wanted`, ordered by path.
    ///
    /// A call may name a part of the session's files, or anything below the roots if the session has none.
    pub(crate) async fn files(
        &self,
        params: &Params,
        wanted: fn(&str) -> bool,
    ) -> Result<Vec<SeedFile>, ToolError> {
        let named = named(params)?;
        let Self { roots, session } = self.clone();
        let listed = blocking(move || {
            let roots = Roots::open(&roots)?;
            match (session.is_empty(), named.is_empty()) {
                (true, true) => Err(SeedError::Unnamed),
                (true, false) => files::list(&roots, &named, wanted),
                (false, true) => files::list(&roots, &session, wanted),
                (false, false) => files::list(&roots.narrowed(&session)?, &named, wanted),
            }
        });
        Ok(listed.await?)
    }
}

fn named(params: &Params) -> Result<Vec<String>, ToolError> {
    let mut named = arguments::list(params, &NAMES)?;
    let mut seen = HashSet::new();
    // An empty name would mean the whole root.
    named.retain(|path| !path.trim().is_empty() && seen.insert(path.clone()));
    if named.len() > MOST_SEEDS {
        let message = format!("{} files or folders are named; at most {MOST_SEEDS} are allowed", named.len());
        return Err(ToolError::new(ErrorCode::InvalidInput, message));
    }
    Ok(named)
}

/// Runs blocking file work on a separate thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failure) => match failure.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that shuts down cancels the work, and then this future is dropped, too.
            Err(_) => std::future::pending().await,
        },
    }
}
