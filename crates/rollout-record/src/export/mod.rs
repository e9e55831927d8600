//! Exports of results to the formats of other tools.
//!
//! Every format is a module with a function that takes an [`Export`]: a job on disk, and the output directory. Trials
//! are read one by one, so memory does not grow with their number. Existing files are never overwritten. The functions
//! block, so call them where blocking is allowed.

pub mod atif;
mod chat;
pub mod csv;
pub mod eee;
pub mod eval_log;
pub mod inspect;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod sft;
pub mod table;
pub mod verifiers;

use std::{
    cell::RefCell,
    collections::HashMap,
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;

use crate::{
    journal::PlannedTask,
    layout::JobDir,
    notes::{NoteTag, NotesError, TagExclusion},
    saved::{SavedError, SavedJob, SavedTrial},
};
use rollout_core::display::count;

/// An export of a job.
pub struct Export<'a> {
    /// The job.
    pub job: &'a SavedJob,
    dir: PathBuf,
    progress: RefCell<Box<dyn FnMut(u64) + 'a>>,
    exclusion: TagExclusion,
    /// How many trials were left out by their tags so far, by agent and dataset.
    excluded: RefCell<HashMap<(String, String), u64>>,
}

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exported {
    /// The main files or directories.
    pub files: Vec<PathBuf>,
    /// The number of rows, samples or records in them.
    pub rows: u64,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The job cannot be read.
    #[error(transparent)]
    Job(#[from] SavedError),
    /// The tags and comments of the job cannot be read.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// An output file already exists.
    #[error("{} already exists, and results are never overwritten", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The job contains nothing for this format.
    #[error("{} has nothing to export: {reason}", path.display())]
    Nothing {
        /// The job's directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl ExportError {
    /// Returns advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Exists(_) => Some("choose another directory, or remove the file"),
            Self::Job(SavedError::NotAJob(_) | SavedError::Missing(_)) => {
                Some("pass the directory that `rollout run` printed")
            }
            Self::Write { source, .. } => match source.kind() {
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                    Some("the output directory is a file; choose another directory")
                }
                _ => None,
            },
            Self::Job(_) | Self::Notes(_) | Self::Nothing { .. } => None,
        }
    }
}

impl<'a> Export<'a> {
    /// Creates an export to a directory, which need not exist. Fails if no trial of the job is finished.
    pub fn new(job: &'a SavedJob, dir: impl Into<PathBuf>) -> Result<Self, ExportError> {
        if job.is_empty() {
            let reason = "no trial is finished".to_owned();
            return Err(ExportError::Nothing { path: job.path().to_owned(), reason });
        }
        Ok(Self {
            job,
            dir: dir.into(),
            progress: RefCell::new(Box::new(|_| {})),
            exclusion: TagExclusion::default(),
            excluded: RefCell::default(),
        })
    }

    /// Leaves out the trials that have one of these tags.
    pub fn without(self, tags: &[NoteTag]) -> Result<Self, ExportError> {
        let exclusion = TagExclusion::read(&JobDir::new(self.job.path()), tags)?;
        Ok(Self { exclusion, ..self })
    }

    /// Whether a trial is left out by its tags.
    pub fn excludes(&self, trial: &SavedTrial) -> bool {
        self.exclusion.excludes(&trial.id)
    }

    /// What was left out by tags so far, as a line for people; None if no tag is excluded.
    pub fn excluded(&self) -> Option<String> {
        let tags: Vec<&str> = self.exclusion.tags().iter().map(NoteTag::as_str).collect();
        let trials = self.excluded.borrow().values().sum();
        (!tags.is_empty()).then(|| format!("{} by tag: {}", count(trials, "trial"), tags.join(", ")))
    }

    /// What was left out by tags so far; None if no trial was.
    pub fn by_tag(&self) -> Option<String> {
        self.excluded().filter(|_| !self.excluded.borrow().is_empty())
    }

    /// Returns the error for a format for which nothing is left, with the reasons.
    pub(crate) fn nothing(&self, before: &str, left_out: &[String]) -> ExportError {
        let reasons: Vec<String> = left_out.iter().cloned().chain(self.by_tag()).collect();
        let reason = format!("{before}{}", reasons.join(", "));
        ExportError::Nothing { path: self.job.path().to_owned(), reason }
    }

    /// How many trials of an agent on a dataset were left out by their tags so far.
    pub(crate) fn excluded_of(&self, agent: &str, dataset: &str) -> u64 {
        let pair = (agent.to_owned(), dataset.to_owned());
        self.excluded.borrow().get(&pair).copied().unwrap_or_default()
    }

    /// Returns the number of unfinished trials, which are not exported.
    pub fn unfinished(&self) -> u64 {
        self.job.planned().saturating_sub(self.job.len() as u64)
    }

    /// Sets a function that is called after each trial with the number of trials read.
    #[must_use]
    pub fn progress(self, progress: impl FnMut(u64) + 'a) -> Self {
        Self { progress: RefCell::new(Box::new(progress)), ..self }
    }

