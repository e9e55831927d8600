//! Reads a job directory: the job, and its trials one by one.
//!
//! Tasks in containers, rollouts of a model and questions of a benchmark are read in the same form and in the order of
//! the plan. Only one trial is in memory at a time, and a few numbers for each trial. The functions block, so call them
//! where blocking is allowed.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rollout::record::saved::SavedJob;
//!
//! let job = SavedJob::open("jobs/quickstart")?;
//! for trial in job.trials()? {
//!     let trial = trial?;
//!     let said = job.conversation(&trial)?.map_or(0, |conversation| conversation.completion.len());
//!     println!("{} {:?} {said}", trial.id, trial.result.reward);
//! }
//! # Ok(())
//! # }
//! ```

mod conversation;
mod evidence;
mod lines;
pub mod live;
mod pages;
mod plan;
mod recorded;
mod rows;
mod status;
mod update;

use std::{
    collections::HashMap,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

pub use conversation::{Conversation, Turn};
pub use pages::{ConversationPages, ConversationStep, StepDetails};
pub use status::TrialStatus;

use self::{
    lines::LineIndex,
    plan::PlanIndex,
    recorded::{PlacedTrials, RecordedTrials, TaskNumbers},
    rows::RowIndex,
    update::JournalEnd,
};
use super::{
    journal::{self, Header, JournalEntry, JournalError, OutlinedEntry, PlannedTask, TrialOutline},
    layout::{JobDir, TrialDir, open_below},
    lines::Lines,
    tasks::TaskRecord,
};
use rollout_core::provenance::{Provenance, TrialProvenance};
use rollout_core::{
    name::{TrialId, TrialIndex},
    result::{ErrorType, TrialResult},
    row::RolloutOutput,
};

/// A job on disk.
#[derive(Debug)]
pub struct SavedJob {
    dir: JobDir,
    header: Header,
    config: Value,
    runs: Vec<SavedRun>,
    /// The offset of the last journal entry of each trial, in the order of the plan.
    places: Vec<Place>,
    tasks: TaskNumbers,
    plan: PlanIndex,
    end: JournalEnd,
    /// Files of rows by agent and dataset, read when the first conversation is requested.
    rows: HashMap<(String, String), OnceLock<RowIndex>>,
    /// Records of tasks by index, read when the first is requested.
    abouts: OnceLock<LineIndex<usize>>,
}

/// One run of the job: the first, or a resume.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedRun {
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended normally; None if it was killed or still runs.
    pub ended_at: Option<Timestamp>,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// The provenance of its results; None if an older version ran it.
    pub provenance: Option<Arc<Provenance>>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    index: TrialIndex,
    offset: u64,
    run: u32,
}

/// A finished trial.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedTrial {
    /// Its index in the plan.
    pub index: TrialIndex,
    /// Its name.
    pub id: TrialId,
    /// The index of its task in the plan.
    pub task: usize,
    /// The index of the run that finished it.
    pub run: usize,
    /// Its outcome.
    pub result: TrialResult,
}

impl SavedTrial {
    /// Returns the name of the trial within its agent and dataset.
    pub fn name(&self) -> String {
        format!("{}__{}", self.id.task, self.id.attempt)
    }
}

/// Why a job directory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The directory has no journal.
    #[error("{} is not a job directory: it has no journal.jsonl", .0.display())]
    NotAJob(PathBuf),
    /// The directory does not exist.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The journal is invalid.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is invalid.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The journal contains a trial that is not in the plan.
    #[error("the journal contains {trial}, which is not in the plan")]
    UnknownTrial {
        /// The trial.
        trial: String,
    },
}

