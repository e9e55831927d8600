//! Runs a benchmark as a job, from its configuration to its files.

use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use futures_util::future;
use jiff::Zoned;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_util::task::AbortOnDropHandle;

use super::{
    AutoStartError, BenchmarkItem, DataError,
    auto_start::OwnServer,
    data::each_question,
    evaluation, question,
    seeds::{SeedGatherer, SeedPaths},
    setup::{Setup, SetupError, Tools},
    summary,
    tools::{MOST_MISSED, Toolbox},
    version::QuestionRecords,
};
use crate::{
    config::{LoadedBenchmark, NotText, Problems, RolloutConfig},
    job::{
        Cancel, ExampleSet, ExampleWriter, JUDGE, Job, JobError, NoProvider, Plan, PlanError, Rerun,
        Resumable, ResumeError, StoredExamples, rollouts::COUNTS_AS_ZERO,
    },
    task::Pins,
};
use rollout_core::summary::RolloutSummary;
use rollout_core::{
    event::Event,
    result::{JobMetric, JobResult, TrialError},
};
use rollout_env::blocking::blocking;
use rollout_model::dataset;
use rollout_record::{atomic::WriteError, journal::TaskSelection, rows};

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] Problems),
    /// A path given in addition to the configuration cannot be recorded.
    #[error(transparent)]
    Path(#[from] NotText),
    /// The questions are invalid.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model, the judge or the tools cannot be used.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// There are no questions to ask.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An earlier job cannot be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The job failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The summary cannot be written. The answers are saved.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The connection to the tool server was lost, and the run was stopped.
    #[error(transparent)]
    ToolServer(Box<LostServer>),
    /// The run was cancelled.
    #[error("the benchmark was cancelled")]
    Cancelled(PathBuf),
    /// The run stopped early: the other questions would have failed in the same way.
    #[error(
        "the benchmark stopped early: {failures} questions in a row failed with the same cause: {}",
        error.message
    )]
    Stopped {
        /// The directory of the results.
        dir: PathBuf,
        /// The number of consecutive failures.
        failures: u64,
        /// The error of the last one.
        error: Box<TrialError>,
    },
}

impl EvalError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<String> {
        let resume = |dir: &Path| format!("`rollout resume {}` continues it", dir.display());
        match self {
            Self::Setup(error) => error.hint().map(str::to_owned),
            Self::Job(JobError::Exists(dir)) => {
                Some(format!("{}; set another output_dir for a new run", resume(dir)))
            }
            Self::Job(JobError::Unauthorized { who, .. }) if who == JUDGE => Some(
                "set `evaluator_api_key` to the key of the judge, then resume the run with `rollout resume`: scored answers are kept"
                    .to_owned(),
            ),
            Self::Job(error) => error.hint(),
            Self::Resume(error) => error.hint(),
            Self::ToolServer(lost) => lost.hint(),
            Self::Cancelled(dir) if !dir.as_os_str().is_empty() => Some(resume(dir)),
            Self::Stopped { dir, .. } => {
                Some(format!("fix the cause; `rollout resume {} --rerun error` continues it", dir.display()))
            }
            Self::Cancelled(_)
            | Self::Config(_)
            | Self::Path(_)
            | Self::Data(_)
            | Self::Plan(_)
            | Self::Write(_) => None,
        }
    }
}

/// A tool server that was lost during a run.
#[derive(Debug, thiserror::Error)]
pub enum LostServer {
    /// It was started for the run, and exited.
    #[error("lost the connection to the tool server, so the run was stopped")]
    Own {
        /// The directory of the results; empty if they are not saved.
        dir: PathBuf,
        /// How it exited.
        source: AutoStartError,
    },
    /// It was not started by this run, and cannot be reached any more.
    #[error(
        "the tool server at {url} could not be reached for {MOST_MISSED} questions in a row, so the run was stopped"
    )]
    Unreachable {
        /// The directory of the results; empty if they are not saved.
        dir: PathBuf,
        /// Its URL.
        url: String,
    },
}

impl LostServer {
    fn hint(&self) -> Option<String> {
        let (dir, how) = match self {
            Self::Own { dir, .. } => (dir, "`rollout resume"),
            Self::Unreachable { dir, .. } => (dir, "start it again; `rollout resume --rerun error"),
        };
        (!dir.as_os_str().is_empty()).then(|| format!("{how} {}` continues the run", dir.display()))
    }
}

