//! The journal: every finished trial, durable before anybody hears of it.
//!
//! One JSON object per line, appended and synced in groups: while one group is on its way to the
//! disk the next one gathers, so the number of syncs does not grow with the number of trials. A
//! line counts once its newline is there; a torn tail is cut off when the journal is opened again.

mod outline;
mod reading;

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::{
    outline::{ErrorOutline, TrialOutline},
    reading::{PlanHeader, read},
};
pub(crate) use self::{
    outline::{OutlinedEntry, parse},
    reading::{read_appended, read_outlines},
};
use rollout_core::{event::JobKind, name::TrialIndex, provenance::Provenance, result::TrialResult};

/// The version of the format that this build writes.
pub const VERSION: u32 = 1;

/// One line of the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum JournalEntry {
    /// The description of the job; always the first line. A later one replaces it: the job has grown, and the places of
    /// its trials have moved.
    Job(Box<Header>),
    /// A run or a resume began.
    RunStarted {
        /// When.
        #[serde(with = "rollout_core::moment")]
        at: Timestamp,
        /// The provenance of its results. Missing in older journals.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provenance: Option<Arc<Provenance>>,
    },
    /// A trial ended. A later line for the same trial replaces an earlier one.
    Trial {
        /// Its place in the plan of that time. A trial is identified by the names in `result`, because places move when a
        /// job grows.
        index: TrialIndex,
        /// Its outcome.
        result: Arc<TrialResult>,
    },
    /// A run ended normally.
    RunEnded {
        /// When.
        #[serde(with = "rollout_core::moment")]
        at: Timestamp,
        /// Whether it was cancelled.
        cancelled: bool,
    },
}

/// The properties of a job that a resume depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub version: u32,
    /// The kind of its trials.
    #[serde(default)]
    pub kind: JobKind,
    /// The job's name.
    pub job_name: String,
    /// Its directory when it was started, as an absolute path. Missing in older journals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The job file, as an absolute path.
    pub job_file: PathBuf,
    /// Settings given beside the job file, as `key=value`.
    pub overrides: Vec<String>,
    /// The hash of the configuration.
    pub config_hash: String,
    /// The configuration, as in config.json. None for a job that a program ran without a job file, and in older
    /// journals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Value>,
    /// The provider of the environments.
    pub provider: String,
    /// The agents of the plan, by name.
    pub agents: Vec<String>,
    /// Attempts for each pair of agent and task.
    pub attempts: u32,
    /// The commits that were resolved for repositories whose registry entry has no commit.
    #[serde(default)]
    pub pins: BTreeMap<String, String>,
    /// How the tasks were selected, if not all of them were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<TaskSelection>,
    /// The number of tasks in each dataset, selected or not. Missing in older journals.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dataset_sizes: BTreeMap<String, u64>,
    /// The job whose trials are graded again, if it is one of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regrade: Option<RegradeRecord>,
    /// Where the job comes from, if another program ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<ImportRecord>,
    /// The tasks of the plan.
    pub tasks: Vec<PlannedTask>,
}

/// The job of another program that was imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportRecord {
    /// The program.
    pub program: String,
    /// The directory of the job, as an absolute path.
    pub directory: PathBuf,
}

/// How a job grades the trials of another job again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegradeRecord {
    /// The directory of the other job, as an absolute path.
    pub job: PathBuf,
    /// The directory with tests in place of those of the tasks, as an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<PathBuf>,
    /// Whether trials are graded that had running processes of the agent beside their tests.
    #[serde(default)]
    pub ignores_processes: bool,
}

/// How the tasks of a job were chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskSelection {
    /// Patterns for their names, of which one has to match. Empty if any name will do.
    #[serde(default)]
    pub globs: Vec<String>,
    /// How many of each dataset there can be.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// A task as it was when the job was planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedTask {
    /// Its dataset.
    pub dataset: String,
    /// Its name.
    pub name: String,
    /// The hash of its files; none if it could not be loaded.
    pub content_hash: Option<String>,
    /// The commit it was taken from.
    pub git_commit_id: Option<String>,
    /// The number of the example, if it is one: its rows have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example_id: Option<u64>,
    /// How often each agent attempts it, where that is not the job's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Where its files were found, if a registry named the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<RecordedSource>,
}

