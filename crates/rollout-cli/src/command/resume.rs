//! `rollout resume`: continues an interrupted job, or adds trials to a job.

use std::{io::Write as _, path::PathBuf, sync::Arc};

use rollout::{
    config::{EnvironmentConfig, EnvironmentKind, LoadedJob, load_job_record},
    environment::{ConnectError, Provider, connect},
    event::JobKind,
    job::{
        Job, JobError, NoProvider, Plan, PlanError, RegradeError, Rerun, Resumable, ResumeError, Selection,
    },
};

use super::{eval, load, preflight, regrade, run, warnings::TaskWarnings};
use crate::{
    args::{Answer, Output, RerunWhich, Resume},
    command::sources::sources,
    exit::{Exit, Failure, hinted},
    logging,
    packages::packages,
    report::{Form, text::count},
    signals,
};

/// How the plan of the job changes.
enum Change {
    /// The plan stays the same.
    None,
    /// The number of attempts per task changes.
    Attempts(u32),
    /// The agents, datasets and tasks of this file are added.
    File(PathBuf, Option<u32>),
}

impl Change {
    fn of(args: &Resume) -> Self {
        match (&args.with, args.attempts) {
            (Some(file), attempts) => Self::File(file.clone(), attempts),
            (None, Some(attempts)) => Self::Attempts(attempts),
            (None, None) => Self::None,
        }
    }
}

/// Opens the job and runs what is missing.
pub(crate) async fn run(args: Resume) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let form = run::form(args.output);
    let resumable = Resumable::open(&args.directory).map_err(hinted(ResumeError::hint))?;
    let rerun = rerun(&args.rerun);
    let change = Change::of(&args);
    if resumable.header().kind == JobKind::Benchmark {
        if !matches!(change, Change::None) {
            let failure = Failure::from("--attempts and --with are not supported for benchmarks");
            return Err(
                failure.hint(Some("start a new benchmark with `rollout eval` and another output_dir"))
            );
        }
        return eval::resume(resumable, &rerun, form, cancel).await;
    }
    let regrade = resumable.header().regrade.clone();
    let (loaded, overrides) = match &regrade {
        None => configuration(&resumable, &change, args.budget)?,
        Some(_) if !matches!(change, Change::None) => {
            let failure = Failure::from("--attempts and --with are not supported for a regrade");
            return Err(failure.hint(Some("add to the job that it grades, then run `rollout regrade` again")));
        }
        Some(_) => (regrade::recorded(&resumable)?, Vec::new()),
    };
    let log = logging::start(loaded.config.log_level, &loaded.secrets, form != Form::Live);
    let job = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        job = open(resumable, loaded, overrides, &rerun, &change, args.offline) => job?,
    };
    if job.remaining() == 0 {
        // Only information: the exit status depends on the results alone.
        let _ = writeln!(anstream::stderr().lock(), "{}", nothing_to_do(&job));
    }
    match (regrade, args.output) {
        // With events, as for other jobs, and without the report.
        (None, _) | (Some(_), Output::Json) => run::execute(job, form, None, &[], &log, cancel).await,
        (Some(_), Output::Human) => regrade::grade(job, form, Answer::Human, &log, cancel).await,
    }
}

/// Returns a message that every trial has a result, with the `--rerun` options that would run some again.
fn nothing_to_do(job: &Job) -> String {
    let mut text = "nothing to do: every trial has a result".to_owned();
    for (rerun, word, what) in [(Rerun::Error, "error", "failed"), (Rerun::Unsolved, "unsolved", "unsolved")]
    {
        match job.would_rerun(rerun) as u64 {
            0 => {}
            trials => {
                let trials = count(trials, &format!("{what} trial"));
                text.push_str(&format!("\n`--rerun {word}` runs {trials} again"));
            }
        }
    }
    text
}

