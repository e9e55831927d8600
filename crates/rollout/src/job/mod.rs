//! A job: plans its trials, runs them concurrently, records them, and resumes where it stopped.
//!
//! [`Plan`] has the trials, [`Job`] is a plan with its directory, and [`Job::run`] is the dispatcher: the only place
//! that decides what starts next and in which order events are reported.

mod added;
mod agent_versions;
mod difference;
mod dispatch;
mod earlier_rows;
mod episode_log;
mod examples;
mod gateway;
mod growth;
mod history;
mod image_uses;
mod journaled;
mod known_tasks;
mod moved_rows;
mod no_provider;
mod not_run;
mod plan;
mod planned;
mod provenance;
mod recorder;
mod regrade;
mod resume;
pub(crate) mod rollouts;
mod saved;
mod saved_rows;
mod sections;
mod settled;
mod spending;
mod streak;
mod summary;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use jiff::{Timestamp, Zoned};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub use added::AddedTrials;
pub use difference::ConfigDifference;
pub use examples::{ExampleSet, ExampleWriter, StoredExamples};
pub use no_provider::NoProvider;
pub use plan::{Plan, PlanAgent, PlanError, Selection};
pub use planned::{ContainerWork, PlanDataset, PlanTask, Work};
pub use regrade::RegradeError;
pub use resume::{Rerun, Resumable, ResumeError};

use self::{
    dispatch::settle, earlier_rows::EarlierRows, journaled::Journaled, provenance::TaskHashes,
    sections::Sections, summary::Rows,
};
use rollout_core::{
    event::Event,
    provenance::Provenance,
    result::{JobResult, TrialResult},
    row::RolloutOutput,
};
use rollout_env::Provider;
use rollout_gateway::GatewayError;
use rollout_model as model;
use rollout_model::{Share, State};
use rollout_record::{
    atomic::{self, WriteError},
    journal::{self, Header, Journal, JournalError, PlannedTask},
    layout::JobDir,
    metadata::GenerateMetadata,
    rows, tasks,
};

/// The owner of a rejected key, for the judge of a benchmark.
pub(crate) const JUDGE: &str = "the judge";

/// A plan with a directory and an open journal, ready to run.
pub struct Job {
    plan: Arc<Plan>,
    provider: Arc<dyn Provider>,
    name: Arc<str>,
    /// Where results are saved; none if they are not.
    store: Option<Store>,
    /// The directory for files of containers if nothing is saved.
    scratch: Option<JobDir>,
    /// Trials wait for permits of this share, if other jobs share a limit with this one.
    pub(crate) share: Option<Share>,
    sections: Sections,
    rows: Rows,
    /// Rows of groups that get new members in this run.
    earlier_rows: Arc<EarlierRows>,
    /// The trials of this run.
    todo: Vec<rollout_core::name::TrialIndex>,
    history: History,
    /// When it ended, if nothing is left to do or to write.
    settled_at: Option<Timestamp>,
    warnings: Vec<String>,
    collector: Option<Box<dyn Collector>>,
    /// Rows of earlier runs, if the caller wants them.
    earlier: Vec<RolloutOutput>,
    /// The command that started the run.
    command: Option<Vec<String>>,
    /// The provenance of its results, once it is known.
    provenance: Option<Arc<Provenance>>,
}

/// Where the results of a job are saved.
struct Store {
    dir: JobDir,
    journal: Journal,
    task_hashes: TaskHashes,
}

/// Receives the results of a running job with one model and one dataset.
pub(crate) trait Collector: Send {
    /// Recorded rollouts, with the totals so far. The job waits for it.
    fn group<'a>(
        &'a mut self,
        outputs: Vec<RolloutOutput>,
        metadata: &dyn Fn() -> GenerateMetadata,
    ) -> model::BoxFuture<'a, ()> {
        let _ = (outputs, metadata);
        Box::pin(std::future::ready(()))
    }

    /// A rollout of an earlier run that was scored again with new members of its group.
    fn rescored(&mut self, output: RolloutOutput) {
        let _ = output;
    }

    /// The final totals.
    fn end(&mut self, metadata: GenerateMetadata, cancelled: bool) {
        let _ = (metadata, cancelled);
    }

    /// A finished trial, with the conversation if it was one of a model in a container.
    fn ended(&mut self, result: &Arc<TrialResult>, state: Option<Box<State>>) {
        let _ = (result, state);
    }
}

/// The times and totals of earlier runs of the same job.
#[derive(Debug, Clone, Default)]
struct History {
    first_start: Option<Timestamp>,
    /// The end of the last run, if it ended properly.
    ended_at: Option<Timestamp>,
    seconds: f64,
    /// The versions of agents, by their names.
    agent_versions: BTreeMap<String, String>,
}

/// Cancels a job: first gracefully, then immediately.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    /// Starts no new trials; running ones are stopped and torn down.
    pub graceful: CancellationToken,
    /// Waits for nothing.
    pub now: CancellationToken,
}

