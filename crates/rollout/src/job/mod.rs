//! A job: plan its trials, run them side by side, record them, and pick up again where it stopped.
//!
//! [`Plan`] says which trials there are, [`Job`] is a plan with its directory, and [`Job::run`] is
//! the dispatcher: the one place that decides what starts next and in which order things happened.

mod difference;
mod dispatch;
mod earlier_rows;
mod episode_log;
mod examples;
mod growth;
mod history;
mod journaled;
mod known_tasks;
mod moved_rows;
mod no_provider;
mod not_run;
mod plan;
mod planned;
mod provenance;
mod recorder;
mod resume;
pub(crate) mod rollouts;
mod saved;
mod saved_rows;
mod sections;
mod settled;
mod streak;
mod summary;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::{Timestamp, Zoned};
use tokio_util::sync::CancellationToken;

pub use difference::ConfigDifference;
pub use examples::{ExampleSet, ExampleWriter, StoredExamples};
pub use no_provider::NoProvider;
pub use plan::{Plan, PlanAgent, PlanError, Selection};
pub use planned::{ContainerWork, PlanDataset, PlanTask, Work};
pub use resume::{Rerun, Resumable, ResumeError};

use self::{
    earlier_rows::EarlierRows, journaled::Journaled, provenance::TaskHashes, sections::Sections,
    summary::Rows,
};
use rollout_core::{event::Event, provenance::Provenance, result::TrialResult, row::RolloutOutput};
use rollout_env::Provider;
use rollout_model as model;
use rollout_model::{Share, State};
use rollout_record::{
    atomic::{self, WriteError},
    journal::{self, Header, Journal, JournalError, PlannedTask},
    layout::JobDir,
    metadata::GenerateMetadata,
    rows, tasks,
};

/// Whose key is refused, where it is the judge's of a benchmark.
pub(crate) const JUDGE: &str = "the model that judges";

/// A plan with a directory and an open journal, ready to run.
pub struct Job {
    plan: Arc<Plan>,
    provider: Arc<dyn Provider>,
    name: Arc<str>,
    /// Where results go; nothing is kept without.
    store: Option<Store>,
    /// Where containers put their files if nothing is kept.
    scratch: Option<JobDir>,
    /// Where trials take their places, if other jobs take some too.
    pub(crate) share: Option<Share>,
    sections: Sections,
    rows: Rows,
    /// Rows of groups that this run adds members to.
    earlier_rows: Arc<EarlierRows>,
    /// The trials that this run is to do.
    todo: Vec<rollout_core::name::TrialIndex>,
    history: History,
    /// When it ended, if nothing is left to do or to write.
    settled_at: Option<Timestamp>,
    warnings: Vec<String>,
    collector: Option<Box<dyn Collector>>,
    /// Rows of earlier runs, where somebody asked for them.
    earlier: Vec<RolloutOutput>,
    /// How the run was started.
    command: Option<Vec<String>>,
    /// Where its results come from, once somebody asked.
    provenance: Option<Arc<Provenance>>,
}

/// Where the results of a job go.
struct Store {
    dir: JobDir,
    journal: Journal,
    task_hashes: TaskHashes,
}

/// Takes what comes out of a job with one model and one dataset while it runs.
pub(crate) trait Collector: Send {
    /// Rollouts that are over and recorded, with what all of them come to so far. The job waits for it.
    fn group<'a>(
        &'a mut self,
        outputs: Vec<RolloutOutput>,
        metadata: &dyn Fn() -> GenerateMetadata,
    ) -> model::BoxFuture<'a, ()> {
        let _ = (outputs, metadata);
        Box::pin(std::future::ready(()))
    }

    /// A rollout of an earlier run that was scored again, together with new members of its group.
    fn rescored(&mut self, output: RolloutOutput) {
        let _ = output;
    }

    /// What they came to in the end.
    fn end(&mut self, metadata: GenerateMetadata, cancelled: bool) {
        let _ = (metadata, cancelled);
    }

    /// A trial that is over, with the conversation if it was one of a model in a container.
    fn ended(&mut self, result: &Arc<TrialResult>, state: Option<Box<State>>) {
        let _ = (result, state);
    }
}

