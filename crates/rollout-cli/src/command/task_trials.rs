//! A job in which agents of a command attempt tasks: those of a job file, of a directory, or of a dataset by name.

use std::{
    io::Write as _,
    num::NonZeroU32,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use jiff::Zoned;
use rollout::{
    config::{DatasetSource, LoadedJob, Override, load_job_record},
    job::{Job, JobError, Plan, Selection},
    record::{layout::JobDir, saved::SavedJob},
    task::Resolved,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{dataset_argument, free_name, load, run, warnings::TaskWarnings};
use crate::{
    args::Answer,
    exit::{Exit, Failure, hinted},
    logging,
    report::Form,
    signals,
};

/// The attempts of some agents at tasks.
pub(crate) struct TaskTrials<'a> {
    /// A job file, a task, a directory of tasks, or a dataset by name.
    pub path: &'a Path,
    /// The agents, as in a job file. None of them is a model.
    pub agents: Value,
    /// The command, which begins the job's name.
    pub name: &'static str,
    /// Attempts of each agent at each task.
    pub attempts: NonZeroU32,
    /// How many trials run at the same time.
    pub concurrency: Option<NonZeroU32>,
    /// The output format.
    pub output: Answer,
}

/// What a command finds in the trials of its agents.
pub(crate) trait TaskReport: Serialize + Send + 'static {
    /// Shows it to a person.
    fn render(&self) -> String;

    /// The exit status of the command.
    fn exit(&self) -> Exit;
}

/// The words of a command for paths that it cannot report on.
pub(crate) struct PathHints {
    /// The paths that it accepts.
    pub accepted: &'static str,
    /// The agents without which there is nothing to report.
    pub agents: &'static str,
    /// How to run them.
    pub run: &'static str,
}

/// Runs the agents unless the path is a job, and prints what `read` finds in the job, if it finds anything.
pub(crate) async fn report<R: TaskReport>(
    args: &TaskTrials<'_>,
    hints: PathHints,
    read: impl FnOnce(&SavedJob) -> Result<Option<R>, Failure> + Send + 'static,
) -> Result<Exit, Failure> {
    let path = args.path;
    if !path.exists() && !dataset_argument::is_dataset(path) {
        let failure = Failure::from(format!("{} does not exist", path.display()));
        return Err(failure.hint(Some(hints.accepted)));
    }
    let is_job = JobDir::new(path).journal().is_file();
    let directory = match is_job {
        true => path.to_owned(),
        false => match attempt(args).await? {
            ControlFlow::Continue(directory) => directory,
            ControlFlow::Break(exit) => return Ok(exit),
        },
    };
    let found = tokio::task::spawn_blocking(move || read(&SavedJob::open(directory)?)).await??;
    let Some(found) = found else {
        let message = format!("{} has no finished trial of the {}", path.display(), hints.agents);
        return Err(Failure::from(message).hint(Some(hints.run)));
    };
    super::print(&match args.output {
        Answer::Human if is_job => found.render(),
        Answer::Human => format!("\n{}", found.render()),
        Answer::Json => serde_json::to_string(&found)?,
    })?;
    Ok(found.exit())
}

/// Runs the agents on the tasks, and returns the directory of the job. If the job was cancelled or stopped, that was
/// reported, and the command ends.
async fn attempt(args: &TaskTrials<'_>) -> Result<ControlFlow<Exit, PathBuf>, Failure> {
    let cancel = signals::listen()?;
    let form = run::form(args.output.into());
    let plan = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(ControlFlow::Break(Exit::Cancelled)),
        plan = plan(args) => plan?,
    };
    let log = logging::start(plan.config().log_level, &plan.loaded().secrets, form != Form::Live);
    let provider = load::provider(&plan.config().environment).await?;
    let mut job = Job::create(plan, provider).await.map_err(hinted(JobError::hint))?;
    run::begin(&mut job, &log)?;
    let directory = job.directory().to_owned();
    let run = |events, cancel| async { job.run(events, cancel).await.map_err(hinted(JobError::hint)) };
    let ran = match args.output {
        Answer::Human => run::watch(form, None, cancel, run).await.map(|(result, _)| result),
        // The JSON output is one object, without events before it.
        Answer::Json => run(tokio::sync::mpsc::unbounded_channel().0, cancel).await,
    };
    Ok(match ran {
        Ok(result) if result.cancelled => {
            let (directory, command) = (directory.display(), args.name);
            writeln!(
                anstream::stderr().lock(),
                "continue with `rollout resume {directory}`, then run `rollout {command} {directory}`"
            )?;
            ControlFlow::Break(Exit::Cancelled)
        }
        Ok(_) => ControlFlow::Continue(directory),
        Err(failure) => {
            failure.report();
            ControlFlow::Break(Exit::Wrong)
        }
    })
}

