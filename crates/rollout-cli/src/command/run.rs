//! `rollout run`: runs a job, and shows its progress and results.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rollout::{
    environment::Provider,
    event::Event,
    job::{Cancel, Job, JobError, Plan, Selection},
    result::JobResult,
};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    load::{self, globs},
    open_files, plan, preflight, quick,
    sources::sources,
};
use crate::{
    args::{FailUnder, Output, Rate, Run},
    exit::{Exit, Failure, hinted},
    logging::{self, LogFile},
    report::{
        Form, Junit, Reporter,
        text::{BAD, number, paint},
    },
    signals,
};

/// Why a started job could not be completed.
#[derive(Debug, thiserror::Error)]
enum ExecuteError {
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot print the job's progress, so the job was stopped; `rollout resume` continues it")]
    Show(#[source] io::Error),
}

/// Loads, plans and runs a job.
pub(crate) async fn run(args: Run) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let form = form(args.output);
    let (plan, provider) = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        plan = plan(&args) => plan?,
    };
    if args.dry_run {
        // A run reports these itself, with its events.
        preflight::print_warnings(&preflight::low_disk_space_of(plan.config()))?;
        super::print(&plan::render(&plan, &*provider))?;
        return Ok(Exit::Success);
    }
    plan::print_cost(&plan, &*provider)?;
    let junit = args.junit.as_deref().map(JunitFile::create).transpose()?;
    let log = logging::start(plan.config().log_level, &plan.loaded().secrets, form != Form::Live);
    let job = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        job = Job::create(plan, provider) => job.map_err(hinted(JobError::hint))?,
    };
    execute(job, form, junit, &args.fail_under, &log, cancel).await
}

/// Loads and checks the job before its directory is created, so that an invalid job leaves nothing behind.
async fn plan(args: &Run) -> Result<(Plan, Arc<dyn Provider>), Failure> {
    if let Some(file) = &args.env_file {
        load::use_env_file(file)?;
    }
    let mut selection = Selection { tasks: globs(&args.task)?, limit: args.limit, ..Selection::default() };
    let (loaded, overrides) = match &args.job {
        Some(job) => {
            selection.agents = globs(&args.agent)?;
            selection.datasets = globs(&args.dataset)?;
            let overrides = overrides(args);
            (load::job(job, &load::overrides(&overrides)?)?, overrides)
        }
        None => {
            let mut overrides = args.set.clone();
            overrides.extend(args.allow_unsupported.then(|| "allow_unsupported=true".to_owned()));
            (quick::job(args, &load::overrides(&overrides)?)?, overrides)
        }
    };
    load::planned(loaded, overrides, &selection, sources(args.offline)?, args.strict).await
}

/// Returns all overrides of the job file, in the form of `--set`.
fn overrides(args: &Run) -> Vec<String> {
    let mut overrides = args.set.clone();
    overrides.extend(args.attempts.map(|attempts| format!("n_attempts={attempts}")));
    overrides.extend(args.concurrency.map(|trials| format!("n_concurrent_trials={trials}")));
    overrides.extend(args.allow_unsupported.then(|| "allow_unsupported=true".to_owned()));
    overrides.extend(args.environment.as_ref().map(|kind| format!("environment.type={kind}")));
    overrides
}

/// The file of a JUnit report. It is opened before anything runs, so that an invalid path is found early.
#[derive(Debug)]
pub(crate) struct JunitFile {
    path: PathBuf,
    file: File,
}

impl JunitFile {
    /// Opens the file.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        match File::create(path) {
            Ok(file) => Ok(Self { path: path.to_owned(), file }),
            Err(source) => Err(ExecuteError::Write { path: path.to_owned(), source }.into()),
        }
    }

    fn write(self, junit: &Junit) -> Result<(), Failure> {
        let Self { path, file } = self;
        junit.write(BufWriter::new(file)).map_err(|source| ExecuteError::Write { path, source }.into())
    }
}

/// Returns the output form of a job.
pub(crate) fn form(output: Output) -> Form {
    match output {
        Output::Human => Form::for_people(),
        Output::Json => Form::Json,
    }
}

/// Runs a job, shows its progress, writes the JUnit report, and returns the exit status.
pub(crate) async fn execute(
    mut job: Job,
    form: Form,
    junit: Option<JunitFile>,
    gates: &[FailUnder],
    log: &LogFile,
    cancel: Cancel,
) -> Result<Exit, Failure> {
    begin(&mut job, log)?;
    let report = junit.is_some().then(Junit::default);
    let run = |events, cancel| async { job.run(events, cancel).await.map_err(hinted(JobError::hint)) };
    let (result, report) = watch(form, report, cancel, run).await?;
    if let (Some(file), Some(report)) = (junit, &report) {
        file.write(report).map_err(Failure::while_running)?;
    }
    Ok(judge(&result, gates))
}

/// Opens the log of a job, and warns about low disk space. A job that saves nothing has no directory.
pub(crate) fn begin(job: &mut Job, log: &LogFile) -> Result<(), Failure> {
    open_files::allow_connections();
    job.started_by(std::env::args_os().map(|word| word.to_string_lossy().into_owned()));
    let directory = job.directory().to_owned();
    if !directory.as_os_str().is_empty() {
        let path = directory.join("rollout.log");
        log.open(&path).map_err(|source| ExecuteError::Write { path, source })?;
        for shortage in preflight::low_disk_space(&directory) {
            job.warn(shortage);
        }
    }
    Ok(())
}