/// What earlier runs of the same job leave to add up.
#[derive(Debug, Clone, Copy, Default)]
struct History {
    first_start: Option<Timestamp>,
    /// The end of the last run, if it ended in good order.
    ended_at: Option<Timestamp>,
    seconds: f64,
}

/// Stops a job: first in good order, then at once.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    /// No new trials; running ones are stopped and torn down.
    pub graceful: CancellationToken,
    /// Nothing is waited for.
    pub now: CancellationToken,
}

/// Why a job cannot be started or carried through.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// There is a job of this name.
    #[error("the job directory {} exists, and results are never overwritten", .0.display())]
    Exists(PathBuf),
    /// A file is where one of the job's would be.
    #[error("{} is in the way, and nothing is overwritten", .0.display())]
    InTheWay(PathBuf),
    /// The directory cannot be made.
    #[error("cannot make the job directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The configuration in the job's directory cannot be read.
    #[error("cannot read the job's configuration in {}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is a directory of this name, which is not a job's.
    #[error("{} exists and is not a job directory", .0.display())]
    NotAJob(PathBuf),
    /// The files of a task cannot be read.
    #[error("cannot read the files of the tasks")]
    Tasks(#[source] io::Error),
    /// Saved rows cannot be read.
    #[error("cannot read the rows in {}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The journal cannot be written, so results would be lost.
    #[error("results can no longer be recorded, so the job was stopped")]
    Journal(#[from] JournalError),
    /// The server of a model refuses its key: no other rollout could do better.
    #[error("the server refuses the key of {who}, so the job was stopped")]
    Unauthorized {
        /// Whose key, as in a sentence.
        who: String,
        /// What the server said.
        source: model::Error,
    },
    /// The server of a model cannot do what the job asks for: no other rollout could do better.
    #[error("{who} cannot be used as the job asks for, so the job was stopped")]
    Unsupported {
        /// Which model, as in a sentence.
        who: String,
        /// What is missing.
        source: model::Error,
    },
    /// A result file cannot be written.
    #[error("results can no longer be recorded, so the job was stopped")]
    Record(#[from] WriteError),
}

impl JobError {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Exists(dir) => Some(format!(
                "`rollout resume {0}` continues it, and `rollout resume {0} --with job.yaml` adds to it; a new job needs \
                 another `name:`",
                dir.display()
            )),
            Self::NotAJob(_) => Some("give the job another `name:`, or move the directory".to_owned()),
            Self::InTheWay(_) => Some("give the results another directory".to_owned()),
            Self::Journal(error @ (JournalError::Locked { .. } | JournalError::Removed { .. })) => error.hint(),
            Self::Journal(_) | Self::Record(_) => Some(
                "make room or fix the file system, then `rollout resume` the job: every trial reported as finished is kept"
                    .to_owned(),
            ),
            Self::Unauthorized { .. } => Some(
                "set the right api_key for this base_url, then `rollout resume` the job: every finished trial is kept"
                    .to_owned(),
            ),
            Self::Unsupported { .. } => {
                Some("change the model's settings or its server, then start a new job".to_owned())
            }
            Self::Config { .. } => Some("restore the file from a copy, or start a new job".to_owned()),
            Self::Rows { source, .. } if source.kind() == io::ErrorKind::InvalidData => {
                Some("correct the line, or take it out so that the rollout runs again".to_owned())
            }
            Self::Directory { .. } | Self::Tasks(_) | Self::Rows { .. } => None,
        }
    }
}

impl Job {
    /// Makes the job's directory, with its configuration and an empty journal.
    pub async fn create(plan: Plan, provider: Arc<dyn Provider>) -> Result<Self, JobError> {
        Self::create_in(plan, provider, make_directory).await
    }

