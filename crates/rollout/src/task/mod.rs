//! Task directories, datasets, registries, git and hubs.
//!
//! [`Sources::load`] turns the `datasets` of a job into [`Dataset`]s whose tasks are on disk, wherever they came from.
//! A problem of one task affects only that task; a problem of a dataset is a [`DatasetError`], and nothing runs.

mod about;
mod commits;
mod content;
mod demands;
mod dir;
mod download;
mod git;
mod hub;
mod local;
mod lookup;
mod registry;
mod resolved;
mod retry;
mod sources;
mod verified;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rollout_env::{EnvironmentTemplate, ImageRequest, Origin, ResourceLimits, compose::ComposeFile};

use crate::config::{Compat, Diagnostic, EnvironmentConfig, TaskBounds, TaskConfig};
use rollout_core::name::{DatasetName, TaskName};
use rollout_record::journal::RecordedSource;

pub use commits::GitCommits;
pub use demands::{Unsupported, unsupported};
pub(crate) use dir::compose_file;
pub use dir::load_task;
pub use download::DownloadError;
pub(crate) use git::git_state;
pub use git::{Checkout, GitError, cached_directory, checkouts, git_version, remove_unused_checkouts};
pub use hub::{HubAccess, HubDataError, HubDataset, HubFile};
pub use local::{LocalDataset, LocalError, load_dataset_dir};
pub use lookup::RegistryList;
pub use registry::{RegistryEntry, RegistryError};
pub use resolved::Resolved;
pub use sources::{DatasetError, DatasetProblem, Sources};

/// A complete task on disk.
#[derive(Debug, Clone)]
pub struct Task {
    /// The name of its directory, or its name in the registry.
    pub name: TaskName,
    /// Its directory: instruction.md, task.toml, environment/, tests/ and optionally solution/.
    pub dir: PathBuf,
    /// The directory of its Dockerfile and build context: environment/.
    pub context: PathBuf,
    /// The directory of its tests: tests/, or another one that a regrade uses instead.
    pub tests: PathBuf,
    /// Its task.toml.
    pub config: TaskConfig,
    /// The commit of its repository.
    pub git_commit_id: Option<String>,
    /// A link to it at that commit, if a registry names a repository on GitHub.
    pub url: Option<String>,
    /// Whether solution/solve.sh exists.
    pub has_solution: bool,
    /// Whether task.toml exists; otherwise every setting has its default.
    pub has_config: bool,
    /// Whether the rules of Harbor apply.
    pub is_harbor: bool,
    /// Files of the task that change how it is run.
    pub files: TaskFiles,
    /// environment/docker-compose.yaml, with variables that are not expanded.
    pub compose: Option<Arc<ComposeFile>>,
    /// tests/docker-compose.yaml, with variables that are not expanded.
    pub tests_compose: Option<Arc<ComposeFile>>,
}

/// Optional files of a task that change how it is run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFiles {
    /// environment/Dockerfile.
    pub dockerfile: bool,
    /// ENTRYPOINT or HEALTHCHECK in environment/Dockerfile.
    pub startup: bool,
    /// tests/Dockerfile.
    pub tests_dockerfile: bool,
    /// tests/test.sh is missing, also for a step, and the tests have an image of their own.
    pub tests_only_in_image: bool,
    /// trajectory.json beside the first instruction: an earlier conversation that the agent continues.
    pub trajectory: Option<PathBuf>,
}

impl Task {
    /// The limits of its environments and agents.
    pub fn bounds(&self) -> TaskBounds {
        self.config.bounds(self.is_harbor)
    }

    /// The limits of its environment in a job.
    pub fn limits(&self, job: &EnvironmentConfig) -> ResourceLimits {
        let bounds = self.bounds();
        ResourceLimits {
            cpus: job.override_cpus.or(bounds.cpus),
            memory: job.override_memory.or(bounds.memory),
            storage: job.override_storage.or(bounds.storage),
        }
    }

