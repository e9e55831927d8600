//! Loads the `datasets` of a job as tasks on disk.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, future::BoxFuture, stream};
use tokio::sync::OnceCell;

use super::{
    Dataset, GitCommits, LocalDataset, LocalError, Pins, TaskEntry, TaskProblem,
    git::{CommitId, Git, GitCache, GitError, GitUrl, RepoPath},
    hub::{HubAccess, HubDataError},
    load_dataset_dir,
    local::{is_task, load_in_parallel, load_tasks},
    lookup,
    registry::{Origin, Registry, RegistryError, RegistryTask},
    resolved::Resolved,
    retry::retried,
};
use crate::{
    config::{DatasetConfig, DatasetSource, GitAddress, InteractionConfig, RegistryLocation, RetryConfig},
    rows::RowsError,
};
use rollout_core::{
    name::{DatasetName, TaskName},
    text::listed,
};
use rollout_record::{export::eval_log::github_permalink, journal::RecordedSource};

/// How many commits are fetched at the same time.
const PARALLEL_FETCHES: usize = 4;

/// Work that takes longer than this is reported.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Why a dataset cannot be used. Nothing of the job runs.
#[derive(Debug, thiserror::Error)]
#[error("cannot load dataset `{dataset}` (datasets[{index}] of the job)")]
pub struct DatasetError {
    /// The dataset's name.
    pub dataset: DatasetName,
    /// Its index in the job's `datasets`, from 0.
    pub index: usize,
    /// The problem.
    #[source]
    pub problem: DatasetProblem,
}

/// The problem of a dataset.
#[derive(Debug, thiserror::Error)]
pub enum DatasetProblem {
    /// The directory is not a dataset.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The dataset cannot be read from the registry.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The tasks cannot be read from a repository.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The address of a repository is invalid.
    #[error("invalid address {address}: {reason}")]
    Address {
        /// The address.
        address: String,
        /// The problem.
        reason: String,
    },
    /// The examples cannot be read from a hub.
    #[error(transparent)]
    Hub(#[from] HubDataError),
    /// The rows of the examples are invalid.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

impl DatasetError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<String> {
        self.problem.hint()
    }
}

impl DatasetProblem {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<String> {
        let offline = "download it first, with a network: `rollout datasets download NAME`";
        match self {
            Self::Registry(RegistryError::Offline { .. }) | Self::Git(GitError::Offline { .. }) => {
                Some(offline.to_owned())
            }
            Self::Git(GitError::Changed { .. }) => {
                Some("run the command again with a network: the directory is fetched again".to_owned())
            }
            Self::Hub(error) => error.hint(),
            Self::Rows(RowsError::NoParquet { .. }) => Some(
                "use a release of Rollout, or build with \
                 `cargo install --path crates/rollout-cli --features parquet`"
                    .to_owned(),
            ),
            Self::Local(_) | Self::Registry(_) | Self::Git(_) | Self::Address { .. } | Self::Rows(_) => None,
        }
    }
}

/// Where datasets come from, and where they are fetched to.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The root of the cache; created when it is needed.
    pub cache_dir: PathBuf,
    /// The git command, for tasks from repositories.
    pub git: PathBuf,
    /// How often a registry, a repository or a hub is retried.
    pub retry: RetryConfig,
    /// The registries that datasets are looked up in by name. The first one that has a version of a dataset counts.
    pub registries: Vec<RegistryLocation>,
    /// The hub of datasets, and the token for it.
    pub hub: HubAccess,
    /// Whether only files of this machine are used: the cache, and local paths.
    pub offline: bool,
}

