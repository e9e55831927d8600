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
    job::{JobLine, JobStamp, JobView},
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
    /// The lines of the list, each with the state of its job.
    lines: Mutex<HashMap<String, (JobStamp, JobLine)>>,
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
        Ok(Self {
            root,
            given: dir.to_owned(),
            is_job,
            options,
            open: Mutex::default(),
            lines: Mutex::default(),
        })
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

    /// The jobs, the newest first. A job is opened only if it has changed since it was listed.
    pub(crate) fn list(&self) -> Result<Vec<ListedJob>, ViewError> {
        let mut jobs: Vec<ListedJob> = Vec::new();
        let names = self.names()?;
        // The names are sorted.
        lock(&self.lines).retain(|name, _| names.binary_search(name).is_ok());
        for name in names {
            let stamp = self.path(&name).map(|path| JobStamp::of_line(&path)).unwrap_or_default();
            let known = lock(&self.lines).get(&name).filter(|(known, _)| *known == stamp).cloned();
            if let Some((_, line)) = known {
                jobs.push(Ok(line));
                continue;
            }
            match self.job(&name) {
                Ok(job) => {
                    let line = lock(&job).line();
                    lock(&self.lines).insert(name, (stamp, line.clone()));
                    jobs.push(Ok(line));
                }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use rollout_core::event::JobKind;
    use rollout_record::journal::{Header, Journal, JournalEntry, JournalError, VERSION};

    use super::*;

    /// Creates a job without tasks.
    fn journal(dir: &Path) -> Journal {
        fs::create_dir(dir).unwrap();
        let header = Header {
            version: VERSION,
            kind: JobKind::Job,
            job_name: "job".to_owned(),
            directory: None,
            job_file: PathBuf::from("/job.yaml"),
            overrides: Vec::new(),
            config_hash: "sha256:0".to_owned(),
            config: None,
            provider: "native".to_owned(),
            agents: vec!["agent".to_owned()],
            attempts: 1,
            pins: BTreeMap::new(),
            selection: None,
            dataset_sizes: BTreeMap::new(),
            regrade: None,
            imported: None,
            tasks: Vec::new(),
        };
        let tasks = std::iter::empty::<Result<_, JournalError>>();
        Journal::create(&JobDir::new(dir).journal(), header, tasks).unwrap()
    }

    #[test]
    fn a_job_is_opened_again_for_the_list_only_if_it_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        drop(journal(&dir.path().join("old")));
        let mut new = journal(&dir.path().join("new"));
        let library = Library::open(dir.path(), ViewOptions::default()).unwrap();
        let list = || {
            let jobs = library.list().unwrap().into_iter().map(|job| job.unwrap().name);
            let mut open: Vec<String> = lock(&library.open).jobs.drain().map(|(name, _)| name).collect();
            open.sort_unstable();
            (jobs.count(), open)
        };
        assert_eq!(list(), (2, vec!["new".to_owned(), "old".to_owned()]));
        assert_eq!(list(), (2, Vec::new()));
        new.push(&JournalEntry::RunStarted { at: Timestamp::UNIX_EPOCH, provenance: None });
        new.sync().unwrap();
        assert_eq!(list(), (2, vec!["new".to_owned()]));
        drop(new);
        fs::remove_dir_all(dir.path().join("old")).unwrap();
        assert_eq!(list().0, 1);
    }
}