/// Why a job cannot be started or completed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A job of this name exists.
    #[error("the job directory {} already exists; results are never overwritten", .0.display())]
    Exists(PathBuf),
    /// A file exists where the job would create one.
    #[error("{} already exists; files are never overwritten", .0.display())]
    InTheWay(PathBuf),
    /// The directory cannot be created.
    #[error("cannot create the job directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configuration in the job's directory cannot be read.
    #[error("cannot read the job's configuration in {}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory of this name exists, and is not a job.
    #[error("{} exists and is not a job directory", .0.display())]
    NotAJob(PathBuf),
    /// Agents cannot reach their models.
    #[error("the gateway to the models cannot be started")]
    Gateway(#[from] GatewayError),
    /// The files of a task cannot be read.
    #[error("cannot read the files of the tasks")]
    Tasks(#[source] io::Error),
    /// Saved rows cannot be read.
    #[error("cannot read the rows in {}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The journal cannot be written, so results would be lost.
    #[error("cannot record results, so the job was stopped")]
    Journal(#[from] JournalError),
    /// The server of a model rejects its key: every other rollout would fail too.
    #[error("the server rejected the API key of {who}, so the job was stopped")]
    Unauthorized {
        /// The owner of the key, for a sentence.
        who: String,
        /// The error of the server.
        source: model::Error,
    },
    /// The server of a model does not support the settings: every other rollout would fail too.
    #[error("{who} does not support the settings of the job, so the job was stopped")]
    Unsupported {
        /// The model, for a sentence.
        who: String,
        /// What is not supported.
        source: model::Error,
    },
    /// A result file cannot be written.
    #[error("cannot record results, so the job was stopped")]
    Record(#[from] WriteError),
}

impl JobError {
    /// A task of the job panicked, or its runtime ended.
    fn panicked(error: tokio::task::JoinError) -> Self {
        Self::Tasks(std::io::Error::other(error))
    }

    /// The thread that writes the journal panicked.
    fn recorder_panicked(dir: Option<&JobDir>) -> Self {
        Self::Journal(JournalError::Io {
            action: "write",
            path: dir.map(JobDir::journal).unwrap_or_default(),
            source: std::io::Error::other("the thread that writes it panicked"),
        })
    }

    /// A suggestion for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Exists(dir) => Some(format!(
                "`rollout resume {0}` continues it, and `rollout resume {0} --with job.yaml` adds to it; a new job needs \
                 another `name:`",
                dir.display()
            )),
            Self::NotAJob(_) => Some("set another `name:` for the job, or move the directory".to_owned()),
            Self::InTheWay(_) => Some("use another directory for the results".to_owned()),
            Self::Journal(error @ (JournalError::Locked { .. } | JournalError::Removed { .. })) => error.hint(),
            Self::Journal(_) | Self::Record(_) => Some(
                "free disk space or fix the file system, then resume the job with `rollout resume`: finished trials are kept"
                    .to_owned(),
            ),
            Self::Unauthorized { .. } => Some(
                "set the correct api_key for this base_url, then resume the job with `rollout resume`: finished trials are kept"
                    .to_owned(),
            ),
            Self::Unsupported { .. } => {
                Some("change the model's settings or its server, then start a new job".to_owned())
            }
            Self::Config { .. } => Some("restore the file from a copy, or start a new job".to_owned()),
            Self::Rows { source, .. } if source.kind() == io::ErrorKind::InvalidData => {
                Some("correct the line, or remove it so that the rollout runs again".to_owned())
            }
            Self::Directory { .. } | Self::Gateway(_) | Self::Tasks(_) | Self::Rows { .. } => None,
        }
    }
}

impl Job {
    /// Creates the job's directory, with its configuration and an empty journal.
    pub fn create(plan: Plan, provider: Arc<dyn Provider>) -> BoxFuture<'static, Result<Self, JobError>> {
        Box::pin(async move { Self::create_in(plan, provider, make_directory).await })
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

    /// Creates a job without containers in a directory of the caller. It may exist and contain other files.
    pub(crate) async fn create_at(plan: Plan, path: PathBuf) -> Result<Self, JobError> {
        let make = move |_: &Plan| {
            Self::check_place(&path)?;
            let made = fs::create_dir_all(&path);
            made.map_err(|source| JobError::Directory { path: path.clone(), source })?;
            Ok(JobDir::new(path))
        };
        Self::create_in(plan, Arc::new(NoProvider), make).await
    }

    /// Rejects a directory that contains a job, or a file that the job would overwrite.
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

    /// A job without containers whose results are not saved.
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

    /// A job with containers whose results are not saved. Their files are in a directory that the caller removes.
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

    /// Sets the receiver of finished rollouts.
    pub(crate) fn collect(&mut self, collector: impl Collector + 'static) {
        self.collector = Some(Box::new(collector));
    }

    /// Adds a warning that is reported when the job starts.
    pub fn warn(&mut self, message: String) {
        self.warnings.push(message);
    }

    /// The directory of its results.
    pub fn directory(&self) -> &Path {
        self.store.as_ref().map_or(Path::new(""), |store| store.dir.path())
    }

    /// Runs the job to its end, and sends events to `events`.
    ///
    /// Every trial whose end is reported is saved on disk. If the future is dropped, the job is aborted.
    pub fn run(
        self,
        events: UnboundedSender<Event>,
        cancel: Cancel,
    ) -> BoxFuture<'static, Result<JobResult, JobError>> {
        let job = async move {
            let provider = Arc::clone(&self.provider);
            let outcome = self.dispatch(&events, cancel).await;
            // A job that failed must not end either while its environments are being removed.
            settle(&*provider, &events).await;
            outcome
        };
        Box::pin(async move {
            // On a worker of the runtime, starting a trial and receiving its end wake no other thread.
            let worker = AbortOnDropHandle::new(tokio::spawn(job));
            worker.await.unwrap_or_else(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(JobError::panicked(error)),
            })
        })
    }

    /// The first event.
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

    /// How many trials this run has to do.
    pub fn remaining(&self) -> usize {
        self.todo.len()
    }
}

/// The first entry of the journal of a plan.
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
        // A path that is not text cannot be written in JSON.
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
        regrade: plan.regrade.clone(),
        imported: None,
        tasks,
    }
}

/// The absolute form of a path. None if there is no working directory.
fn absolute(path: &Path) -> Option<PathBuf> {
    std::path::absolute(path).ok()
}

/// Creates the directory of a job. Without a name it gets the time, and a number if that exists.
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
