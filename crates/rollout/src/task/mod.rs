//! Task directories, datasets, registries and git.
//!
//! [`Sources::load`] turns the `datasets` of a job into [`Dataset`]s whose tasks lie on disk, wherever
//! they came from. What is wrong with one task stays with that task; what is wrong with a dataset is
//! a [`DatasetError`], and nothing runs.

mod about;
mod commits;
mod content;
mod dir;
mod download;
mod git;
mod local;
mod registry;
mod resolved;
mod retry;
mod sources;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rollout_env::{EnvironmentTemplate, ImageRequest, Origin};

use crate::config::{Diagnostic, TaskConfig};
use rollout_core::name::{DatasetName, TaskName};
use rollout_record::journal::RecordedSource;

pub use commits::GitCommits;
pub use dir::load_task;
pub use download::DownloadError;
pub(crate) use git::git_state;
pub use git::{Checkout, GitError, checkouts, git_version, remove_unused_checkouts};
pub use local::{LocalDataset, LocalError, load_dataset_dir};
pub use registry::RegistryError;
pub use resolved::Resolved;
pub use sources::{DatasetError, DatasetProblem, Sources};

/// A task that is complete on disk.
#[derive(Debug, Clone)]
pub struct Task {
    /// The name of its directory, or its name in the registry.
    pub name: TaskName,
    /// Where it lies: instruction.md, task.toml, environment/, tests/ and perhaps solution/.
    pub dir: PathBuf,
    /// Where its Dockerfile lies, with what that copies: environment/.
    pub context: PathBuf,
    /// Its task.toml.
    pub config: TaskConfig,
    /// The commit of the repository that holds it.
    pub git_commit_id: Option<String>,
    /// Where it can be seen at that commit, if a registry says that it is in a repository on GitHub.
    pub url: Option<String>,
    /// Whether solution/solve.sh is there.
    pub has_solution: bool,
    /// Whether task.toml is there; every setting has its default otherwise.
    pub has_config: bool,
}

impl Task {
    /// Asks for the image of its environments.
    pub fn image_request<'a>(
        &'a self,
        origin: Origin<'a>,
        force_build: bool,
        log: &'a Path,
    ) -> ImageRequest<'a> {
        let docker_image = self.config.docker_image.as_deref();
        ImageRequest { origin, context: &self.context, docker_image, force_build, log }
    }

    /// What its environments are made from, for an interaction that gives each rollout one.
    pub fn template(&self) -> EnvironmentTemplate {
        EnvironmentTemplate {
            name: self.name.to_string(),
            context: self.context.clone(),
            docker_image: self.config.docker_image.clone(),
            build_timeout: Duration::try_from_secs_f64(self.config.build_timeout_sec)
                .unwrap_or(Duration::MAX),
            cpus: self.config.cpus,
            memory: self.config.memory,
            storage: self.config.storage,
        }
    }
}

/// The tasks of one entry of `datasets`, in a stable order.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Names it in results and directories.
    pub name: DatasetName,
    /// Its tasks, by name.
    pub tasks: Vec<TaskEntry>,
    /// The commits that were chosen for tasks whose registry names none.
    pub resolved: Pins,
    /// What may surprise about the dataset as a whole, one sentence each.
    pub warnings: Vec<String>,
}

/// A task of a dataset, or why it cannot be run.
#[derive(Debug, Clone)]
pub struct TaskEntry {
    /// Its name, known also when the rest is not.
    pub name: TaskName,
    /// The task, or what is wrong with it.
    pub task: Result<Arc<Task>, TaskProblem>,
    /// What its task.toml asks for that Rollout does not do, or reads differently.
    pub warnings: Vec<Diagnostic>,
    /// Where a registry says that it is.
    pub source: Option<RecordedSource>,
}

/// Commits by git URL, for registry tasks that name none.
///
/// A resumed job hands back what its first run resolved, so that both run the same tasks. The URLs
/// are without credentials: the map is made to be recorded.
pub type Pins = BTreeMap<String, String>;

/// Why a task of a dataset cannot be run. Its trials fail; those of other tasks run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskProblem {
    /// Its files are incomplete or wrong: every problem, rendered with its source line.
    #[error("{0}")]
    Invalid(String),
    /// It is not where the dataset says.
    #[error("{0}")]
    NotFound(String),
}

/// Makes a path fit for a message: names of files are written by strangers.
fn shown(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}