    /// Why the task cannot be run, if it lacks something that only the rules of Harbor allow to be missing. The rules can
    /// come from the job, so they are not known when the task is loaded.
    pub fn missing(&self) -> Option<TaskProblem> {
        (self.files.tests_only_in_image && !self.is_harbor).then(|| {
            TaskProblem::Invalid(format!(
                "{} is not a complete task:\n- tests/test.sh is missing (with `compat: harbor`, it can be in the \
                 image of the tests instead)",
                shown(&self.dir)
            ))
        })
    }

    /// The request for the image of its environments. A compose file may say how the image of `main` is built.
    pub fn image_request<'a>(
        &'a self,
        compose: Option<&'a ComposeFile>,
        origin: Origin<'a>,
        force_build: bool,
        log: &'a Path,
    ) -> ImageRequest<'a> {
        let main = compose.and_then(ComposeFile::main);
        let build = main.and_then(|main| main.build.as_ref());
        let named = main.and_then(|main| main.image.as_deref());
        let named = named.filter(|_| build.is_none() && !self.files.dockerfile);
        ImageRequest {
            origin,
            context: build.map_or(&self.context, |build| &build.context),
            docker_image: self.config.docker_image.as_deref().or(named),
            build: build.map(|build| &build.options),
            // There is nothing to build if only a compose file names an image.
            force_build: force_build && (named.is_none() || self.config.docker_image.is_some()),
            log,
        }
    }

    /// The template of its environments, for an interaction with an environment per rollout.
    pub fn template(&self) -> EnvironmentTemplate {
        EnvironmentTemplate {
            name: self.name.to_string(),
            context: self.context.clone(),
            docker_image: self.config.docker_image.clone(),
            build_timeout: Duration::try_from_secs_f64(self.config.build_timeout_sec)
                .unwrap_or(Duration::MAX),
            cpus: self.bounds().cpus,
            memory: self.bounds().memory,
            storage: self.bounds().storage,
        }
    }
}

/// The tasks of one entry of `datasets`, in a stable order.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Its name in results and directories.
    pub name: DatasetName,
    /// Its tasks, by name.
    pub tasks: Vec<TaskEntry>,
    /// The rules for its tasks, if a registry names them.
    pub compat: Option<Compat>,
    /// What was looked up: commits of branches, tags and hubs, and versions of datasets.
    pub resolved: Pins,
    /// Warnings about the dataset as a whole, one sentence each.
    pub warnings: Vec<String>,
    /// The file of the examples of an interaction, as JSON lines, if they had to be fetched or converted.
    pub rows: Option<PathBuf>,
}

impl Dataset {
    fn empty(name: DatasetName) -> Self {
        Self {
            name,
            tasks: Vec::new(),
            compat: None,
            resolved: Pins::new(),
            warnings: Vec::new(),
            rows: None,
        }
    }

    /// Applies the rules that a registry names, and keeps them for a resume, which does not read the registry.
    fn follow(&mut self, compat: Option<Compat>) {
        self.compat = compat;
        if let Some(Compat::Harbor) = compat {
            self.resolved.insert(resolved::compat_key(&self.name), "harbor".to_owned());
        }
    }
}

/// A task of a dataset, or why it cannot be run.
#[derive(Debug, Clone)]
pub struct TaskEntry {
    /// Its name, known even if the task is invalid.
    pub name: TaskName,
    /// The task, or its problem.
    pub task: Result<Arc<Task>, TaskProblem>,
    /// Warnings about settings in its task.toml that are not supported, or read differently.
    pub warnings: Vec<Diagnostic>,
    /// Its location in a registry.
    pub source: Option<RecordedSource>,
}

/// Commits by what was asked for: a git URL, with the branch or tag if there is one, or a dataset on a hub.
///
/// A resumed job gets what its first run resolved, so that both run the same tasks. The URLs have no credentials,
/// because the map is recorded.
pub type Pins = BTreeMap<String, String>;

/// Why a task of a dataset cannot be run. Its trials fail; those of other tasks run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskProblem {
    /// Its files are incomplete or invalid: every problem, with its source line.
    #[error("{0}")]
    Invalid(String),
    /// It is not at the location in the dataset.
    #[error("{0}")]
    NotFound(String),
}

/// Escapes a path for a message: names of files are untrusted.
fn shown(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}