/// Loads the new configuration of the job, and its overrides.
///
/// The job file must be unchanged. If it is missing, the copy in the job's directory is used.
fn configuration(
    resumable: &Resumable,
    change: &Change,
    budget: Option<f64>,
) -> Result<(LoadedJob, Vec<String>), Failure> {
    let header = resumable.header();
    let mut overrides = header.overrides.clone();
    let mut new = Vec::new();
    if let Change::Attempts(attempts) | Change::File(_, Some(attempts)) = change {
        new.push(("n_attempts=", attempts.to_string()));
    }
    if let Some(budget) = budget {
        new.push(("budget.usd=", budget.to_string()));
    }
    overrides.retain(|set| !new.iter().any(|(key, _)| set.starts_with(key)));
    let new: Vec<String> = new.into_iter().map(|(key, value)| format!("{key}{value}")).collect();
    overrides.extend_from_slice(&new);
    let parsed = load::overrides(&overrides)?;
    let loaded = match change {
        Change::File(file, _) => load::job(file, &parsed)?,
        _ if header.job_file.is_file() => load::job(&header.job_file, &parsed)?,
        _ => {
            let record = resumable.config().map_err(hinted(JobError::hint))?;
            // The copy already contains the recorded overrides.
            load_job_record(&header.job_file, &record, &load::overrides(&new)?, &load::variable)
                .map_err(|problems| load::refused(&resumable.config_copy(), &problems))?
        }
    };
    let checked = match change {
        Change::None if header.job_file.is_file() => resumable.check_config(&loaded),
        Change::None => Ok(()),
        Change::Attempts(_) | Change::File(..) => resumable.check_growth(&loaded),
    };
    checked.map_err(hinted(ResumeError::hint))?;
    Ok((loaded, overrides))
}

async fn open(
    resumable: Resumable,
    loaded: LoadedJob,
    overrides: Vec<String>,
    rerun: &[Rerun],
    change: &Change,
    offline: bool,
) -> Result<Job, Failure> {
    let grows = matches!(change, Change::File(..));
    let recorded = resumable.header().provider.clone();
    let provider: Arc<dyn Provider> = match (recorded == NoProvider.name(), loaded.config.needs_environment())
    {
        (true, false) => Arc::new(NoProvider),
        (true, true) => load::provider(&loaded.config.environment).await?,
        (false, _) => recorded_provider(&loaded.config.environment, &recorded).await?,
    };
    let context = load::interaction_context(&loaded, Some(Arc::clone(&provider))).await?;
    let resolved = resumable.resolved(grows);
    let datasets = load::datasets(&loaded, sources(offline)?, &resolved, context.as_ref()).await?;
    let of_tasks = TaskWarnings::of(&datasets);
    let models = load::models(&loaded)?;
    let plan = Plan::new(loaded, overrides, datasets, &Selection::default(), &load::variable)
        .map_err(hinted(PlanError::hint))?
        .with_models(models)
        .with_packages(packages()?);
    let plan = match resumable.header().regrade.clone() {
        None => plan,
        Some(record) => plan.regrading(record, resumable.header()).map_err(hinted(RegradeError::hint))?,
    };
    let plan = match grows {
        true => checked(&resumable, plan, of_tasks, &provider).await?,
        false => plan,
    };
    let opened = match grows {
        true => resumable.grow(plan, provider, rerun).await,
        false => resumable.resume(plan, provider, rerun).await,
    };
    opened.map_err(hinted(ResumeError::hint))
}

/// Checks what a larger job adds, as a run checks all of it. The rest was checked when the job was started.
async fn checked(
    resumable: &Resumable,
    plan: Plan,
    of_tasks: TaskWarnings,
    provider: &Arc<dyn Provider>,
) -> Result<Plan, Failure> {
    let added = tokio::task::block_in_place(|| resumable.added(&plan)).map_err(hinted(ResumeError::hint))?;
    if added.is_empty() {
        return Ok(plan);
    }
    let of_tasks = of_tasks.added(&plan, &added);
    let (plan, checked) = preflight::check(plan, Some(added), Some(Arc::clone(provider))).await?;
    checked.refuse_if_hopeless("added trial", &**provider)?;
    let mut warnings = of_tasks.short();
    warnings.extend(checked.render(false));
    preflight::print_warnings(&warnings)?;
    Ok(plan)
}

/// Connects to the provider that the job ran on, even if another one would be chosen now.
pub(crate) async fn recorded_provider(
    config: &EnvironmentConfig,
    recorded: &str,
) -> Result<Arc<dyn Provider>, Failure> {
    let kind = EnvironmentKind::from_name(recorded);
    let config = EnvironmentConfig { kind: kind.or(config.kind), ..config.clone() };
    connect(&config, &load::place()?).await.map_err(|source| {
        let hint = source.hint().map(str::to_owned);
        Failure::from(Unanswered { recorded: recorded.to_owned(), source }).hint(hint)
    })
}

/// The provider of a job is not available.
#[derive(Debug, thiserror::Error)]
#[error("the job ran on {recorded}, which is not available now")]
struct Unanswered {
    recorded: String,
    source: ConnectError,
}

fn rerun(which: &[RerunWhich]) -> Vec<Rerun> {
    let rerun = which.iter().map(|which| match which {
        RerunWhich::Missing => Rerun::Missing,
        RerunWhich::Error => Rerun::Error,
        RerunWhich::Unsolved => Rerun::Unsolved,
    });
    rerun.collect()
}