    async fn create_in(
        plan: Plan,
        provider: Arc<dyn Provider>,
        make: impl FnOnce(&Plan) -> Result<JobDir, JobError> + Send + 'static,
    ) -> Result<Self, JobError> {
        let plan = Arc::new(plan);
        let journaled = Journaled::read(Arc::clone(&plan)).await.map_err(JobError::Tasks)?;
        let provider_name = provider.name().to_owned();
        let for_disk = Arc::clone(&plan);
        let (store, name, sections, rows) = tokio::task::spawn_blocking(move || {
            let dir = make(&for_disk)?;
            let name = dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            atomic::write_json(&dir.config(), &for_disk.loaded().copy())?;
            if journaled.recorded(&for_disk) > 0 {
                tasks::write(&dir.tasks(), journaled.abouts(&for_disk), for_disk.redactor())?;
            }
            let task_hashes = journaled.hashes(&for_disk);
            let header = header(&for_disk, &name, absolute(dir.path()), provider_name, Vec::new());
            let tasks = journaled.tasks(&for_disk).map(|task| task.map_err(JobError::Tasks));
            let journal = Journal::create(&dir.journal(), header, tasks)?;
            let sections = Sections::new(&for_disk, Some(dir.path()));
            let rows = Rows::new(for_disk.len());
            sections.prepare(&for_disk, &rows)?;
            Ok::<_, JobError>((Store { dir, journal, task_hashes }, name, sections, rows))
        })
        .await
        .map_err(|error| JobError::Tasks(io::Error::other(error)))??;
        let todo = plan.indexes().collect();
        Ok(Self {
            plan,
            provider,
            name: name.into(),
            store: Some(store),
            scratch: None,
            share: None,
            sections,
            rows,
            earlier_rows: Arc::default(),
            todo,
            history: History::default(),
            settled_at: None,
            warnings: Vec::new(),
            collector: None,
            earlier: Vec::new(),
            command: None,
            provenance: None,
        })
    }

    /// Makes a job without containers in a directory that the caller names. It may be there, with other things in it.
    pub(crate) async fn create_at(plan: Plan, path: PathBuf) -> Result<Self, JobError> {
        let make = move |_: &Plan| {
            Self::check_place(&path)?;
            let made = fs::create_dir_all(&path);
            made.map_err(|source| JobError::Directory { path: path.clone(), source })?;
            Ok(JobDir::new(path))
        };
        Self::create_in(plan, Arc::new(NoProvider), make).await
    }

    /// Refuses a directory in which a job is, or something that one would overwrite.
    pub(crate) fn check_place(path: &Path) -> Result<(), JobError> {
        let dir = JobDir::new(path);
        if dir.journal().exists() {
            return Err(JobError::Exists(path.to_owned()));
        }
        let rows = [path.join(rows::RESULTS), path.join(rows::OUTPUTS)];
        let others = [path.join(rows::EVALUATION), dir.config(), dir.result()];
        match rows.into_iter().chain(others).find(|file| file.exists()) {
            Some(file) => Err(JobError::InTheWay(file)),
            None => Ok(()),
        }
    }

    /// A job without containers of which nothing is kept.
    pub(crate) fn unrecorded(plan: Plan) -> Self {
        let plan = Arc::new(plan);
        Self {
            provider: Arc::new(NoProvider),
            name: "unrecorded".into(),
            store: None,
            scratch: None,
            share: None,
            sections: Sections::new(&plan, None),
            rows: Rows::new(plan.len()),
            earlier_rows: Arc::default(),
            todo: plan.indexes().collect(),
            history: History::default(),
            settled_at: None,
            warnings: Vec::new(),
            collector: None,
            earlier: Vec::new(),
            command: None,
            provenance: None,
            plan,
        }
    }

    /// A job with containers of which nothing is kept. What they leave is in a directory that the caller removes.
    pub(crate) fn in_scratch(
        plan: Plan,
        provider: Arc<dyn Provider>,
        directory: PathBuf,
        share: Option<Share>,
    ) -> Self {
        let name = plan.config().name.as_ref().map_or("unrecorded", |name| name.as_str()).into();
        Self { provider, name, scratch: Some(JobDir::new(directory)), share, ..Self::unrecorded(plan) }
    }

