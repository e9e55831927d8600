//! A benchmark as a job: from its configuration to its files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Zoned;
use tokio::sync::mpsc::UnboundedSender;

use super::{
    BenchmarkItem, DataError, RolloutSummary,
    auto_start::OwnServer,
    evaluation, load_questions, question,
    setup::{Setup, SetupError},
};
use crate::{
    blocking::blocking,
    config::{LoadedBenchmark, Metric, Problems, RolloutConfig},
    event::Event,
    job::{Cancel, ExampleSet, Job, JobError, NoProvider, Plan, PlanError, Rerun, Resumable, ResumeError},
    record::{atomic::WriteError, rows},
    result::JobResult,
};

/// The name of the file that says what each answer is worth.
pub const EVALUATION: &str = "evaluation.json";

/// Why a benchmark has no good end.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The configuration is not as it has to be.
    #[error(transparent)]
    Config(#[from] Problems),
    /// The questions are not as they have to be.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Model, judge or tools cannot be used.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// There is nothing to ask.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A job that was started before cannot go on.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The job had to stop.
    #[error(transparent)]
    Job(#[from] JobError),
    /// What the answers came to cannot be written. The answers themselves are there.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Somebody cut the run short.
    #[error("the benchmark was cancelled")]
    Cancelled(PathBuf),
}

impl EvalError {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        let resume = |dir: &Path| format!("`rollout resume {}` continues it", dir.display());
        match self {
            Self::Setup(error) => error.hint().map(str::to_owned),
            Self::Job(JobError::Exists(dir)) => {
                Some(format!("{}; give another output_dir for a new run", resume(dir)))
            }
            Self::Job(error) => error.hint(),
            Self::Resume(error) => error.hint(),
            Self::Cancelled(dir) if !dir.as_os_str().is_empty() => Some(resume(dir)),
            Self::Cancelled(_) | Self::Config(_) | Self::Data(_) | Self::Plan(_) | Self::Write(_) => None,
        }
    }
}

/// A benchmark that is ready to run.
pub struct Run {
    job: Job,
    config: RolloutConfig,
    server: Option<OwnServer>,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// As a job.
    pub result: JobResult,
    /// As a benchmark; none if it was cancelled, so that questions are missing.
    pub summary: Option<RolloutSummary>,
}

impl Run {
    /// Loads the questions, makes everything ready that they need, and makes the directory of the results.
    ///
    /// `overrides` are the settings that were given beside the configuration, for the record, and `program` is what
    /// starts a tool server: the `rollout` command.
    pub async fn create(
        loaded: &LoadedBenchmark,
        overrides: Vec<String>,
        program: &Path,
    ) -> Result<Self, EvalError> {
        let config = loaded.config.clone();
        if config.save_results {
            // Before anything else: it is the most common slip, and costs nothing to see.
            Job::check_place(config.results_dir())?;
        }
        let (plan, setup) = plan(loaded, overrides, program).await?;
        let (server, warnings) = (setup.server, setup.warnings);
        let mut job = match config.save_results {
            true => Job::create_at(plan, config.results_dir().to_owned()).await?,
            false => Job::unrecorded(plan),
        };
        warnings.into_iter().for_each(|warning| job.warn(warning));
        Ok(Self { job, config, server })
    }

    /// Opens a benchmark again that was cut short, with the same configuration.
    pub async fn resume(
        resumable: Resumable,
        loaded: &LoadedBenchmark,
        rerun: &[Rerun],
        program: &Path,
    ) -> Result<Self, EvalError> {
        resumable.check_config(&loaded.job())?;
        let overrides = resumable.header().overrides.clone();
        // Wherever it was moved to since.
        let directory = resumable.directory().to_owned();
        let config = RolloutConfig { output_dir: Some(directory), ..loaded.config.clone() };
        let (plan, setup) = plan(loaded, overrides, program).await?;
        let (server, warnings) = (setup.server, setup.warnings);
        let mut job = resumable.resume(plan, Arc::new(NoProvider), rerun).await?;
        warnings.into_iter().for_each(|warning| job.warn(warning));
        Ok(Self { job, config, server })
    }

    /// The job that it is.
    pub fn job(&mut self) -> &mut Job {
        &mut self.job
    }

    /// Asks all questions, telling `events` what happens, and writes what they came to.
    pub async fn run(self, events: UnboundedSender<Event>, cancel: Cancel) -> Result<Outcome, EvalError> {
        let Self { job, config, server } = self;
        let result = job.run(events.clone(), cancel).await;
        if let Some(server) = server {
            server.stop().await;
        }
        let result = result?;
        if result.cancelled {
            return Ok(Outcome { result, summary: None });
        }
        let (totals, seconds) = (result.totals.clone(), result.total_duration_sec);
        let summary = tokio::task::spawn_blocking(move || {
            let now = Zoned::now();
            let summary = RolloutSummary::new(&config, &totals, seconds, &now);
            finish(&config, summary, &now)
        })
        .await
        .map_err(|error| JobError::Tasks(std::io::Error::other(error)))??;
        let _ = events.send(Event::BenchmarkFinished { summary: Arc::new(summary.clone()) });
        Ok(Outcome { result, summary: Some(summary) })
    }
}

/// Writes what the answers came to.
fn finish(
    config: &RolloutConfig,
    mut summary: RolloutSummary,
    now: &Zoned,
) -> Result<RolloutSummary, WriteError> {
    let dir = config.results_dir();
    if config.save_results {
        let results = dir.join(rows::RESULTS);
        if config.evaluate_results {
            let target = dir.join(EVALUATION);
            evaluation::write(&results, config.evaluation_metric, &target)?;
            summary.evaluation_file = Some(target);
        }
        summary.results_file = Some(results);
    }
    if config.save_summary {
        summary.save(dir, config.dataset_name().as_str(), now)?;
    }
    Ok(summary)
}

async fn plan(
    loaded: &LoadedBenchmark,
    overrides: Vec<String>,
    program: &Path,
) -> Result<(Plan, Setup), EvalError> {
    let config = loaded.config.clone();
    let items =
        blocking(move || Ok(load_questions(&config))).await.map_err(JobError::Tasks)??;
    let setup = Setup::new(&loaded.config, program, None).await?;
    let examples = examples(&loaded.config, items, &setup);
    let mut job = loaded.job();
    job.config.metrics = vec![Metric::Mean];
    let plan =
        Plan::of_examples(job, overrides, loaded.config.agent_name(), Arc::clone(&setup.model), examples)?;
    Ok((plan, setup))
}

fn examples(config: &RolloutConfig, items: Vec<BenchmarkItem>, setup: &Setup) -> ExampleSet {
    let system = question::system_message(&config.system_prompt);
    let name = config.dataset_name();
    let names = items.iter().map(BenchmarkItem::task_name).collect();
    let input =
        |(place, item): (usize, BenchmarkItem)| item.input(place as u64, Arc::clone(&system), name.as_str());
    ExampleSet {
        rollouts: Arc::new(setup.rollouts.clone()),
        inputs: items.into_iter().enumerate().map(input).collect(),
        names,
        name,
    }
}