impl Sources {
    /// Stores fetched files in a directory, which other processes may use at the same time. Git is taken from `PATH`,
    /// and the registries and the hub are the public ones.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            git: PathBuf::from("git"),
            retry: RetryConfig::default(),
            registries: RegistryLocation::public(),
            hub: HubAccess::default(),
            offline: false,
        }
    }

    /// Loads the datasets of a job, in order.
    ///
    /// What `resolved` contains is not looked up again. Registry tasks without a commit use the one in it for their
    /// URL; if there is none, the newest commit is looked up and returned in [`Dataset::resolved`]. `progress` is
    /// called for work that takes longer than a moment.
    pub fn load<'a>(
        &'a self,
        datasets: &'a [DatasetConfig],
        resolved: &'a Resolved,
        progress: &'a (dyn Fn(String) + Send + Sync),
    ) -> BoxFuture<'a, Result<Vec<Dataset>, DatasetError>> {
        Box::pin(async move {
            let mut loader = Loader::new(self, resolved, progress);
            let mut loaded = Vec::with_capacity(datasets.len());
            for (index, config) in datasets.iter().enumerate() {
                let dataset = loader.dataset(config).await.map_err(|problem| DatasetError {
                    dataset: config.name.clone(),
                    index,
                    problem,
                })?;
                loaded.push(dataset);
            }
            Ok(loaded)
        })
    }
}

/// The state of one call of [`Sources::load`].
pub(super) struct Loader<'a> {
    pub(super) sources: &'a Sources,
    pub(super) resolved: &'a Resolved,
    pub(super) progress: &'a (dyn Fn(String) + Send + Sync),
    commits: GitCommits,
    registries: HashMap<RegistryLocation, Arc<Registry>>,
    heads: HashMap<(GitUrl, Option<String>), CommitId>,
    /// Git is looked for when the first repository is needed: local tasks need no git.
    cache: OnceCell<GitCache>,
}

/// A commit of a repository.
type Revision = (GitUrl, CommitId);

impl<'a> Loader<'a> {
    pub(super) fn new(
        sources: &'a Sources,
        resolved: &'a Resolved,
        progress: &'a (dyn Fn(String) + Send + Sync),
    ) -> Self {
        Self {
            sources,
            resolved,
            progress,
            commits: GitCommits::default(),
            registries: HashMap::new(),
            heads: HashMap::new(),
            cache: OnceCell::new(),
        }
    }

    async fn dataset(&mut self, config: &DatasetConfig) -> Result<Dataset, DatasetProblem> {
        let mut dataset = self.tasks_of(config).await?;
        let loaded = dataset.tasks.iter().filter_map(|entry| entry.task.as_ref().ok());
        let bare: Vec<_> = loaded.filter(|task| !task.has_config).map(|task| task.name.to_string()).collect();
        if !bare.is_empty() {
            let names = listed(bare);
            dataset.warnings.push(format!("tasks without a task.toml use all defaults: {names}"));
        }
        // The tasks of an earlier run are only those that were selected.
        if self.resolved.instead_of_registry(&config.name).is_none() {
            let names: Vec<&str> = dataset.tasks.iter().map(|entry| entry.name.as_str()).collect();
            let unmatched: Vec<_> = config.filter.unmatched(&names).map(|glob| format!("`{glob}`")).collect();
            if !unmatched.is_empty() {
                let patterns = listed(unmatched);
                dataset.warnings.push(format!("`include` or `exclude` matches no task: {patterns}"));
            }
        }
        Ok(dataset)
    }