/// Where a registry said that the files of a task are. A resumed job finds them there without the registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedSource {
    /// In a directory of this machine.
    Directory(PathBuf),
    /// In a directory of a commit.
    Git {
        /// The repository, without credentials.
        url: String,
        /// The commit.
        commit: String,
        /// The directory in the repository; empty for its root.
        path: String,
    },
}

impl Header {
    /// How often each agent attempts a task.
    pub fn attempts_of(&self, task: &PlannedTask) -> u32 {
        task.attempts.unwrap_or(self.attempts)
    }
}

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system said no.
    #[error("cannot {action} the journal {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The journal.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line in the middle is not an entry.
    #[error("line {line} of the journal {} is damaged", path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// The first line does not describe a job.
    #[error("the journal {} does not begin with a job", path.display())]
    NoHeader {
        /// The journal.
        path: PathBuf,
    },
    /// A newer Rollout wrote it.
    #[error("the journal {} has format {found}, and this version reads up to {VERSION}", path.display())]
    TooNew {
        /// The journal.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file was removed or replaced while the job ran.
    #[error("the journal {} was removed while the job ran; the results since then are lost", path.display())]
    Removed {
        /// The journal.
        path: PathBuf,
    },
    /// Another process is running this job.
    #[error("another process is writing the journal {}", path.display())]
    Locked {
        /// The journal.
        path: PathBuf,
    },
}

impl JournalError {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Damaged { path, line, .. } => Some(format!(
                "restore {0} from a copy; or remove the line with `sed -i {line}d {0}`: `rollout resume` then runs its trial again",
                path.display()
            )),
            Self::NoHeader { .. } => Some("restore the file from a copy, or start a new job".to_owned()),
            Self::TooNew { .. } => {
                Some("use the version of Rollout that ran the job, or a newer one".to_owned())
            }
            Self::Locked { .. } => {
                Some("wait for the other process, or stop it; its results are kept".to_owned())
            }
            Self::Removed { .. } => {
                Some("run the job again, and leave its directory alone until it ends".to_owned())
            }
            Self::Io { .. } => None,
        }
    }
}

