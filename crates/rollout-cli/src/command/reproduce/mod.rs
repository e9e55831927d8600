//! `rollout reproduce`: runs one trial again from its record.

mod again;
mod compare;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use rollout::{
    job::{Resumable, ResumeError},
    record::saved::{SavedError, SavedJob, SavedTrial},
};

use serde_json::json;

use self::compare::Comparison;
use super::run;
use crate::{
    args::{Answer, Reproduce},
    exit::{Exit, Failure, hinted},
    logging,
    report::{
        Form,
        text::{ODD, paint},
    },
    signals,
};

/// Why a trial cannot be run again.
#[derive(Debug, thiserror::Error)]
enum ReproduceError {
    #[error("{} is not the path of a trial", .0.display())]
    NotATrial(PathBuf),
    #[error("the job in {} has no result for the trial {trial}", job.display())]
    NoResult { job: PathBuf, trial: String },
    #[error("the new trial has no result")]
    NoEnd,
    #[error(transparent)]
    Saved(#[from] SavedError),
}

impl ReproduceError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotATrial(_) => Some(
                "pass <job directory>/<agent>/<dataset>/<task>__<attempt>, also for rollouts and benchmarks, \
                 which have no such directory"
                    .to_owned(),
            ),
            Self::NoResult { job, .. } => Some(format!(
                "`rollout export csv {} -o <directory>` lists the trials that have a result",
                job.display()
            )),
            Self::Saved(SavedError::NotAJob(_) | SavedError::Missing(_)) => Some(
                "the job's directory is the part of the path before <agent>/<dataset>/<task>__<attempt>"
                    .to_owned(),
            ),
            Self::NoEnd | Self::Saved(_) => None,
        }
    }
}

/// Runs a trial again, and prints what differs.
pub(crate) async fn run(args: Reproduce) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let (path, name) = locate(&args.trial)
        .ok_or_else(|| ReproduceError::NotATrial(args.trial.clone()))
        .map_err(hinted(ReproduceError::hint))?;
    let wanted = name.clone();
    let (before, trial) = blocking(move || find(path, &wanted)).await?;
    let resumable = Resumable::open(before.path()).map_err(hinted(ResumeError::hint))?;
    let jobs_dir = match args.jobs_dir {
        Some(dir) => dir,
        None => before.path().parent().unwrap_or(Path::new("/")).to_owned(),
    };
    let form = run::form(args.output.into());
    let prepared = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        prepared = again::prepare(&resumable, &trial, &jobs_dir) => prepared?,
    };
    let again::Prepared { mut again, config_hash, task_hash, mut notes, secrets, log_level } = prepared;
    let log = logging::start(log_level, &secrets, form != Form::Live);
    run::begin(again.job(), &log)?;
    let directory = again.job().directory().to_owned();
    let after = directory.clone();
    let after = blocking(move || Ok(SavedJob::open(after)?)).await?;
    let planned = || after.header().tasks.first().and_then(|task| task.content_hash.clone());
    let task_hash = task_hash.or_else(planned);
    if before.task(&trial).content_hash != task_hash {
        notes.push(match before.task(&trial).example_id {
            Some(_) => "the example has changed".to_owned(),
            None => "the task's files have changed".to_owned(),
        });
    }
    for note in &notes {
        writeln!(anstream::stderr().lock(), "{} {note}", paint(ODD, "warning:"))?;
    }
    let ran = match args.output {
        Answer::Human => run::watch(form, None, cancel, |events, cancel| again.run(events, cancel))
            .await
            .map(|(result, _)| result),
        // The JSON output is one object, without events before it.
        Answer::Json => again.run(tokio::sync::mpsc::unbounded_channel().0, cancel).await,
    };
    let result = match ran {
        Ok(result) => result,
        Err(failure) => {
            failure.report();
            return Ok(Exit::Wrong);
        }
    };
    if result.cancelled {
        return Ok(Exit::Cancelled);
    }
    let comparison = blocking(move || {
        let job = SavedJob::open(directory)?;
        let again = job.trials()?.next().ok_or(ReproduceError::NoEnd)??;
        Ok(Comparison::new(
            &name,
            (&before, &trial),
            (&job, &again),
            [json!(task_hash), json!(config_hash)],
            notes,
        ))
    })
    .await?;
    super::print(&match args.output {
        Answer::Human => format!("\n{}", comparison.render()),
        Answer::Json => serde_json::to_string(&comparison)?,
    })?;
    Ok(if comparison.same_outcome { Exit::Success } else { Exit::Unmet })
}

/// Runs blocking file operations on their own thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReproduceError> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await?.map_err(hinted(ReproduceError::hint))
}

/// Returns the job's directory and the trial's name in it.
fn locate(path: &Path) -> Option<(PathBuf, String)> {
    // The path need not exist, because rollouts have no directories.
    let path = path.canonicalize().or_else(|_| std::path::absolute(path)).ok()?;
    let (dataset, agent) = (path.parent()?, path.parent()?.parent()?);
    let words = [agent.file_name()?, dataset.file_name()?, path.file_name()?];
    let [agent_name, dataset_name, task] = words.map(|word| word.to_str());
    let task = task?;
    let (_, attempt) = task.rsplit_once("__")?;
    attempt.parse::<u32>().ok()?;
    Some((agent.parent()?.to_owned(), format!("{}/{}/{task}", agent_name?, dataset_name?)))
}

fn find(path: PathBuf, name: &str) -> Result<(SavedJob, SavedTrial), ReproduceError> {
    let job = SavedJob::open(path)?;
    let mut found = None;
    for trial in job.trials()? {
        let trial = trial?;
        if trial.id.to_string() == name {
            found = Some(trial);
            break;
        }
    }
    match found {
        Some(trial) => Ok((job, trial)),
        None => Err(ReproduceError::NoResult { job: job.path().to_owned(), trial: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_named_by_the_end_of_its_path() {
        let found = |path: &str| locate(Path::new(path));
        let trial = |job: &str, name: &str| Some((PathBuf::from(job), name.to_owned()));
        assert_eq!(found("/jobs/a/oracle/set/sort__1"), trial("/jobs/a", "oracle/set/sort__1"));
        assert_eq!(found("/jobs/a/oracle/set/a__b__12/"), trial("/jobs/a", "oracle/set/a__b__12"));
        for other in ["/jobs/a/oracle/set", "/jobs/a/oracle/set/sort", "/set/sort__1", "/a/b/c/sort__x"] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