    async fn tasks_of(&mut self, config: &DatasetConfig) -> Result<Dataset, DatasetProblem> {
        let mut dataset = Dataset::empty(config.name.clone());
        match &config.source {
            DatasetSource::Path(path) => {
                let path = path.clone();
                let reading = format!("reading {}", path.display());
                let local =
                    self.with_commits(reading, move |commits| load_dataset_dir(&path, commits)).await?;
                LocalDataset { tasks: dataset.tasks, warnings: dataset.warnings } = local;
            }
            DatasetSource::Git(address) => {
                (dataset.tasks, dataset.warnings) = self.git_tasks(address, &mut dataset.resolved).await?;
            }
            DatasetSource::Registry { registry, dataset: name, version } => {
                let (tasks, compat) = match self.resolved.instead_of_registry(&config.name) {
                    Some(tasks) => (tasks, self.resolved.compat(&config.name)),
                    None => {
                        let registry = self.registry(registry).await?;
                        let mut found = registry.dataset(name, version.as_deref())?;
                        self.resolved.keep(&config.name, &mut found.tasks);
                        (found.tasks, found.compat)
                    }
                };
                (dataset.tasks, dataset.resolved) = self.registry_tasks(tasks).await?;
                dataset.follow(compat);
            }
            DatasetSource::Named { dataset: name, version } => {
                let mut origin = None;
                let (tasks, compat) = match self.resolved.instead_of_registry(&config.name) {
                    Some(tasks) => (tasks, self.resolved.compat(&config.name)),
                    None => {
                        let known = self.known_registries().await;
                        let (found, registry) = lookup::find(known, name, version.as_deref())?;
                        let mut tasks = found.tasks;
                        self.resolved.keep(&config.name, &mut tasks);
                        let version = found.version.unwrap_or_else(|| "without a version".to_owned());
                        (self.progress)(format!("dataset {name}: {version}, from {registry}"));
                        origin = Some(format!("{version}, from {registry}"));
                        (tasks, found.compat)
                    }
                };
                (dataset.tasks, dataset.resolved) = self.registry_tasks(tasks).await?;
                dataset.resolved.extend(origin.map(|origin| (format!("dataset {name}"), origin)));
                dataset.follow(compat);
            }
            // The rows are files; a plan takes the examples from the interaction itself.
            DatasetSource::Interaction(interaction) => {
                (dataset.rows, dataset.resolved) = self.rows(interaction).await?;
            }
        }
        Ok(dataset)
    }

    /// The file of mapped rows of an interaction whose examples are not simply a JSON file.
    async fn rows(&self, interaction: &InteractionConfig) -> Result<(Option<PathBuf>, Pins), DatasetProblem> {
        super::hub::rows(self, interaction).await
    }

    /// The registries that can be read, in order, and why the others cannot.
    pub(super) async fn known_registries(&mut self) -> lookup::KnownRegistries {
        let mut known = lookup::KnownRegistries::default();
        for location in &self.sources.registries {
            match self.registry(location).await {
                Ok(registry) => known.registries.push(registry),
                Err(error) => known.unread.push(rollout_core::text::chain(&error)),
            }
        }
        known
    }

    /// The tasks of a directory in a repository.
    async fn git_tasks(
        &mut self,
        address: &GitAddress,
        resolved: &mut Pins,
    ) -> Result<(Vec<TaskEntry>, Vec<String>), DatasetProblem> {
        let invalid = |reason: String| DatasetProblem::Address { address: address.to_string(), reason };
        let url = GitUrl::parse(&address.url).map_err(|error| invalid(error.to_string()))?;
        let path = RepoPath::parse(&address.path).map_err(|error| invalid(error.to_string()))?;
        let revision = address.revision.as_deref();
        let commit = match revision.and_then(|revision| CommitId::parse(revision).ok()) {
            Some(commit) => commit,
            None => {
                let commit = self.commit_of(&url, revision).await?;
                resolved.insert(pin_key(&url, revision), commit.to_string());
                commit
            }
        };
        let cache = self.cache().await?;
        let fetch = || cache.directories(&url, &commit, BTreeSet::from([path.clone()]), self.progress);
        let mut found = retried(&self.sources.retry, self.progress, fetch).await?;
        let Some(dir) = found.remove(&path).flatten() else {
            return Err(invalid(format!("the repository has no directory `{path}` at {commit}")));
        };
        let last = |path: &str| path.rsplit(['/', ':']).next().unwrap_or_default().to_owned();
        let name = match last(path.as_str()) {
            name if name.is_empty() => last(url.shown().trim_end_matches('/').trim_end_matches(".git")),
            name => name,
        };
        let name = TaskName::new(name).map_err(|error| invalid(error.to_string()));
        let is_single = is_task(&dir);
        let read = move |commits: &mut GitCommits| match is_single {
            true => {
                let tasks = load_tasks(vec![(name?, dir)], commits);
                Ok::<_, DatasetProblem>(LocalDataset { tasks, warnings: Vec::new() })
            }
            false => Ok(load_dataset_dir(&dir, commits)?),
        };
        let LocalDataset { mut tasks, warnings } = self.with_commits("reading the tasks", read).await?;
        for entry in &mut tasks {
            let place = match is_single {
                true => path.to_string(),
                false if path.as_str().is_empty() => entry.name.to_string(),
                false => format!("{path}/{}", entry.name),
            };
            let link = github_permalink(url.shown(), commit.as_str());
            if let Ok(task) = entry.task.as_mut()
                && let Some(task) = Arc::get_mut(task)
            {
                task.git_commit_id = Some(commit.to_string());
                task.url = link.map(|link| format!("{link}/{place}"));
            }
            let (url, commit) = (url.to_string(), commit.to_string());
            entry.source = Some(RecordedSource::Git { url, commit, path: place });
        }
        Ok((tasks, warnings))
    }