/// A benchmark that is ready to run.
pub struct Run {
    job: Job,
    config: RolloutConfig,
    tools: Tools,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalOutcome {
    /// The result as a job.
    pub result: JobResult,
    /// The summary as a benchmark; none if the run was cancelled, because questions are missing.
    pub summary: Option<RolloutSummary>,
}

impl Run {
    /// Loads the questions, prepares the model and the tools, and creates the directory of the results.
    ///
    /// `overrides` are the settings given in addition to the configuration, for the record. `program` starts a tool
    /// server: the `rollout` command.
    pub async fn create(
        loaded: &LoadedBenchmark,
        overrides: Vec<String>,
        program: &Path,
    ) -> Result<Self, EvalError> {
        let config = loaded.config.clone();
        if config.save_results {
            // First of all: this is the most common mistake, and it is cheap to check.
            Job::check_place(config.results_dir())?;
        }
        let (plan, setup) = plan(loaded, overrides).await?;
        let mut tools = setup.tools(&config, program).await?;
        let mut job = match config.save_results {
            true => Job::create_at(plan, config.results_dir().to_owned()).await?,
            false => Job::unrecorded(plan),
        };
        tools.warnings.drain(..).for_each(|warning| job.warn(warning));
        Ok(Self { job, config, tools })
    }

    /// Opens an interrupted benchmark again, with the same configuration.
    pub async fn resume(
        resumable: Resumable,
        loaded: &LoadedBenchmark,
        rerun: &[Rerun],
        program: &Path,
    ) -> Result<Self, EvalError> {
        resumable.check_config(&loaded.job())?;
        let overrides = resumable.header().overrides.clone();
        // The directory may have been moved.
        let directory = resumable.directory().to_owned();
        let config = RolloutConfig { output_dir: Some(directory), ..loaded.config.clone() };
        let (plan, setup) = plan(loaded, overrides).await?;
        let mut job = resumable.resume(plan, Arc::new(NoProvider), rerun).await?;
        let mut tools = match job.remaining() {
            // All questions are answered, so no tools are needed.
            0 => Tools::default(),
            _ => setup.tools(&config, program).await?,
        };
        tools.warnings.drain(..).for_each(|warning| job.warn(warning));
        Ok(Self { job, config, tools })
    }

    /// The job.
    pub fn job(&mut self) -> &mut Job {
        &mut self.job
    }

