//! `rollout regrade`: runs the tests of a finished job again, without its agents.

mod configuration;
mod report;

use std::{collections::BTreeMap, io::Write as _, path::Path};

use rollout::{
    event::JobKind,
    job::{Cancel, Job, JobError, Plan, PlanError, RegradeError, Resumable, ResumeError, Selection},
    record::{
        journal::{Header, RegradeRecord},
        saved::SavedJob,
    },
    result::RegradeSource,
};
use serde_json::json;

use self::report::Report;
use super::{load, resume, run, sources::sources};
use crate::{
    args::{Answer, Regrade},
    exit::{Exit, Failure, hinted},
    logging,
    report::{
        Form,
        text::{ODD, count, paint},
    },
    signals,
};

pub(crate) use configuration::recorded;

/// Grades the trials of a job again, and reports what changed.
pub(crate) async fn run(args: Regrade) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let form = run::form(args.output.into());
    let finished = Resumable::open(&args.job).map_err(hinted(ResumeError::hint))?;
    if finished.header().kind == JobKind::Benchmark {
        return Err(hinted(RegradeError::hint)(RegradeError::NoTasks));
    }
    let (plan, environment) = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        plan = plan(&args, &finished) => plan?,
    };
    if args.dry_run {
        return survey(plan, args.output).await;
    }
    let log = logging::start(plan.config().log_level, &plan.loaded().secrets, form != Form::Live);
    let provider = resume::recorded_provider(&environment, &finished.header().provider).await?;
    let job = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        job = Job::create(plan, provider) => job.map_err(hinted(JobError::hint))?,
    };
    grade(job, form, args.output, &log, cancel).await
}

/// Runs a job that grades again, and reports what changed.
pub(crate) async fn grade(
    mut job: Job,
    form: Form,
    output: Answer,
    log: &logging::LogFile,
    cancel: Cancel,
) -> Result<Exit, Failure> {
    run::begin(&mut job, log)?;
    let directory = job.directory().to_owned();
    let run = |events, cancel| async { job.run(events, cancel).await.map_err(hinted(JobError::hint)) };
    let result = match output {
        Answer::Human => run::watch(form, None, cancel, run).await?.0,
        // The JSON output is one object, without events before it.
        Answer::Json => {
            run(tokio::sync::mpsc::unbounded_channel().0, cancel).await.map_err(Failure::while_running)?
        }
    };
    let report = tokio::task::spawn_blocking(move || Report::read(&directory)).await?;
    let report = report.map_err(Failure::while_running)?;
    super::print(&match output {
        Answer::Human => format!("\n{}", report.render()),
        Answer::Json => serde_json::to_string(&report)?,
    })?;
    Ok(if result.cancelled { Exit::Cancelled } else { report.exit() })
}

/// Plans the job that grades again.
async fn plan(
    args: &Regrade,
    finished: &Resumable,
) -> Result<(Plan, rollout::config::EnvironmentConfig), Failure> {
    let header = finished.header();
    let loaded = configuration::of_regrade(args, finished)?;
    if loaded.config.verifier.disable {
        let failure = Failure::from("the verifier of the job is disabled");
        return Err(failure.hint(Some("`--set verifier.disable=false` runs the tests")));
    }
    let selection = Selection {
        agents: load::globs(&args.agent)?,
        datasets: load::globs(&args.dataset)?,
        tasks: load::globs(&args.task)?,
        limit: None,
    };
    let environment = loaded.config.environment.clone();
    let record = RegradeRecord {
        job: std::path::absolute(finished.directory())?,
        tests: args.tests.as_deref().map(existing).transpose()?,
        ignores_processes: args.ignore_processes,
    };
    let resolved = finished.resolved(false);
    let datasets = load::datasets(&loaded, sources(args.offline)?, &resolved, None).await?;
    let plan = Plan::new(loaded, Vec::new(), datasets, &selection, &load::variable)
        .map_err(hinted(PlanError::hint))?
        .regrading(record, header)
        .map_err(hinted(RegradeError::hint))?;
    for line in missing(header, &plan, &selection) {
        writeln!(anstream::stderr().lock(), "{} {line}", paint(ODD, "warning:"))?;
    }
    Ok((plan, environment))
}

fn existing(path: &Path) -> Result<std::path::PathBuf, Failure> {
    path.canonicalize().map_err(|error| Failure::from(format!("cannot read {}: {error}", path.display())))
}

/// Lists the selected tasks of the finished job that do not exist any more.
fn missing(header: &Header, plan: &Plan, selection: &Selection) -> Vec<String> {
    let selects = |globs: &[globset::GlobMatcher], name: &str| {
        globs.is_empty() || globs.iter().any(|glob| glob.is_match(name))
    };
    let known: std::collections::HashSet<_> =
        plan.tasks().iter().map(|task| (task.dataset().as_str(), task.name())).collect();
    let selected = header.tasks.iter().filter(|task| {
        task.example_id.is_none()
            && selects(&selection.datasets, &task.dataset)
            && selects(&selection.tasks, &task.name)
    });
    let gone = selected.filter(|task| !known.contains(&(&*task.dataset, &*task.name)));
    gone.map(|task| format!("the task {}/{} no longer exists", task.dataset, task.name)).collect()
}

/// Prints what the tests of each trial would run on.
async fn survey(plan: Plan, output: Answer) -> Result<Exit, Failure> {
    let mut counts: BTreeMap<RegradeSource, u64> = BTreeMap::new();
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (plan, found) = tokio::task::spawn_blocking(move || {
        let found: Vec<_> = plan.indexes().map(|index| (index, plan.regrade_source(index))).collect();
        (plan, found)
    })
    .await?;
    for (index, source) in found {
        let (source, reason) = source.unwrap_or_else(|| {
            (RegradeSource::Nothing, Some("its task is invalid; `rollout validate` shows why".to_owned()))
        });
        *counts.entry(source).or_default() += 1;
        if let Some(reason) = reason {
            reasons.entry(reason).or_default().push(plan.trial(index).to_string());
        }
    }
    let exit = if reasons.is_empty() { Exit::Success } else { Exit::Unmet };
    super::print(&match output {
        Answer::Json => json!({
            "trials": plan.len(),
            "on": counts,
            "not_regraded": reasons.iter().map(|(reason, trials)| json!({"reason": reason, "trials": trials})).collect::<Vec<_>>(),
        })
        .to_string(),
        Answer::Human => {
            let mut lines = vec![format!("{}: {}", count(plan.len(), "trial"), report::sources(&counts))];
            lines.extend(report::reasons(&reasons));
            lines.push("nothing was run".to_owned());
            lines.join("\n")
        }
    })?;
    Ok(exit)
}

/// Opens the finished job of a regrade, for its report.
fn finished_job(regraded: &SavedJob) -> Result<SavedJob, Failure> {
    let Some(record) = &regraded.header().regrade else {
        return Err(format!("{} is not a regrade of a job", regraded.path().display()).into());
    };
    Ok(SavedJob::open(&record.job)?)
}