    async fn registry(&mut self, location: &RegistryLocation) -> Result<Arc<Registry>, RegistryError> {
        if let Some(registry) = self.registries.get(location) {
            return Ok(registry.clone());
        }
        let Sources { cache_dir, offline, .. } = self.sources;
        let opened =
            retried(&self.sources.retry, self.progress, || Registry::open(location, cache_dir, *offline));
        let registry = Arc::new(notice(self.progress, "reading the registry", opened).await?);
        self.registries.insert(location.clone(), registry.clone());
        Ok(registry)
    }

    /// Fetches the tasks of a registry and loads them, by name.
    async fn registry_tasks(
        &mut self,
        tasks: Vec<RegistryTask>,
    ) -> Result<(Vec<TaskEntry>, Pins), DatasetProblem> {
        let mut resolved = Pins::new();
        let mut local = Vec::new();
        let mut sources = HashMap::new();
        let mut remote: Vec<(TaskName, Revision, RepoPath)> = Vec::new();
        for RegistryTask { name, origin } in tasks {
            match origin {
                Origin::Local(dir) => {
                    let absolute = std::path::absolute(&dir).unwrap_or_else(|_| dir.clone());
                    sources.insert(name.clone(), RecordedSource::Directory(absolute));
                    local.push((name, dir));
                }
                Origin::Git { url, commit, path } => {
                    let commit = match commit {
                        Some(commit) => commit,
                        None => {
                            let commit = self.commit_of(&url, None).await?;
                            resolved.insert(url.to_string(), commit.to_string());
                            commit
                        }
                    };
                    let (at, commit_id) = (url.to_string(), commit.to_string());
                    let source = RecordedSource::Git { url: at, commit: commit_id, path: path.to_string() };
                    sources.insert(name.clone(), source);
                    remote.push((name, (url, commit), path));
                }
            }
        }
        let mut entries = self
            .with_commits("reading the tasks", move |commits| Ok::<_, GitError>(load_tasks(local, commits)))
            .await?;
        entries.extend(self.remote_tasks(remote).await?);
        for entry in &mut entries {
            entry.source = sources.remove(&entry.name);
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok((entries, resolved))
    }

    /// Fetches tasks from repositories, each commit once, and loads them.
    async fn remote_tasks(
        &self,
        tasks: Vec<(TaskName, Revision, RepoPath)>,
    ) -> Result<Vec<TaskEntry>, DatasetProblem> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let cache = self.cache().await?;
        let mut wanted: HashMap<Revision, BTreeSet<RepoPath>> = HashMap::new();
        for (_, revision, path) in &tasks {
            wanted.entry(revision.clone()).or_default().insert(path.clone());
        }
        let fetched: HashMap<Revision, Option<BTreeMap<RepoPath, Option<PathBuf>>>> = stream::iter(wanted)
            .map(|(revision, paths)| async move {
                let (url, commit) = &revision;
                let fetch = || cache.directories(url, commit, paths.clone(), self.progress);
                match retried(&self.sources.retry, self.progress, fetch).await {
                    Ok(directories) => Ok((revision, Some(directories))),
                    Err(GitError::NoCommit { .. }) => Ok((revision, None)),
                    Err(error) => Err(error),
                }
            })
            .buffer_unordered(PARALLEL_FETCHES)
            .try_collect()
            .await?;
        let mut entries = Vec::new();
        let mut present = Vec::new();
        let mut commits = HashMap::new();
        for (name, revision, path) in tasks {
            let directories = fetched.get(&revision).and_then(Option::as_ref);
            let has_commit = directories.is_some();
            let dir = directories.and_then(|directories| directories.get(&path)?.clone());
            let (url, commit) = revision;
            match dir {
                Some(dir) => {
                    let seen = github_permalink(url.shown(), &commit.to_string());
                    let seen = seen.map(|commit| format!("{commit}/{path}"));
                    commits.insert(name.clone(), (commit, seen));
                    present.push((name, dir));
                }
                None => {
                    let problem = match has_commit {
                        true => format!(
                            "{url} has no directory `{path}` at {commit}; check `path` in the registry"
                        ),
                        false => GitError::NoCommit { url: url.to_string(), commit: commit.to_string() }
                            .to_string(),
                    };
                    let task = Err(TaskProblem::NotFound(problem));
                    entries.push(TaskEntry { name, task, warnings: Vec::new(), source: None });
                }
            }
        }
        let loaded = blocking(move || {
            let mut loaded = load_in_parallel(present);
            for entry in &mut loaded {
                // The entries were just created, so their tasks have no other owner.
                if let Ok(task) = entry.task.as_mut()
                    && let Some(task) = Arc::get_mut(task)
                {
                    let (commit, url) = commits.remove(&entry.name).unzip();
                    task.git_commit_id = commit.map(|commit| commit.to_string());
                    task.url = url.flatten();
                }
            }
            loaded
        });
        entries.extend(notice(self.progress, "reading the tasks", loaded).await);
        Ok(entries)
    }

