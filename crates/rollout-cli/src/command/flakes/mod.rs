//! `rollout flakes`: finds tasks that the oracle does not always pass, and tasks that the nop agent passes.

mod report;
mod tally;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use jiff::Zoned;
use rollout::{
    config::{DatasetSource, LoadedJob, Override, load_job_record},
    job::{Job, JobError, Plan, Selection},
    record::{layout::JobDir, saved::SavedJob},
    task::Resolved,
};
use serde_json::{Value, json};

use self::{report::Report, tally::Tally};
use super::{execute, free_name, load, run, warnings::TaskWarnings};
use crate::{
    args::{Answer, Flakes},
    exit::{Exit, Failure, hinted},
    logging,
    report::Form,
    signals,
};

/// The agents that test a task.
const AGENTS: [&str; 2] = ["oracle", "nop"];

/// Runs the tasks unless the path is a finished job, and reports the flaky ones.
pub(crate) async fn run(args: Flakes) -> Result<Exit, Failure> {
    if !args.path.exists() {
        let failure = Failure::from(format!("{} does not exist", args.path.display()));
        return Err(failure.hint(Some("pass a job file, a directory of tasks, or a job directory")));
    }
    let is_job = JobDir::new(&args.path).journal().is_file();
    let directory = match is_job {
        true => args.path.clone(),
        false => match attempt(&args).await? {
            Attempted::All(directory) => directory,
            Attempted::Cancelled(directory) => {
                let directory = directory.display();
                let hint = format!(
                    "continue with `rollout resume {directory}`, then run `rollout flakes {directory}`"
                );
                writeln!(anstream::stderr().lock(), "{hint}")?;
                return Ok(Exit::Cancelled);
            }
            Attempted::Nothing => return Ok(Exit::Cancelled),
            Attempted::Stopped => return Ok(Exit::Wrong),
        },
    };
    let report = tokio::task::spawn_blocking(move || -> Result<Option<Report>, Failure> {
        let job = SavedJob::open(directory)?;
        Ok(Tally::read(&job)?.map(|tally| Report::new(&job, &tally)))
    })
    .await??;
    let Some(report) = report else {
        let path = args.path.display();
        let failure = Failure::from(format!("{path} has no finished trial of the oracle or nop agent"));
        return Err(failure.hint(Some("pass the job file or the directory of tasks to run the tasks")));
    };
    super::print(&match args.output {
        Answer::Human if is_job => report.render(),
        Answer::Human => format!("\n{}", report.render()),
        Answer::Json => serde_json::to_string(&report)?,
    })?;
    Ok(report.exit())
}

/// How the attempts ended.
enum Attempted {
    All(PathBuf),
    Cancelled(PathBuf),
    /// Cancelled before anything ran.
    Nothing,
    /// Stopped by an error that was reported.
    Stopped,
}

/// Runs both agents on the tasks of a job or a directory.
async fn attempt(args: &Flakes) -> Result<Attempted, Failure> {
    let cancel = signals::listen()?;
    let form = execute::form(args.output.into());
    let plan = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Attempted::Nothing),
        plan = plan(args) => plan?,
    };
    let log = logging::start(plan.config().log_level, &plan.loaded().secrets, form != Form::Live);
    let provider = run::provider(&plan.config().environment).await?;
    let mut job = Job::create(plan, provider).await.map_err(hinted(JobError::hint))?;
    execute::begin(&mut job, &log)?;
    let directory = job.directory().to_owned();
    let run = |events, cancel| async { job.run(events, cancel).await.map_err(hinted(JobError::hint)) };
    let ran = match args.output {
        Answer::Human => execute::watch(form, None, cancel, run).await.map(|(result, _)| result),
        // The JSON output is one object, without events before it.
        Answer::Json => run(tokio::sync::mpsc::unbounded_channel().0, cancel).await,
    };
    Ok(match ran {
        Ok(result) if result.cancelled => Attempted::Cancelled(directory),
        Ok(_) => Attempted::All(directory),
        Err(failure) => {
            failure.report();
            Attempted::Stopped
        }
    })
}

async fn plan(args: &Flakes) -> Result<Plan, Failure> {
    let (mut loaded, overrides) = match args.path.is_dir() {
        true => (of_directory(args)?, Vec::new()),
        false => of_job(args)?,
    };
    // Only models can attempt examples, and both agents are not models.
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
fn settings(args: &Flakes, jobs_dir: &Path) -> Vec<(&'static str, Value)> {
    let agents: Value = AGENTS.iter().map(|name| json!({"name": name})).collect();
    let name = free_name(jobs_dir, &Zoned::now().strftime("flakes-%Y-%m-%d__%H-%M-%S").to_string());
    let mut settings = vec![("name", json!(name)), ("agents", agents), ("n_attempts", json!(args.attempts))];
    settings.extend(args.concurrency.map(|trials| ("n_concurrent_trials", json!(trials))));
    settings
}

/// Loads a job file with its agents replaced.
fn of_job(args: &Flakes) -> Result<(LoadedJob, Vec<String>), Failure> {
    // The agents of the job are not loaded, because their environment variables may be unset.
    let first = load::job(&args.path, &[over("agents", &json!([{"name": "nop"}]))])?;
    let mut settings = settings(args, &first.config.jobs_dir);
    if first.config.verifier.disable {
        settings.push(("verifier.disable", json!(false)));
    }
    let overrides: Vec<Override> = settings.iter().map(|(key, value)| over(key, value)).collect();
    let recorded = overrides.iter().map(|Override { key, value }| format!("{key}={value}")).collect();
    Ok((load::job(&args.path, &overrides)?, recorded))
}

fn over(key: &str, value: &Value) -> Override {
    Override { key: key.to_owned(), value: value.to_string() }
}

/// Creates a job for the tasks of a directory. It has no job file; `resume` uses the copy in the job's directory.
fn of_directory(args: &Flakes) -> Result<LoadedJob, Failure> {
    let path = std::path::absolute(&args.path)?;
    let settings = settings(args, Path::new("jobs"));
    let mut record: Value = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let text = path.to_str().ok_or_else(|| format!("the path {} is not UTF-8", path.display()))?;
    record["datasets"] = json!([{"path": text}]);
    let name = record["name"].as_str().unwrap_or_default();
    let file = path.join(format!("{name}.yaml"));
    load_job_record(&file, &record, &[], &load::variable)
        .map_err(|problems| load::refused(&args.path, &problems))
}
