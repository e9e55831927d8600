//! Datasets on this machine: a directory of tasks, or a single task.

use std::{
    fs, io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{
    GitCommits, TaskEntry,
    dir::{load_task, looks_like_task},
    shown,
};
use rollout_core::{
    name::{NameError, TaskName},
    text::listed,
};

/// Why a directory is not a dataset.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// It does not exist.
    #[error("the directory {} does not exist; relative paths start at the job file", shown(path))]
    NotFound {
        /// The path that was tried.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("cannot read {}", shown(path))]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It contains no task.
    #[error(
        "{} contains no task: a task is a directory with instruction.md and tests/test.sh{}",
        shown(path),
        nested.as_ref().map(|nested| format!("; did you mean {}?", shown(nested))).unwrap_or_default()
    )]
    Empty {
        /// The directory.
        path: PathBuf,
        /// A directory inside it that contains tasks.
        nested: Option<PathBuf>,
    },
    /// The name of a task's directory is not valid in results.
    #[error("invalid name of the task in {}; rename the directory", shown(path))]
    Name {
        /// The directory of the task.
        path: PathBuf,
        /// The problem of the name.
        #[source]
        source: NameError,
    },
}

/// The tasks of a local directory.
#[derive(Debug)]
pub struct LocalDataset {
    /// Its tasks, by name.
    pub tasks: Vec<TaskEntry>,
    /// Warnings about the directory, one sentence each.
    pub warnings: Vec<String>,
}

/// Loads a directory of tasks, or a single task.
///
/// Plain files and hidden directories are skipped. A symbolic link to a directory counts as that directory, so that a
/// dataset can consist of tasks from other directories. It reads files and calls git, so call it on a thread that may
/// block.
pub fn load_dataset_dir(path: &Path, commits: &mut GitCommits) -> Result<LocalDataset, LocalError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            LocalError::NotFound { path: path.to_owned() }
        }
        _ => LocalError::Unreadable { path: path.to_owned(), source },
    };
    let path = &fs::canonicalize(path).map_err(unreadable)?;
    if is_task(path) {
        let tasks = load_tasks(vec![(task_name(path)?, path.clone())], commits);
        return Ok(LocalDataset { tasks, warnings: Vec::new() });
    }
    let mut dirs = Vec::new();
    let mut ignored = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let dir = entry.path();
        if !(kind.is_dir() || kind.is_symlink() && dir.is_dir()) {
            continue;
        }
        // An empty directory is a task that is not written yet; one with other files is documentation, scripts and the
        // like.
        if looks_like_task(&dir) || fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_none()) {
            dirs.push((task_name(&dir)?, dir));
        } else {
            ignored.push(dir);
        }
    }
    if dirs.is_empty() {
        let nested = ignored.into_iter().find(|dir| holds_tasks(dir));
        return Err(LocalError::Empty { path: path.clone(), nested });
    }
    dirs.sort_unstable();
    ignored.sort_unstable();
    let mut warnings = Vec::new();
    if !ignored.is_empty() {
        let names = listed(ignored.iter().map(|dir| shown(dir.strip_prefix(path).unwrap_or(dir))));
        warnings.push(format!(
            "{} contains directories without any file of a task, which are ignored: {names}",
            shown(path)
        ));
    }
    Ok(LocalDataset { tasks: load_tasks(dirs, commits), warnings })
}

/// Whether a directory is a single task.
pub(super) fn is_task(dir: &Path) -> bool {
    ["task.toml", "instruction.md"].iter().any(|name| dir.join(name).symlink_metadata().is_ok())
}

fn task_name(dir: &Path) -> Result<TaskName, LocalError> {
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    TaskName::new(name).map_err(|source| LocalError::Name { path: dir.to_owned(), source })
}

fn holds_tasks(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|entry| looks_like_task(&entry.path())))
}

/// Loads tasks from disk and adds the commits of their repositories; the order is kept.
pub(super) fn load_tasks(dirs: Vec<(TaskName, PathBuf)>, commits: &mut GitCommits) -> Vec<TaskEntry> {
    let mut entries = load_in_parallel(dirs);
    for entry in &mut entries {
        if let Ok(task) = &mut entry.task {
            let commit = commits.of(&task.dir);
            // The entry was just created, so the task has no other owner.
            if let Some(task) = Arc::get_mut(task) {
                task.git_commit_id = commit;
            }
        }
    }
    entries
}

/// Loads tasks with one thread per core: with thousands of small files, most of the time is spent waiting.
pub(super) fn load_in_parallel(dirs: Vec<(TaskName, PathBuf)>) -> Vec<TaskEntry> {
    /// How many tasks a thread takes at a time, so that few tasks need only one thread.
    const BATCH: usize = 64;
    let threads =
        thread::available_parallelism().map_or(1, NonZeroUsize::get).min(dirs.len().div_ceil(BATCH));
    if threads <= 1 {
        return dirs.into_iter().map(load_entry).collect();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(dirs.len()));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let start = next.fetch_add(BATCH, Ordering::Relaxed);
                    let Some(batch) =
                        dirs.get(start..dirs.len().min(start + BATCH)).filter(|b| !b.is_empty())
                    else {
                        break;
                    };
                    let loaded: Vec<_> = batch.iter().cloned().map(load_entry).collect();
                    done.lock().expect("no thread panics with the lock held").push((start, loaded));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with the lock held");
    done.sort_unstable_by_key(|(start, _)| *start);
    done.into_iter().flat_map(|(_, loaded)| loaded).collect()
}

fn load_entry((name, dir): (TaskName, PathBuf)) -> TaskEntry {
    match load_task(&dir, name.clone()) {
        Ok((task, warnings)) => TaskEntry { name, task: Ok(Arc::new(task)), warnings, source: None },
        Err(problem) => TaskEntry { name, task: Err(problem), warnings: Vec::new(), source: None },
    }
}

#[cfg(test)]
mod tests {
    use super::{super::TaskProblem, *};

    #[test]
    fn a_missing_task_is_not_found() {
        let entry = load_entry((TaskName::new("gone").unwrap(), PathBuf::from("/nowhere/gone")));
        assert_eq!(
            entry.task.unwrap_err(),
            TaskProblem::NotFound("the directory /nowhere/gone does not exist".to_owned())
        );
    }
}