    /// Rows of earlier runs.
    pub(crate) fn take_earlier(&mut self) -> Vec<RolloutOutput> {
        std::mem::take(&mut self.earlier)
    }

    /// Has finished rollouts handed over.
    pub(crate) fn collect(&mut self, collector: impl Collector + 'static) {
        self.collector = Some(Box::new(collector));
    }

    /// Adds to what is told when the job starts.
    pub fn warn(&mut self, message: String) {
        self.warnings.push(message);
    }

    /// Where its results go.
    pub fn directory(&self) -> &Path {
        self.store.as_ref().map_or(Path::new(""), |store| store.dir.path())
    }

    /// What is reported first.
    pub(super) fn started(&self) -> Event {
        let Self { plan, provider, name, rows, todo, .. } = self;
        Event::JobStarted {
            job: name.to_string(),
            kind: plan.kind(),
            directory: self.directory().to_owned(),
            provider: provider.description(),
            total_trials: plan.len(),
            resumed_trials: plan.len() - todo.len() as u64,
            concurrency: plan.config().n_concurrent_trials.get(),
            metrics: plan.config().metrics.clone(),
            earlier: summary::earlier(plan, rows, todo),
        }
    }

    /// How many trials this run is to do.
    pub fn remaining(&self) -> usize {
        self.todo.len()
    }
}

/// What the journal of a plan begins with.
fn header(
    plan: &Plan,
    name: &str,
    directory: Option<PathBuf>,
    provider: String,
    tasks: Vec<PlannedTask>,
) -> Header {
    let redacted = |text: &String| plan.redactor().text(text).into_owned();
    Header {
        version: journal::VERSION,
        kind: plan.kind(),
        job_name: name.to_owned(),
        // A path that is no text cannot stand in JSON.
        directory: directory.filter(|path| path.to_str().is_some()),
        job_file: std::path::absolute(&plan.loaded().path).unwrap_or_else(|_| plan.loaded().path.clone()),
        overrides: plan.overrides().iter().map(redacted).collect(),
        config_hash: plan.loaded().hash.clone(),
        config: plan.loaded().record.get("base_dir").map(|_| plan.loaded().copy()),
        provider,
        agents: plan.agents().map(ToString::to_string).collect(),
        attempts: plan.attempts(),
        pins: plan.pins().clone(),
        selection: plan.selection.clone(),
        dataset_sizes: plan.dataset_sizes.clone(),
        tasks,
    }
}

/// A path that means the same wherever the reader is. None where there is no working directory to begin from.
fn absolute(path: &Path) -> Option<PathBuf> {
    std::path::absolute(path).ok()
}

/// Makes the directory of a job. An unnamed one gets the time, and a number if that is taken.
fn make_directory(plan: &Plan) -> Result<JobDir, JobError> {
    let config = plan.config();
    let failed = |path: &Path, source| JobError::Directory { path: path.to_owned(), source };
    fs::create_dir_all(&config.jobs_dir).map_err(|source| failed(&config.jobs_dir, source))?;
    let make = |name: &str| -> Result<Option<JobDir>, JobError> {
        let path = config.jobs_dir.join(name);
        match fs::create_dir(&path) {
            Ok(()) => Ok(Some(JobDir::new(path))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(source) => Err(failed(&path, source)),
        }
    };
    if let Some(name) = &config.name {
        return make(name.as_str())?.ok_or_else(|| {
            let path = config.jobs_dir.join(name.as_str());
            if JobDir::new(&path).journal().exists() {
                JobError::Exists(path)
            } else {
                JobError::NotAJob(path)
            }
        });
    }
    let time = Zoned::now().strftime("%Y-%m-%d__%H-%M-%S").to_string();
    let mut name = time.clone();
    for number in 2.. {
        if let Some(dir) = make(&name)? {
            return Ok(dir);
        }
        name = format!("{time}-{number}");
    }
    unreachable!("a free number is found long before the integers run out")
}