/// Runs a job, and shows its events until it ends.
pub(crate) async fn watch<T, F: Future<Output = Result<T, Failure>>>(
    form: Form,
    junit: Option<Junit>,
    cancel: Cancel,
    run: impl FnOnce(UnboundedSender<Event>, Cancel) -> F,
) -> Result<(T, Option<Junit>), Failure> {
    let reporter = Reporter::new(form, junit);
    let (events, shown) = tokio::sync::mpsc::unbounded_channel();
    let runtime = tokio::runtime::Handle::current();
    let stop = cancel.graceful.clone();
    let reporter = tokio::task::spawn_blocking(move || {
        let report = reporter.run(shown, &runtime);
        if report.is_err() {
            // The output is closed, so the job stops as after Ctrl-C.
            stop.cancel();
        }
        report
    });
    let result = run(events, cancel).await;
    let report = reporter.await.map_err(Failure::from)?;
    let result = result.map_err(Failure::while_running)?;
    let report = match report {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
        report => report.map_err(|error| Failure::from(ExecuteError::Show(error)).while_running())?,
    };
    Ok((result, report))
}

/// Prints the bounds that were not met, and returns the exit status.
pub(crate) fn judge(result: &JobResult, gates: &[FailUnder]) -> Exit {
    let missed: Vec<String> = gates.iter().filter_map(|gate| missed(result, gate)).collect();
    for line in &missed {
        // The exit status reports it as well.
        let _ = writeln!(anstream::stderr().lock(), "{} {line}", paint(BAD, "fail-under:"));
    }
    if result.cancelled {
        Exit::Cancelled
    } else if result.totals.failed_trials > 0 || result.stopped.is_some() || !missed.is_empty() {
        Exit::Unmet
    } else {
        Exit::Success
    }
}

fn missed(result: &JobResult, gate: &FailUnder) -> Option<String> {
    let headline = result.totals.headline();
    let value = match gate.rate {
        Rate::PassRate => headline.pass_rate,
        Rate::MeanReward => headline.mean_reward,
    };
    let (rate, bound) = (gate.rate.as_str(), number(gate.bound));
    match value {
        Some(value) if value >= gate.bound => None,
        Some(value) => Some(format!("{rate} is {}, below {bound}", number(value))),
        None => Some(format!("{rate} has no value because no trial counts; it must be at least {bound}")),
    }
}

#[cfg(test)]
mod tests {
    use rollout::result::{ErrorType, Totals};

    use super::*;

    fn result(completed: u64, passed: u64, failed: u64, cancelled: bool) -> JobResult {
        let totals = Totals {
            total_trials: completed + failed,
            completed_trials: completed,
            failed_trials: failed,
            rewarded_trials: completed,
            passed_trials: passed,
            solved_trials: passed,
            errors: (failed > 0).then_some((ErrorType::AgentExecutionFailed, failed)).into_iter().collect(),
            reward_sum: passed as f64,
            ..Totals::default()
        };
        JobResult {
            job_name: "job".into(),
            cancelled,
            stopped: None,
            totals,
            total_duration_sec: 1.0,
            started_at: "2026-01-15T10:30:00Z".parse().unwrap(),
            ended_at: "2026-01-15T10:30:01Z".parse().unwrap(),
            agents: Default::default(),
            groups: Vec::new(),
            statistics: Default::default(),
        }
    }

    #[test]
    fn the_exit_status_distinguishes_completed_failed_and_cancelled() {
        let at_least = |rate, bound| vec![FailUnder { rate, bound }];
        let cases = [
            (result(2, 0, 0, false), vec![], Exit::Success),
            (result(2, 2, 1, false), vec![], Exit::Unmet),
            (result(2, 2, 1, true), vec![], Exit::Cancelled),
            (result(10, 9, 0, false), at_least(Rate::PassRate, 0.9), Exit::Success),
            (result(10, 8, 0, false), at_least(Rate::PassRate, 0.9), Exit::Unmet),
            (result(10, 8, 0, false), at_least(Rate::MeanReward, 0.8), Exit::Success),
            (result(1, 1, 9, true), at_least(Rate::PassRate, 0.1), Exit::Cancelled),
            (result(0, 0, 0, false), at_least(Rate::PassRate, 0.0), Exit::Unmet),
        ];
        for (result, gates, expected) in cases {
            assert_eq!(judge(&result, &gates), expected, "{:?} {gates:?}", result.totals);
        }
    }

    #[test]
    fn a_missed_bound_is_reported_with_both_numbers() {
        let gate = FailUnder { rate: Rate::PassRate, bound: 0.9 };
        assert_eq!(missed(&result(3, 2, 0, false), &gate).as_deref(), Some("pass_rate is 0.667, below 0.9"));
        // Failed trials count: an agent that crashes in nine of ten trials has a pass rate of 0.1.
        assert_eq!(missed(&result(1, 1, 9, false), &gate).as_deref(), Some("pass_rate is 0.1, below 0.9"));
        let nothing = missed(&result(0, 0, 0, false), &gate);
        assert_eq!(
            nothing.as_deref(),
            Some("pass_rate has no value because no trial counts; it must be at least 0.9")
        );
    }
}
