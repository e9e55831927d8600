//! The job that runs one trial of another job again.

use std::{fs, path::Path, sync::Arc};

use globset::{Glob, GlobMatcher};
use rollout::{
    benchmark::{self, EvalError, Run},
    config::{
        EnvironmentKind, LoadedBenchmark, LoadedJob, LogLevel, Override, load_benchmark,
        load_benchmark_record, load_job_record,
    },
    environment::Provider,
    event::{Event, JobKind},
    job::{Cancel, Job, JobError, NoProvider, Plan, Resumable, ResumeError, Selection},
    name::JobName,
    record::saved::SavedTrial,
    result::JobResult,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::super::{free_name, load};
use crate::exit::{Failure, hinted};

/// The maximum length of a job's name, with space for a number at the end.
const MAX_NAME_BYTES: usize = 190;

/// A job of one trial, ready to run.
pub(super) struct Prepared {
    pub(super) again: Again,
    /// The hash of the current configuration, with the overrides of the old job.
    pub(super) config_hash: String,
    /// The hash of the current task, if the hash in the new job cannot be compared. The hash of a question includes its
    /// index, and in the new job it is the only question.
    pub(super) task_hash: Option<String>,
    /// Warnings to print before the trial runs.
    pub(super) notes: Vec<String>,
    pub(super) secrets: Vec<String>,
    pub(super) log_level: LogLevel,
}

/// The job or benchmark that runs the trial.
pub(super) enum Again {
    Job(Box<Job>),
    Benchmark(Box<Run>),
}

impl Again {
    pub(super) fn job(&mut self) -> &mut Job {
        match self {
            Self::Job(job) => job,
            Self::Benchmark(run) => run.job(),
        }
    }

    pub(super) async fn run(
        self,
        events: UnboundedSender<Event>,
        cancel: Cancel,
    ) -> Result<JobResult, Failure> {
        match self {
            Self::Job(job) => job.run(events, cancel).await.map_err(hinted(JobError::hint)),
            Self::Benchmark(run) => {
                Ok(run.run(events, cancel).await.map_err(hinted(EvalError::hint))?.result)
            }
        }
    }
}

/// Loads the configuration again, and creates the directory of the new job.
pub(super) async fn prepare(
    before: &Resumable,
    trial: &SavedTrial,
    jobs_dir: &Path,
) -> Result<Prepared, Failure> {
    let header = before.header();
    if header.job_file.as_os_str().is_empty() {
        let message = "the job has no job file: a program started it through the library";
        return Err(message.into());
    }
    let mut whole = format!("reproduce-{}-{}__{}", header.job_name, trial.id.task, trial.id.attempt);
    let end = (0..=MAX_NAME_BYTES).rev().find(|end| whole.is_char_boundary(*end)).unwrap_or(0);
    whole.truncate(end);
    let name = free_name(jobs_dir, &whole);
    match header.kind {
        JobKind::Job => job(before, trial, jobs_dir, &name).await,
        JobKind::Benchmark => question(before, trial, &jobs_dir.join(name)).await,
    }
}

async fn job(
    before: &Resumable,
    trial: &SavedTrial,
    jobs_dir: &Path,
    name: &str,
) -> Result<Prepared, Failure> {
    let header = before.header();
    JobName::new(name)?;
    let mut settings =
        vec![("name", json!(name)), ("jobs_dir", json!(text(jobs_dir)?)), ("n_attempts", json!(1))];
    if EnvironmentKind::from_name(&header.provider).is_some() {
        settings.push(("environment.type", json!(header.provider)));
    }
    let overrides = overrides(&header.overrides, &settings);
    let mut notes = Vec::new();
    let (config_hash, mut loaded) = if header.job_file.exists() {
        let now = load::job(&header.job_file, &load::overrides(&header.overrides)?)?;
        notes.extend(changes(before.check_config(&now))?);
        (now.hash, load::job(&header.job_file, &load::overrides(&overrides)?)?)
    } else {
        notes.push(gone(&header.job_file));
        (header.config_hash.clone(), from_copy(before, &settings)?)
    };
    let id = &trial.id;
    loaded.config.datasets.retain(|dataset| dataset.name == id.dataset);
    if loaded.config.datasets.is_empty() {
        return Err(format!("the job no longer has the dataset {}", id.dataset).into());
    }
    let provider: Arc<dyn Provider> = match header.provider == NoProvider.name() {
        true => Arc::new(NoProvider),
        false => load::provider(&loaded.config.environment).await?,
    };
    let context = load::interaction_context(&loaded, Some(Arc::clone(&provider))).await?;
    let sources = crate::command::sources::sources(false)?;
    let datasets = load::datasets(&loaded, sources, &before.resolved(false), context.as_ref()).await?;
    let models = load::models(&loaded)?;
    let selection = Selection {
        agents: vec![exactly(id.agent.as_str())?],
        datasets: vec![exactly(id.dataset.as_str())?],
        tasks: vec![exactly(id.task.as_str())?],
        limit: None,
    };
    let (secrets, log_level) = (loaded.secrets.clone(), loaded.config.log_level);
    let plan = Plan::new(loaded, overrides, datasets, &selection, &load::variable)?
        .with_models(models)
        .with_packages(crate::packages::packages()?);
    let job = Job::create(plan, provider).await.map_err(hinted(JobError::hint))?;
    Ok(Prepared { again: Again::Job(Box::new(job)), config_hash, task_hash: None, notes, secrets, log_level })
}

/// Loads the copy of the job file in the job's directory.
fn from_copy(before: &Resumable, settings: &[(&str, Value)]) -> Result<LoadedJob, Failure> {
    let overrides = load::overrides(&overrides(&[], settings))?;
    load_job_record(&before.header().job_file, &copy(before)?, &overrides, &load::variable)
        .map_err(|problems| load::refused(&before.config_copy(), &problems))
}

/// Prepares a benchmark with one question.
async fn question(before: &Resumable, trial: &SavedTrial, directory: &Path) -> Result<Prepared, Failure> {
    let header = before.header();
    let file = &header.job_file;
    let exists = file.is_file();
    let load = |overrides: &[Override]| -> Result<LoadedBenchmark, Failure> {
        match exists {
            true => load_benchmark(file, overrides, &load::variable)
                .map_err(|problems| load::refused(file, &problems)),
            false => {
                let mut record: Value = copy(before)?;
                for Override { key, value } in overrides {
                    record[key.as_str()] = serde_json::from_str(value)?;
                }
                load_benchmark_record(file, &record, &load::variable)
                    .map_err(|problems| load::refused(&before.config_copy(), &problems))
            }
        }
    };
    // The copy already contains the recorded overrides.
    let recorded = if exists { header.overrides.clone() } else { Vec::new() };
    let now = load(&load::overrides(&recorded)?)?;
    let mut notes = if exists { Vec::new() } else { vec![gone(file)] };
    notes.extend(changes(before.check_config(&now.job()))?);
    let config = now.config.clone();
    let items = tokio::task::spawn_blocking(move || benchmark::load_questions(&config)).await??;
    let mut items = items.into_iter().enumerate();
    let Some((place, item)) = items.find(|(_, item)| item.task_name() == trial.id.task) else {
        return Err(format!("the benchmark no longer has the question {}", trial.id.task).into());
    };
    let task_hash = benchmark::question_hash(&now.config, place, item.clone());
    let settings = [("output_dir", json!(text(directory)?)), ("task_ids", json!([item.id]))];
    let overrides = overrides(&recorded, &settings);
    let loaded = load(&load::overrides(&overrides)?)?;
    let run =
        Run::create(&loaded, overrides, &std::env::current_exe()?).await.map_err(hinted(EvalError::hint))?;
    Ok(Prepared {
        again: Again::Benchmark(Box::new(run)),
        config_hash: now.hash,
        task_hash: Some(task_hash),
        notes,
        secrets: loaded.secrets,
        log_level: LogLevel::default(),
    })
}

/// Returns the changes of the configuration as warnings. They do not prevent the run.
fn changes(checked: Result<(), ResumeError>) -> Result<Vec<String>, Failure> {
    match checked {
        Ok(()) => Ok(Vec::new()),
        Err(ResumeError::ConfigChanged(differences) | ResumeError::Grown { differences, .. }) => {
            let line = |difference: &rollout::job::ConfigDifference| {
                format!("the configuration has changed: {difference}")
            };
            Ok(differences.iter().map(line).collect())
        }
        Err(error) => Err(error.into()),
    }
}

fn gone(file: &Path) -> String {
    format!("{} is missing; using the copy in the job's directory", file.display())
}

fn copy(before: &Resumable) -> Result<Value, Failure> {
    let path = before.config_copy();
    let bytes = fs::read(&path).map_err(|error| {
        let file = before.header().job_file.display();
        Failure::from(format!("{file} is missing, and its copy {} cannot be read: {error}", path.display()))
            .hint(Some("restore the job file"))
    })?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Appends settings to the recorded overrides, so that the settings take precedence.
fn overrides(before: &[String], settings: &[(&str, Value)]) -> Vec<String> {
    let settings = settings.iter().map(|(key, value)| format!("{key}={value}"));
    before.iter().cloned().chain(settings).collect()
}

fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str()
        .ok_or_else(|| format!("{} is not UTF-8; choose another directory with -o", path.display()).into())
}

fn exactly(name: &str) -> Result<GlobMatcher, Failure> {
    Ok(Glob::new(&globset::escape(name))?.compile_matcher())
}