    /// The commit of a branch or tag, or of the default branch: looked up once, so that all tasks agree.
    async fn commit_of(&mut self, url: &GitUrl, revision: Option<&str>) -> Result<CommitId, GitError> {
        let pinned = self.resolved.pins.get(&pin_key(url, revision));
        if let Some(commit) = pinned.and_then(|pin| CommitId::parse(pin).ok()) {
            return Ok(commit);
        }
        let key = (url.clone(), revision.map(str::to_owned));
        if let Some(commit) = self.heads.get(&key) {
            return Ok(commit.clone());
        }
        let cache = self.cache().await?;
        let found = retried(&self.sources.retry, self.progress, || cache.look_up(url, revision));
        let commit = notice(self.progress, format!("looking up the newest commit of {url}"), found).await?;
        self.heads.insert(key, commit.clone());
        Ok(commit)
    }

    async fn cache(&self) -> Result<&GitCache, GitError> {
        let Sources { cache_dir, git, offline, .. } = self.sources;
        let find = || async { Ok(GitCache::new(cache_dir, Git::find(git).await?, *offline)) };
        self.cache.get_or_try_init(find).await
    }

    /// Runs blocking work that looks up the commits of local tasks.
    async fn with_commits<T: Send + 'static, E: Send + 'static>(
        &mut self,
        message: impl Into<String>,
        work: impl FnOnce(&mut GitCommits) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let mut commits = std::mem::take(&mut self.commits);
        let work = blocking(move || {
            let result = work(&mut commits);
            (result, commits)
        });
        let (result, commits) = notice(self.progress, message, work).await;
        self.commits = commits;
        result
    }
}

/// The key of a resolved commit in the journal.
fn pin_key(url: &GitUrl, revision: Option<&str>) -> String {
    match revision {
        None => url.to_string(),
        Some(revision) => format!("{url}@{revision}"),
    }
}

/// Runs blocking work on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Waits for some work and reports it if it takes long.
pub(super) async fn notice<T>(
    progress: &(dyn Fn(String) + Send + Sync),
    message: impl Into<String>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    match tokio::time::timeout(NOTICE_AFTER, &mut work).await {
        Ok(value) => value,
        Err(_) => {
            progress(message.into());
            work.await
        }
    }
}
