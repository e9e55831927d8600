//! The jobs of a directory: found, opened when they are asked for, and kept in memory up to a limit.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rollout_record::{layout::JobDir, saved::SavedError};

use crate::{
    error::ViewError,
    job::{JobLine, JobView},
    options::ViewOptions,
};

/// The most trials of jobs in memory beside the job that is shown.
const MAX_TRIALS: usize = 200_000;

/// A job that requests share.
pub(crate) type SharedJob = Arc<Mutex<JobView>>;

/// The jobs of a directory.
#[derive(Debug)]
pub(crate) struct Library {
    root: PathBuf,
    /// The directory as it was given, for commands that people copy.
    given: PathBuf,
    /// Whether the directory is itself a job.
    is_job: bool,
    options: ViewOptions,
    open: Mutex<OpenJobs>,
}

#[derive(Debug, Default)]
struct OpenJobs {
    /// Each with the time of its last use.
    jobs: HashMap<String, (SharedJob, u64)>,
    uses: u64,
}

/// A job of the list, or why it cannot be read.
pub(crate) type ListedJob = Result<JobLine, (String, SavedError)>;

impl Library {
    /// Opens a directory of jobs, or a job.
    pub(crate) fn open(dir: &Path, options: ViewOptions) -> Result<Self, ViewError> {
        let root = dir
            .canonicalize()
            .and_then(|root| fs::read_dir(&root).map(|_| root))
            .map_err(|source| ViewError::Directory { path: dir.to_owned(), source })?;
        let is_job = JobDir::new(&root).journal().is_file();
        Ok(Self { root, given: dir.to_owned(), is_job, options, open: Mutex::default() })
    }

    /// The names of the jobs. Links that lead out of the directory are not jobs of it.
    pub(crate) fn names(&self) -> Result<Vec<String>, ViewError> {
        if self.is_job {
            let name = self.root.file_name().map(|name| name.to_string_lossy().into_owned());
            return Ok(vec![name.unwrap_or_else(|| "job".to_owned())]);
        }
        let failed = |source| ViewError::Directory { path: self.root.clone(), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let Ok(name) = entry.map_err(failed)?.file_name().into_string() else { continue };
            if self.path(&name).is_some() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The directory of a job; None if there is none of that name.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        let path = if self.is_job { self.root.clone() } else { self.root.join(name) };
        let path = path.canonicalize().ok()?;
        let journal = JobDir::new(&path).journal().canonicalize().ok()?;
        (path.starts_with(&self.root) && journal.starts_with(&path) && journal.is_file()).then_some(path)
    }

    /// The job of that name, as it is now.
    pub(crate) fn job(&self, name: &str) -> Result<SharedJob, ViewError> {
        let path = self.path(name).ok_or_else(|| ViewError::NotFound(format!("the job {name}")))?;
        if self.is_job && self.names()?.first().is_none_or(|own| own != name) {
            return Err(ViewError::NotFound(format!("the job {name}")));
        }
        let known = {
            let mut open = lock(&self.open);
            open.uses += 1;
            let now = open.uses;
            open.jobs.get_mut(name).map(|(job, used)| {
                *used = now;
                Arc::clone(job)
            })
        };
        if let Some(job) = known {
            lock(&job).update()?;
            return Ok(job);
        }
        let given = if self.is_job { self.given.clone() } else { self.given.join(name) };
        let job = JobView::open(name.to_owned(), path, given, self.options.clone())?;
        let job = Arc::new(Mutex::new(job));
        let mut open = lock(&self.open);
        let now = open.uses;
        open.jobs.insert(name.to_owned(), (Arc::clone(&job), now));
        open.close_unused(name);
        Ok(job)
    }

    /// The jobs, the newest first.
    pub(crate) fn list(&self) -> Result<Vec<ListedJob>, ViewError> {
        let mut jobs: Vec<ListedJob> = Vec::new();
        for name in self.names()? {
            match self.job(&name) {
                Ok(job) => jobs.push(Ok(lock(&job).line())),
                // One damaged job must not hide the others.
                Err(ViewError::Saved(error)) => jobs.push(Err((name, error))),
                Err(error) => return Err(error),
            }
        }
        jobs.sort_by_key(|job| std::cmp::Reverse(job.as_ref().ok().and_then(|line| line.started_at)));
        Ok(jobs)
    }
}

impl OpenJobs {
    /// Forgets the jobs that were not used for longest, while there are too many trials in memory.
    fn close_unused(&mut self, kept: &str) {
        loop {
            let others = || self.jobs.iter().filter(|(name, _)| *name != kept);
            let trials: usize = others().map(|(_, (job, _))| lock(job).planned()).sum();
            let oldest = others().min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone());
            match oldest {
                Some(oldest) if trials > MAX_TRIALS => drop(self.jobs.remove(&oldest)),
                _ => return,
            }
        }
    }
}

/// Locks, also after a panic of another request: the data is read again if its files change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
