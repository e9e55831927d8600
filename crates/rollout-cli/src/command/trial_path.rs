//! Finds trials by a path: `<job directory>/<agent>/<dataset>/<task>__<attempt>`, with patterns after the directory.

use std::path::{Path, PathBuf};

use globset::GlobBuilder;
use rollout::{
    name::{TrialId, TrialIndex},
    record::{
        layout::JobDir,
        saved::{SavedError, SavedJob},
    },
};

/// Why a path leads to no trial.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrialPathError {
    #[error("{} is not in a job directory", .0.display())]
    NoJob(PathBuf),
    #[error("{} is a job, not a trial", .0.display())]
    IsJob(PathBuf),
    #[error("{pattern} is not a valid pattern")]
    Pattern { pattern: String, source: globset::Error },
    #[error("the job {} has no trial {pattern}", job.display())]
    NoTrial { job: PathBuf, pattern: String },
    #[error("{} matches {trials} trials", path.display())]
    Several { path: PathBuf, trials: usize, some: Vec<String> },
    #[error(transparent)]
    Saved(#[from] SavedError),
}

impl TrialPathError {
    /// What the user can do.
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::NoJob(_) => Some(
                "pass <job directory>/<agent>/<dataset>/<task>__<attempt>; `rollout list` lists the jobs"
                    .to_owned(),
            ),
            Self::IsJob(job) | Self::NoTrial { job, .. } => {
                Some(format!("`rollout list {}` lists its trials", job.display()))
            }
            Self::Several { some, .. } => Some(format!("pass one of them, such as {}", some.join(", "))),
            Self::Pattern { .. } | Self::Saved(_) => None,
        }
    }
}

/// A trial of a job.
pub(super) struct FoundTrial {
    pub(super) job: SavedJob,
    pub(super) index: TrialIndex,
    pub(super) id: TrialId,
}

impl FoundTrial {
    /// The directory of the trial. Rollouts and questions have none.
    pub(super) fn dir(&self) -> PathBuf {
        JobDir::new(self.job.path()).trial(&self.id).of_last_result().path().to_owned()
    }

    /// Whether it is a rollout or a question.
    pub(super) fn is_example(&self) -> bool {
        let task = self.job.parts(self.index).map(|(_, task, _)| &self.job.header().tasks[task]);
        task.is_some_and(|task| task.example_id.is_some())
    }

    /// Reads what was recorded since.
    pub(super) fn update(&mut self) -> Result<(), SavedError> {
        if self.job.update()?.is_none() {
            // The job has grown, so that the indexes have moved.
            self.index = self.job.index_of(&self.id.to_string()).unwrap_or(self.index);
        }
        Ok(())
    }

    /// The path that the user can pass to other commands.
    pub(super) fn path(&self) -> PathBuf {
        self.job.path().join(self.id.to_string())
    }
}

/// How many matching trials a message names.
const NAMED: usize = 3;

/// Finds the one trial that a path names.
pub(super) fn find(path: &Path) -> Result<FoundTrial, TrialPathError> {
    let (job, mut found) = find_all(path)?;
    if found.len() == 1 {
        let (index, id) = found.remove(0);
        return Ok(FoundTrial { job, index, id });
    }
    let some = found.iter().take(NAMED);
    let some = some.map(|(_, id)| job.path().join(id.to_string()).display().to_string()).collect();
    Err(TrialPathError::Several { path: path.to_owned(), trials: found.len(), some })
}

/// Finds all trials that a path names, at least one.
pub(super) fn find_all(path: &Path) -> Result<(SavedJob, Vec<(TrialIndex, TrialId)>), TrialPathError> {
    let (job, pattern) = split(path)?;
    let job = SavedJob::open(job)?;
    let exact = job.index_of(&pattern).and_then(|index| Some((index, job.id(index)?)));
    if let Some(exact) = exact {
        return Ok((job, vec![exact]));
    }
    let glob = GlobBuilder::new(&pattern).literal_separator(true).build();
    let glob = glob
        .map_err(|source| TrialPathError::Pattern { pattern: pattern.clone(), source })?
        .compile_matcher();
    let found: Vec<_> = job.ids().filter(|(_, id)| glob.is_match(id.to_string())).collect();
    match found.is_empty() {
        true => Err(TrialPathError::NoTrial { job: job.path().to_owned(), pattern }),
        false => Ok((job, found)),
    }
}

/// Splits a path into the directory of the job and the rest.
fn split(path: &Path) -> Result<(PathBuf, String), TrialPathError> {
    for directory in path.ancestors() {
        if !JobDir::new(directory).journal().is_file() {
            continue;
        }
        let rest = path.strip_prefix(directory).unwrap_or(path);
        return match rest.to_str() {
            Some("") => Err(TrialPathError::IsJob(directory.to_owned())),
            Some(rest) => Ok((directory.to_owned(), rest.to_owned())),
            None => Err(TrialPathError::NoTrial {
                job: directory.to_owned(),
                pattern: rest.display().to_string(),
            }),
        };
    }
    Err(TrialPathError::NoJob(path.to_owned()))
}