    /// Asks all questions, sends events to `events`, and writes the results.
    pub async fn run(self, events: UnboundedSender<Event>, cancel: Cancel) -> Result<EvalOutcome, EvalError> {
        let Self { mut job, config, tools: Tools { toolbox, mut server, .. } } = self;
        let dir = job.directory().to_owned();
        let is_settled = job.is_settled();
        let provenance = match is_settled {
            true => None,
            false => Some(job.provenance().await),
        };
        let stop = Cancel { graceful: cancel.graceful.child_token(), now: cancel.now.clone() };
        let (sender, receiver) = mpsc::unbounded_channel();
        let passing = AbortOnDropHandle::new(tokio::spawn(pass_on(receiver, events.clone())));
        let mut result = pin!(future::join(job.run(sender, stop.clone()), passing));
        let ((result, judge_failures), lost) = tokio::select! {
            ended = &mut result => (ended, None),
            lost = lost(toolbox.as_deref(), server.as_mut(), dir) => {
                stop.graceful.cancel();
                (result.await, Some(lost))
            }
        };
        if let Some(server) = server {
            server.stop().await;
        }
        let result = result?;
        let judge_failures = judge_failures.map_err(|error| JobError::Tasks(std::io::Error::other(error)))?;
        if let Some(lost) = lost {
            return Err(EvalError::ToolServer(Box::new(lost)));
        }
        // Averages over some of the questions would look like those over all.
        if result.cancelled || result.stopped.is_some() {
            return Ok(EvalOutcome { result, summary: None });
        }
        let (totals, seconds) = (result.totals.clone(), result.total_duration_sec);
        let summary = tokio::task::spawn_blocking(move || {
            if is_settled && let Some(saved) = summary::saved(&config, &totals) {
                return Ok(saved);
            }
            let now = Zoned::now();
            let summary = summary::summary(&config, &totals, seconds, &now);
            let summary = RolloutSummary { judge_failures, provenance, ..summary };
            finish(&config, summary, &now)
        })
        .await
        .map_err(|error| JobError::Tasks(std::io::Error::other(error)))??;
        let _ = events.send(Event::BenchmarkFinished { summary: Arc::new(summary.clone()) });
        Ok(EvalOutcome { result, summary: Some(summary) })
    }
}

/// Passes events on, and counts the answers whose judge failed.
async fn pass_on(mut receiver: UnboundedReceiver<Event>, events: UnboundedSender<Event>) -> u64 {
    let mut failures = 0;
    while let Some(event) = receiver.recv().await {
        if let Event::TrialFinished { result, .. } = &event {
            failures += u64::from(result.notes.iter().any(|note| note.ends_with(COUNTS_AS_ZERO)));
        }
        // The run continues without a reader of its events.
        let _ = events.send(event);
    }
    failures
}

/// Waits until the tool server is lost, if there is one.
async fn lost(toolbox: Option<&Toolbox>, server: Option<&mut OwnServer>, dir: PathBuf) -> LostServer {
    let missed = async {
        match toolbox {
            Some(toolbox) => {
                toolbox.lost().await;
                toolbox.server.url().to_owned()
            }
            None => std::future::pending().await,
        }
    };
    let died = async {
        match server {
            Some(server) => server.died().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        url = missed => LostServer::Unreachable { dir, url },
        source = died => LostServer::Own { dir, source },
    }
}

/// Writes the evaluation and the summary.
fn finish(
    config: &RolloutConfig,
    mut summary: RolloutSummary,
    now: &Zoned,
) -> Result<RolloutSummary, WriteError> {
    let dir = config.results_dir();
    if config.save_results {
        let results = dir.join(rows::RESULTS);
        if config.evaluate_results {
            let target = dir.join(rows::EVALUATION);
            let total = summary.total_tasks;
            summary.judge_failures = evaluation::write(&results, config.evaluation_metric, total, &target)?;
            summary.evaluation_file = Some(target);
        }
        summary.results_file = Some(results);
    }
    if config.save_summary {
        summary::save(&mut summary, dir, config.dataset_name().as_str(), now)?;
    }
    Ok(summary)
}

async fn plan(loaded: &LoadedBenchmark, overrides: Vec<String>) -> Result<(Plan, Setup), EvalError> {
    let config = loaded.config.clone();
    let Questions { examples, seeds, count } =
        blocking(move || Ok(questions(&config))).await.map_err(JobError::Tasks)??;
    let mut setup = Setup::new(&loaded.config, None)?;
    setup.seeds = seeds;
    let rollouts = Arc::new(setup.rollouts.clone());
    let (name, examples) = (loaded.config.dataset_name(), Arc::new(examples));
    let examples = ExampleSet { name, rollouts, examples, resolved: Pins::new() };
    let mut job = loaded.job();
    job.config.metrics = vec![JobMetric::Mean];
    let model = Arc::clone(&setup.model);
    let mut plan = Plan::of_examples(job, overrides, loaded.config.agent_name(), model, examples)?;
    plan.selected(selection(&loaded.config), count);
    Ok((plan, setup))
}

/// The selected questions.
struct Questions {
    examples: StoredExamples,
    /// The files that the questions and the configuration name.
    seeds: SeedPaths,
    /// The number of all questions, selected or not.
    count: u64,
}

/// Reads the questions and stores them in a file, so that they need no memory.
fn questions(config: &RolloutConfig) -> Result<Questions, DataError> {
    let (system, name) = (question::system_message(&config.system_prompt), config.dataset_name());
    let mut records = QuestionRecords::new(config);
    let mut seeds = SeedGatherer::new(config);
    let mut writer = ExampleWriter::default();
    let count = each_question(config, |place, item| {
        let (task, about) = (item.task_name(), records.about(&item));
        seeds.add(&item);
        writer.push(&item.input(place, Arc::clone(&system), name.as_str()), Some(&task), Some(&about))
    })?;
    let examples = writer.finish().map_err(DataError::Store)?;
    Ok(Questions { examples, seeds: seeds.finish(config), count })
}

/// The selection of questions, if not all of them are asked.
fn selection(config: &RolloutConfig) -> Option<TaskSelection> {
    let globs = config.task_ids.clone().unwrap_or_default();
    let limit = config.number_of_tasks.map(|number| number as u64);
    (limit.is_some() || !globs.is_empty()).then_some(TaskSelection { globs, limit })
}

/// The hash of the question at a position of a benchmark, as in the journal of a run.
pub fn question_hash(config: &RolloutConfig, place: usize, item: BenchmarkItem) -> String {
    let system = question::system_message(&config.system_prompt);
    dataset::content_hash(&[item.input(place as u64, system, config.dataset_name().as_str())])
}