async fn plan(args: &TaskTrials<'_>) -> Result<Plan, Failure> {
    let is_dataset = args.path.is_dir() || dataset_argument::is_dataset(args.path);
    let (mut loaded, overrides) = match is_dataset {
        true => (of_dataset(args)?, Vec::new()),
        false => of_job(args)?,
    };
    // Only models can attempt examples, and none of the agents is a model.
    loaded.config.datasets.retain(|dataset| !matches!(dataset.source, DatasetSource::Interaction(_)));
    if loaded.config.datasets.is_empty() {
        let path = args.path.display();
        return Err(format!("{path} has no container tasks; only these can have an oracle").into());
    }
    let datasets =
        load::datasets(&loaded, crate::command::sources::sources(false)?, &Resolved::default(), None).await?;
    for warning in TaskWarnings::of(&datasets).short() {
        writeln!(anstream::stderr().lock(), "{warning}")?;
    }
    Ok(Plan::new(loaded, overrides, datasets, &Selection::default(), &load::variable)?)
}

/// Returns the settings of the job that runs the tasks.
fn settings(args: &TaskTrials<'_>, jobs_dir: &Path) -> Vec<(&'static str, Value)> {
    let time = Zoned::now().strftime("%Y-%m-%d__%H-%M-%S").to_string();
    let name = free_name(jobs_dir, &format!("{}-{time}", args.name));
    let mut settings =
        vec![("name", json!(name)), ("agents", args.agents.clone()), ("n_attempts", json!(args.attempts))];
    settings.extend(args.concurrency.map(|trials| ("n_concurrent_trials", json!(trials))));
    settings
}

/// Loads a job file with its agents replaced.
fn of_job(args: &TaskTrials<'_>) -> Result<(LoadedJob, Vec<String>), Failure> {
    // The agents of the job are not loaded, because their environment variables may be unset.
    let first = load::job(args.path, &[over("agents", &json!([{"name": "nop"}]))])?;
    let mut settings = settings(args, &first.config.jobs_dir);
    if first.config.verifier.disable {
        settings.push(("verifier.disable", json!(false)));
    }
    let overrides: Vec<Override> = settings.iter().map(|(key, value)| over(key, value)).collect();
    let recorded = overrides.iter().map(|Override { key, value }| format!("{key}={value}")).collect();
    Ok((load::job(args.path, &overrides)?, recorded))
}

fn over(key: &str, value: &Value) -> Override {
    Override { key: key.to_owned(), value: value.to_string() }
}

/// Creates a job for a dataset. It has no job file; `resume` uses the copy in the job's directory.
fn of_dataset(args: &TaskTrials<'_>) -> Result<LoadedJob, Failure> {
    let settings = settings(args, Path::new("jobs"));
    let mut record: Value = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let written = |path: &Path| {
        path.to_str().map(str::to_owned).ok_or_else(|| format!("the path {} is not UTF-8", path.display()))
    };
    let absolute = |path: &str| Ok(written(&std::path::absolute(path)?)?);
    record["datasets"] = json!([dataset_argument::entry(&written(args.path)?, absolute)?]);
    let name = record["name"].as_str().unwrap_or_default();
    let beside = if args.path.is_dir() { std::path::absolute(args.path)? } else { std::env::current_dir()? };
    let file = beside.join(format!("{name}.yaml"));
    load_job_record(&file, &record, &[], &load::variable)
        .map_err(|problems| load::refused(args.path, &problems))
}