    /// Returns the output directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the files of an agent on a dataset, relative to the output directory. It is a separate
    /// directory unless the job has only one pair of agent and dataset.
    pub fn section(&self, agent: &str, dataset: &str) -> PathBuf {
        if self.job.groups().nth(1).is_none() { PathBuf::new() } else { Path::new(agent).join(dataset) }
    }

    /// Returns the number of each task in its dataset: that of the example, or its index.
    pub fn examples(&self) -> Vec<u64> {
        let mut places: HashMap<&str, u64> = HashMap::new();
        let number = |task: &'a PlannedTask| {
            let place = places.entry(&task.dataset).or_default();
            *place += 1;
            task.example_id.unwrap_or(*place - 1)
        };
        self.job.header().tasks.iter().map(number).collect()
    }

    /// Returns the finished trials of the job in the order of the plan, without those that are left out by their tags.
    pub fn trials(&self) -> Result<impl Iterator<Item = Result<SavedTrial, ExportError>> + '_, ExportError> {
        Ok(self.all_trials()?.filter(|trial| !trial.as_ref().is_ok_and(|trial| self.excludes(trial))))
    }

    /// Returns the finished trials of the job in the order of the plan. Those that are left out by their tags are
    /// counted.
    pub fn all_trials(
        &self,
    ) -> Result<impl Iterator<Item = Result<SavedTrial, ExportError>> + '_, ExportError> {
        let trials = self.job.trials()?.zip(1..);
        Ok(trials.map(|(trial, number)| {
            (self.progress.borrow_mut())(number);
            let trial = trial?;
            if self.excludes(&trial) {
                let pair = (trial.id.agent.to_string(), trial.id.dataset.to_string());
                *self.excluded.borrow_mut().entry(pair).or_default() += 1;
            }
            Ok(trial)
        }))
    }

    /// Creates a file by its path in the output directory. It appears there when it is finished.
    pub fn file(&self, relative: impl AsRef<Path>) -> Result<NewFile, ExportError> {
        NewFile::create(self.dir.join(relative))
    }
}

/// A file that appears complete and never replaces another one.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
}

impl NewFile {
    /// Creates a temporary file beside the path. The directory is created if it is missing.
    pub fn create(path: PathBuf) -> Result<Self, ExportError> {
        if path.symlink_metadata().is_ok() {
            return Err(ExportError::Exists(path));
        }
        let dir = path.parent().unwrap_or(Path::new(""));
        let made = fs::create_dir_all(dir)
            .and_then(|()| tempfile::Builder::new().permissions(readable()).tempfile_in(dir));
        match made {
            Ok(file) => Ok(Self { path, file: BufWriter::with_capacity(1 << 16, file) }),
            Err(source) => Err(ExportError::Write { path, source }),
        }
    }

    /// Converts a write error.
    pub fn failed(&self, source: io::Error) -> ExportError {
        ExportError::Write { path: self.path.clone(), source }
    }

    /// Writes a value as one line of JSON.
    pub(crate) fn json_line(&mut self, value: &impl serde::Serialize) -> Result<(), ExportError> {
        let written = serde_json::to_writer(&mut self.file, value).map_err(io::Error::from);
        written.and_then(|()| self.file.write_all(b"\n")).map_err(|source| self.failed(source))
    }

    /// Renames the file to its path. Otherwise the file is removed. The file is not synced to disk: a job can be
    /// exported again, and a format with a file for each trial would sync once for each of them.
    pub fn finish(self) -> Result<PathBuf, ExportError> {
        let Self { path, file } = self;
        let persist = || {
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.persist_noclobber(&path).map_err(|error| error.error)
        };
        match persist() {
            Ok(_) => Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(ExportError::Exists(path)),
            Err(source) => Err(ExportError::Write { path, source }),
        }
    }
}

/// The default permissions of this process, because other programs must be able to read the files.
fn readable() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt as _;
    fs::Permissions::from_mode(0o666)
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_there_once_it_is_finished_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/rows.jsonl");
        let mut file = NewFile::create(path.clone()).unwrap();
        file.json_line(&1).unwrap();
        assert!(!path.exists());
        drop(file);
        assert!(names(&dir.path().join("below")).is_empty(), "an unfinished file is removed");

        let mut file = NewFile::create(path.clone()).unwrap();
        file.json_line(&[1, 2]).unwrap();
        assert_eq!(file.finish().unwrap(), path);
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1,2]\n");
    }

    #[test]
    fn nothing_that_is_there_is_overwritten_even_if_it_came_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        let late = NewFile::create(path.clone()).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(matches!(NewFile::create(path.clone()), Err(ExportError::Exists(_))));
        assert!(matches!(late.finish(), Err(ExportError::Exists(_))));
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), names(dir.path())),
            ("mine".into(), vec!["rows.jsonl".into()])
        );
    }
}