impl SavedJob {
    /// Opens a job directory, and reads its header and the offsets of its trials. The job may still be running.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, SavedError> {
        Self::read(JobDir::new(path), |_| ()).map(|(job, ..)| job)
    }

    /// Opens a job directory, and returns what `outline` makes of the results of finished trials, in the order of the
    /// plan. The journal is read only once, and of each result only what lists need.
    pub fn open_with<T>(
        path: impl Into<PathBuf>,
        outline: impl Fn(&TrialOutline<'_>) -> T,
    ) -> Result<(Self, Vec<(TrialIndex, T)>), SavedError> {
        let (job, PlacedTrials { trials, unknown }) = Self::read(JobDir::new(path), outline)?;
        match unknown {
            Some(trial) => Err(SavedError::UnknownTrial { trial }),
            None => Ok((job, trials.into_iter().map(|(place, trial)| (place.index, trial)).collect())),
        }
    }

    fn read<T>(
        dir: JobDir,
        outline: impl Fn(&TrialOutline<'_>) -> T,
    ) -> Result<(Self, PlacedTrials<T>), SavedError> {
        let journal = dir.journal();
        if !dir.path().exists() {
            return Err(SavedError::Missing(dir.path().to_owned()));
        }
        if !journal.is_file() {
            return Err(SavedError::NotAJob(dir.path().to_owned()));
        }
        let mut runs: Vec<SavedRun> = Vec::new();
        let mut trials = RecordedTrials::default();
        let file = update::identity(&journal);
        let (header, whole) = journal::read_outlines(&journal, |offset, entry| match entry {
            OutlinedEntry::Trial(index, result) => {
                let place = Place { index, offset, run: runs.len().saturating_sub(1) as u32 };
                trials.put(&result, place, outline(&result));
            }
            OutlinedEntry::Other(entry) => add_run(&mut runs, entry),
        })?;
        let config = read_json(&dir)?;
        let plan = PlanIndex::new(&header);
        let tasks = TaskNumbers::new(&header);
        let placed = trials.placed(&header, &plan, &tasks);
        let places = placed.trials.iter().map(|(place, _)| *place).collect();
        let end = JournalEnd { file, whole };
        let (rows, abouts) = (HashMap::new(), OnceLock::new());
        let mut job = Self { dir, header, config, runs, places, tasks, plan, end, rows, abouts };
        let pairs = job.groups().map(|(agent, dataset)| (agent.to_owned(), dataset.to_owned()));
        job.rows = pairs.map(|pair| (pair, OnceLock::new())).collect();
        Ok((job, placed))
    }

    /// The job's directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The header of the journal.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The job file with defaults and without secrets; null if another program created the directory.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The runs of the job, in order.
    pub fn runs(&self) -> &[SavedRun] {
        &self.runs
    }

    /// The number of finished trials.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no trial is finished.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the pairs of agent and dataset in the order of the plan.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut datasets: Vec<&str> = Vec::new();
        for task in &self.header.tasks {
            if !datasets.contains(&task.dataset.as_str()) {
                datasets.push(&task.dataset);
            }
        }
        let pairs = move |agent| datasets.clone().into_iter().map(move |dataset| (agent, dataset));
        self.header.agents.iter().map(String::as_str).flat_map(pairs)
    }

    /// The task of a trial.
    pub fn task(&self, trial: &SavedTrial) -> &PlannedTask {
        &self.header.tasks[trial.task]
    }

    /// Returns the provenance of a trial's result, or None if an older version ran it.
    pub fn provenance(&self, trial: &SavedTrial) -> Option<TrialProvenance> {
        let run = self.runs.get(trial.run)?.provenance.as_ref()?;
        Some(run.of_trial(&trial.result, self.task(trial).content_hash.as_deref()))
    }

    /// Returns the finished trials in the order of the plan.
    pub fn trials(&self) -> Result<Trials<'_>, SavedError> {
        let path = self.dir.journal();
        let lines = Lines::open(&path).map_err(|source| SavedError::Read { path, source })?;
        Ok(Trials { job: self, lines, next: 0 })
    }

    /// Returns these trials, without those that have no result.
    pub fn trials_of(
        &self,
        indexes: impl IntoIterator<Item = TrialIndex>,
    ) -> Result<impl Iterator<Item = Result<SavedTrial, SavedError>>, SavedError> {
        let mut trials = self.trials()?;
        Ok(indexes.into_iter().filter_map(move |index| Some(trials.read(self.place(index)?))))
    }

    /// Returns a trial, or None if it has no result.
    pub fn trial(&self, index: TrialIndex) -> Result<Option<SavedTrial>, SavedError> {
        let Some(place) = self.place(index) else { return Ok(None) };
        self.trials()?.read(place).map(Some)
    }

    fn place(&self, index: TrialIndex) -> Option<Place> {
        let found = self.places.binary_search_by_key(&index, |place| place.index).ok()?;
        Some(self.places[found])
    }

    /// Returns the conversation of a trial, or None if its agent is not a model or nothing was recorded.
    pub fn conversation(&self, trial: &SavedTrial) -> Result<Option<Conversation>, SavedError> {
        let Some(example) = self.task(trial).example_id else {
            return conversation::of_container(self.path(), &self.trajectories(trial));
        };
        let pair = (trial.id.agent.to_string(), trial.id.dataset.to_string());
        let index = once(&self.rows[&pair], || rows::index(self.path(), &self.section(&pair.0, &pair.1)))?;
        let row: Option<RolloutOutput> = index.get(&(example, trial.id.attempt))?;
        // A run that failed inside Rollout has no row, so the last row belongs to an earlier run.
        let crashed = trial.result.error.as_ref().is_some_and(|error| error.kind == ErrorType::InternalError);
        let started_at = trial.result.timestamps.started_at.as_microsecond() as f64 / 1e6;
        let row = row.filter(|row| !crashed || row.timing.start_time + 1.0 >= started_at);
        Ok(row.map(Conversation::from))
    }

    /// The files of the conversation of a trial in a container: one, or one of each step. They may be missing. Blocks.
    pub fn trajectories(&self, trial: &SavedTrial) -> Vec<PathBuf> {
        let dir = self.dir.trial(&trial.id).of_last_result();
        let whole = dir.trajectory();
        match whole.exists() {
            true => vec![whole],
            false => dir.steps(&trial.result).iter().map(TrialDir::trajectory).collect(),
        }
    }

    /// Returns the record of a task by index, from when the job was planned. None for examples, and if nothing was
    /// recorded.
    pub fn about(&self, task: usize) -> Result<Option<TaskRecord>, SavedError> {
        #[derive(Deserialize)]
        struct Named {
            dataset: String,
            name: String,
        }
        let find = |lines: &mut Lines| {
            let mut offsets = HashMap::new();
            while let Some(line) = lines.next_line()? {
                let named = serde_json::from_slice(line.bytes).ok();
                let number = named.and_then(|Named { dataset, name }| self.tasks.get(&dataset, &name));
                offsets.extend(number.map(|number| (number, line.offset)));
            }
            Ok(offsets)
        };
        once(&self.abouts, || LineIndex::read(self.path(), self.dir.tasks(), find))?.get(&task)
    }

    /// Returns the directory of the rows of an agent on a dataset.
    pub fn section(&self, agent: &str, dataset: &str) -> PathBuf {
        match self.rows.len() {
            1 => self.dir.path().to_owned(),
            _ => self.dir.path().join(agent).join(dataset),
        }
    }
}

