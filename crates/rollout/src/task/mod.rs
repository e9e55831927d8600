//! Task directories, datasets, registries and git.

use std::{path::PathBuf, sync::Arc};

use crate::{
    config::TaskConfig,
    name::{DatasetName, TaskName},
};

/// A task that is complete on disk.
#[derive(Debug, Clone)]
pub struct Task {
    /// The name of its directory, or its name in the registry.
    pub name: TaskName,
    /// Where it lies: instruction.md, task.toml, environment/, tests/ and perhaps solution/.
    pub dir: PathBuf,
    /// Its task.toml.
    pub config: TaskConfig,
    /// The commit of the repository that holds it.
    pub git_commit_id: Option<String>,
    /// Whether solution/solve.sh is there.
    pub has_solution: bool,
}

/// The tasks of one entry of `datasets`, in a stable order.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Names it in results and directories.
    pub name: DatasetName,
    /// Its tasks, by name.
    pub tasks: Vec<TaskEntry>,
}

/// A task of a dataset, or why it cannot be run.
#[derive(Debug, Clone)]
pub struct TaskEntry {
    /// Its name, known also when the rest is not.
    pub name: TaskName,
    /// The task, or what is wrong with it.
    pub task: Result<Arc<Task>, TaskProblem>,
}

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