/// How often the lock is tried, and the time in between: half a second in all, far more than a reader holds it.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Appends entries. Holds a lock on the file, so that a job is run by one process at a time.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl Journal {
    /// Starts a journal with its header, and its tasks after those that the header has. They are written one by one:
    /// there may be many. Fails if there is a journal already.
    pub fn create<E: From<JournalError>>(
        path: &Path,
        header: Header,
        tasks: impl IntoIterator<Item = Result<PlannedTask, E>>,
    ) -> Result<Self, E> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)
            .map_err(|source| io_error("create", path, source))?;
        let mut journal = Self { path: path.to_owned(), file, buffer: Vec::new() };
        journal.lock()?;
        let begun = journal.begin(header, tasks.into_iter());
        if begun.is_err() {
            // A journal without its header is none. If it cannot be removed either, it is refused when it is read.
            let _ = fs::remove_file(path);
        }
        begun?;
        if let Some(parent) = path.parent() {
            // Without this the new directory entry itself may be lost with the power.
            File::open(parent)
                .and_then(|dir| dir.sync_all())
                .map_err(|source| io_error("sync", path, source))?;
        }
        Ok(journal)
    }

    /// Writes the first line.
    fn begin<E: From<JournalError>>(
        &mut self,
        header: Header,
        tasks: impl Iterator<Item = Result<PlannedTask, E>>,
    ) -> Result<(), E> {
        const END: &[u8] = b"]}\n";
        const LARGE: usize = 1 << 20;
        let mut is_first = header.tasks.is_empty();
        self.push(&JournalEntry::Job(Box::new(header)));
        // The tasks are the last of its fields.
        self.buffer.truncate(self.buffer.len() - END.len());
        for task in tasks {
            if !std::mem::take(&mut is_first) {
                self.buffer.push(b',');
            }
            serde_json::to_writer(&mut self.buffer, &task?).expect("tasks are plain data with string keys");
            if self.buffer.len() > LARGE {
                let written = self.file.write_all(&self.buffer);
                written.map_err(|source| io_error("write", &self.path, source))?;
                self.buffer.clear();
            }
        }
        self.buffer.extend_from_slice(END);
        Ok(self.sync()?)
    }

    /// Opens a journal to continue it: reads every entry after the header into `each`, and cuts off
    /// a torn tail. The header is not kept: it was read before, and it may be large.
    pub fn open(path: &Path, mut each: impl FnMut(JournalEntry)) -> Result<Self, JournalError> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(path)
            .map_err(|source| io_error("open", path, source))?;
        let journal = Self { path: path.to_owned(), file, buffer: Vec::new() };
        journal.lock()?;
        let whole = reading::read_lines(path, |_| false, |_, bytes| reading::entry(bytes, &mut each))?.whole;
        let length = journal.file.metadata().map_err(|source| io_error("examine", path, source))?.len();
        if length != whole {
            journal.file.set_len(whole).map_err(|source| io_error("truncate", path, source))?;
        }
        Ok(journal)
    }

    fn lock(&self) -> Result<(), JournalError> {
        // A reader that looks whether the job runs holds a lock too, for a few microseconds.
        for _ in 0..LOCK_TRIES {
            match self.file.try_lock() {
                Ok(()) => return Ok(()),
                Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(fs::TryLockError::Error(source)) => return Err(io_error("lock", &self.path, source)),
            }
        }
        Err(JournalError::Locked { path: self.path.clone() })
    }

    /// Puts an entry into the next group.
    pub fn push(&mut self, entry: &JournalEntry) {
        serde_json::to_writer(&mut self.buffer, entry).expect("entries are plain data with string keys");
        self.buffer.push(b'\n');
    }

    /// Puts the group on the disk. On an error nothing of it counts: what reached the file is cut off.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        let before =
            self.file.seek(SeekFrom::End(0)).map_err(|source| io_error("extend", &self.path, source))?;
        let result = self.file.write_all(&self.buffer).and_then(|()| self.file.sync_data());
        self.buffer.clear();
        result.map_err(|source| {
            // If this fails too, the torn tail is cut off when the journal is opened again.
            let _ = self.file.set_len(before);
            io_error("write", &self.path, source)
        })?;
        self.is_in_place()
    }

    /// Checks that the file still exists at its path: entries written to a removed file would be lost.
    fn is_in_place(&self) -> Result<(), JournalError> {
        let id = |found: &fs::Metadata| (found.dev(), found.ino());
        let ours = self.file.metadata().map_err(|source| io_error("examine", &self.path, source))?;
        match fs::metadata(&self.path) {
            Ok(found) if id(&found) == id(&ours) => Ok(()),
            _ => Err(JournalError::Removed { path: self.path.clone() }),
        }
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            version: VERSION,
            kind: JobKind::Job,
            job_name: "job".to_owned(),
            directory: None,
            job_file: PathBuf::from("/job.yaml"),
            overrides: Vec::new(),
            config_hash: "sha256:0".to_owned(),
            config: None,
            provider: "native".to_owned(),
            agents: vec!["oracle".to_owned()],
            attempts: 1,
            pins: BTreeMap::new(),
            selection: None,
            dataset_sizes: BTreeMap::new(),
            regrade: None,
            imported: None,
            tasks: Vec::new(),
        }
    }

    fn task(number: u32) -> PlannedTask {
        PlannedTask {
            dataset: "set".to_owned(),
            name: number.to_string(),
            content_hash: None,
            git_commit_id: None,
            example_id: None,
            attempts: None,
            source: None,
        }
    }

    fn entries(path: &Path) -> Result<(Journal, usize), JournalError> {
        let mut count = 0;
        let journal = Journal::open(path, |_| count += 1)?;
        assert_eq!(read(path, |_| ())?.0, header());
        Ok((journal, count))
    }

    fn created(path: &Path) -> Journal {
        Journal::create(path, header(), std::iter::empty::<Result<_, JournalError>>()).unwrap()
    }

    fn started() -> JournalEntry {
        JournalEntry::RunStarted { at: Timestamp::UNIX_EPOCH, provenance: None }
    }

    #[test]
    fn a_tail_torn_at_any_byte_is_cut_off_and_the_journal_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let mut journal = created(&path);
        journal.push(&started());
        journal.sync().unwrap();
        let whole = fs::read(&path).unwrap();
        journal.push(&started());
        journal.sync().unwrap();
        drop(journal);
        let full = fs::read(&path).unwrap();
        for cut in whole.len()..full.len() {
            fs::write(&path, &full[..cut]).unwrap();
            let (mut journal, count) = entries(&path).unwrap();
            assert_eq!(count, 1, "cut at byte {cut}");
            journal.push(&started());
            journal.sync().unwrap();
            drop(journal);
            assert_eq!(fs::read(&path).unwrap(), full, "cut at byte {cut}");
        }
    }

    #[test]
    fn tasks_that_come_one_by_one_are_those_of_the_header() {
        let dir = tempfile::tempdir().unwrap();
        for (before, after) in [(0, 0), (0, 1), (1, 0), (1, 2), (0, 20_000)] {
            let path = dir.path().join(format!("{before}-{after}"));
            let tasks: Vec<_> = (0..before + after).map(task).collect();
            let (early, late) = tasks.split_at(before as usize);
            let header = Header { tasks: early.to_vec(), ..header() };
            let late = late.iter().map(|task| Ok::<_, JournalError>(task.clone()));
            drop(Journal::create(&path, header.clone(), late).unwrap());
            assert_eq!(read(&path, |_| ()).unwrap().0, Header { tasks, ..header });
        }
    }

    #[test]
    fn tasks_that_are_examples_stay_in_the_file_until_they_are_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let container = task(0);
        let example = PlannedTask { example_id: Some(7), ..task(1) };
        let tasks = vec![container.clone(), example.clone(), container.clone()];
        let small = Header { tasks: vec![example.clone()], ..header() };
        let grown = Header { attempts: 2, tasks: tasks.clone(), ..header() };
        let mut journal =
            Journal::create(&path, small, std::iter::empty::<Result<_, JournalError>>()).unwrap();
        journal.push(&started());
        journal.push(&JournalEntry::Job(Box::new(grown.clone())));
        journal.push(&started());
        journal.sync().unwrap();
        let read = PlanHeader::read(&path).unwrap();
        assert_eq!(read.header(), &Header { tasks: vec![container.clone(), container], ..grown.clone() });
        let mut found = Vec::new();
        read.each_task(|task| found.push(task)).unwrap();
        assert_eq!(found, tasks);
        assert_eq!(read.whole().unwrap(), grown);
    }

    #[test]
    fn a_larger_job_that_is_torn_at_any_byte_leaves_the_smaller_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let mut journal = created(&path);
        let whole = fs::read(&path).unwrap();
        journal.push(&JournalEntry::Job(Box::new(Header { tasks: vec![task(0), task(1)], ..header() })));
        journal.sync().unwrap();
        drop(journal);
        let full = fs::read(&path).unwrap();
        for cut in whole.len()..full.len() {
            fs::write(&path, &full[..cut]).unwrap();
            assert_eq!(PlanHeader::read(&path).unwrap().header(), &header(), "cut at byte {cut}");
            drop(entries(&path).unwrap());
            assert_eq!(fs::read(&path).unwrap(), whole, "cut at byte {cut}");
        }
        // A crash of the machine can leave the right length and the wrong bytes.
        let mut broken = full.clone();
        let last = broken.len() - 4;
        broken[last] = 0;
        fs::write(&path, broken).unwrap();
        drop(entries(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn a_journal_whose_tasks_cannot_be_read_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let failing = [Err(JournalError::NoHeader { path: path.clone() })];
        assert!(Journal::create(&path, header(), failing).is_err());
        assert!(!path.exists());
    }

    #[test]
    fn zeros_in_the_place_of_the_last_line_are_a_torn_tail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        drop(created(&path));
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend_from_slice(b"\0\0\0\0\n");
        fs::write(&path, bytes).unwrap();
        assert_eq!(entries(&path).unwrap().1, 0);
    }

    #[test]
    fn damage_in_the_middle_is_an_error_that_names_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let mut journal = created(&path);
        journal.push(&started());
        journal.sync().unwrap();
        drop(journal);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("run_started", "run_sta") + &text).unwrap();
        assert!(matches!(entries(&path), Err(JournalError::Damaged { line: 2, .. })));
    }

    #[test]
    fn a_second_process_cannot_open_a_journal_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let _journal = created(&path);
        assert!(matches!(entries(&path), Err(JournalError::Locked { .. })));
    }
}