/// Adds an entry about a run.
fn add_run(runs: &mut Vec<SavedRun>, entry: JournalEntry) {
    match entry {
        JournalEntry::RunStarted { at, provenance } => {
            runs.push(SavedRun { started_at: at, ended_at: None, cancelled: false, provenance });
        }
        JournalEntry::RunEnded { at, cancelled } => {
            if let Some(run) = runs.last_mut() {
                (run.ended_at, run.cancelled) = (Some(at), cancelled);
            }
        }
        JournalEntry::Job(_) | JournalEntry::Trial { .. } => {}
    }
}

/// Returns the content of a cell, which is computed on first use.
fn once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T, SavedError>) -> Result<&T, SavedError> {
    match cell.get() {
        Some(value) => Ok(value),
        None => {
            let made = make()?;
            Ok(cell.get_or_init(|| made))
        }
    }
}

fn read_json(dir: &JobDir) -> Result<Value, SavedError> {
    let path = &dir.config();
    let mut bytes = Vec::new();
    match open_below(dir.path(), path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => serde_json::from_slice(&bytes)
            .map_err(|source| SavedError::Damaged { path: path.to_owned(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Value::Null),
        Err(source) => Err(SavedError::Read { path: path.to_owned(), source }),
    }
}

/// The finished trials of a job, read on demand.
#[derive(Debug)]
pub struct Trials<'a> {
    job: &'a SavedJob,
    lines: Lines,
    next: usize,
}

impl Trials<'_> {
    fn read(&mut self, place: Place) -> Result<SavedTrial, SavedError> {
        let path = || self.job.dir.journal();
        let failed = |source| SavedError::Read { path: path(), source };
        let line = self.lines.at(place.offset).map_err(failed)?;
        let entry = journal::parse(line).map_err(|source| SavedError::Damaged { path: path(), source })?;
        let JournalEntry::Trial { result, .. } = entry else {
            return Err(failed(io::Error::other("the file changed while it was read")));
        };
        let result = Arc::unwrap_or_clone(result);
        let id = TrialId {
            agent: result.agent_name.clone(),
            dataset: result.dataset_name.clone(),
            task: result.task_name.clone(),
            attempt: result.attempt,
        };
        let known = self.job.header.agents.iter().any(|agent| agent == id.agent.as_str());
        match self.job.tasks.get(id.dataset.as_str(), id.task.as_str()).filter(|_| known) {
            Some(task) => Ok(SavedTrial { index: place.index, id, task, run: place.run as usize, result }),
            None => Err(SavedError::UnknownTrial { trial: id.to_string() }),
        }
    }
}

impl Iterator for Trials<'_> {
    type Item = Result<SavedTrial, SavedError>;

    fn next(&mut self) -> Option<Self::Item> {
        let place = *self.job.places.get(self.next)?;
        self.next += 1;
        Some(self.read(place))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.job.places.len() - self.next;
        (left, Some(left))
    }
}
