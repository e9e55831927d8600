//! `rollout run`: runs a job.

use std::{io::Write as _, path::PathBuf, sync::Arc};

use globset::{Glob, GlobMatcher};
use rollout::{
    config::{DatasetSource, EnvironmentConfig, LoadedJob},
    environment::{ConnectError, HostPaths, Provider, connect},
    job::{Job, JobError, NoProvider, Plan, PlanError, Selection, Work},
    model::{PythonWorkers, build::InteractionContext},
    preflight::{self, Preflight},
    task::{Resolved, Sources},
};

use super::{
    execute::{self, JunitFile},
    load, plan, quick,
    warnings::{TaskWarnings, findings, line},
};
use crate::{
    args::Run,
    command::sources::sources,
    engine,
    exit::{Exit, Failure, hinted},
    logging,
    packages::packages,
    report::{Form, text::count},
    signals,
    state::state_dir,
};

/// Loads, plans and runs a job.
pub(crate) async fn run(args: Run) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let form = execute::form(args.output);
    let (plan, provider) = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        plan = plan(&args) => plan?,
    };
    if args.dry_run {
        super::print(&plan::render(&plan, &*provider))?;
        return Ok(Exit::Success);
    }
    let junit = args.junit.as_deref().map(JunitFile::create).transpose()?;
    let log = logging::start(plan.config().log_level, &plan.loaded().secrets, form != Form::Live);
    let job = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        job = Job::create(plan, provider) => job.map_err(hinted(JobError::hint))?,
    };
    execute::execute(job, form, junit, &args.fail_under, &log, cancel).await
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
    planned(loaded, overrides, &selection, sources(args.offline)?, args.strict).await
}

/// Plans a part of a job, starts what it needs, and looks at everything that its trials will use. Warnings are shown;
/// with `strict`, problems of tasks are errors.
pub(crate) async fn planned(
    loaded: LoadedJob,
    overrides: Vec<String>,
    selection: &Selection,
    sources: Sources,
    strict: bool,
) -> Result<(Plan, Arc<dyn Provider>), Failure> {
    let mut warnings: Vec<String> = loaded.warnings.iter().map(|warning| warning.render(true)).collect();
    let context = interaction_context(&loaded, None).await?;
    let datasets = load::datasets(&loaded, sources, &Resolved::default(), context.as_ref()).await?;
    let of_tasks = TaskWarnings::of(&datasets);
    let models = load::models(&loaded)?;
    let plan = Plan::new(loaded, overrides, datasets, selection, &load::variable)
        .map_err(hinted(PlanError::hint))?
        .with_models(models)
        .with_packages(packages()?);
    let of_tasks = of_tasks.within(&plan);
    let provider = provider_of(&plan, context).await?;
    let (plan, found) = preflight(plan, Arc::clone(&provider)).await?;
    if found.hopeless {
        // The notes explain the choice of the provider.
        let notes = provider.notes().into_iter().map(|note| line(provider.name(), &note));
        let details: Vec<_> = notes.chain(findings(&found.findings, true)).collect();
        let failure = Failure::from("no trial can succeed, so nothing was started");
        return Err(failure.details(details.join("\n")));
    }
    if strict {
        let mut problems = of_tasks.unsupported();
        problems.extend(load::invalid(&plan));
        problems.extend(findings(&found.findings, true));
        if !problems.is_empty() {
            let number = count(problems.len() as u64, "problem");
            let failure = Failure::from(format!("rejected by --strict: the tasks have {number}"));
            return Err(failure.details(problems.join("\n\n")));
        }
    }
    warnings.extend(of_tasks.short());
    warnings.extend(findings(&found.findings, false));
    for warning in warnings {
        writeln!(anstream::stderr().lock(), "{warning}")?;
    }
    Ok((plan, provider))
}

/// Checks what the trials of a plan need: images, scripts and model servers.
pub(crate) async fn preflight(plan: Plan, provider: Arc<dyn Provider>) -> Result<(Plan, Preflight), Failure> {
    let config = Arc::clone(plan.config());
    let looked = tokio::task::spawn_blocking(move || {
        let found = preflight::check(&plan, Some(&*provider));
        (plan, found)
    });
    let (looked, unreachable) = tokio::join!(looked, preflight::unreachable_models(&config));
    let (plan, mut found) = looked?;
    found.findings.extend(unreachable);
    Ok((plan, found))
}

/// Returns what the interactions of a job run in, or None if the job has no interactions. A provider is started only if
/// none is given and an interaction has containers.
pub(crate) async fn interaction_context(
    loaded: &LoadedJob,
    known: Option<Arc<dyn Provider>>,
) -> Result<Option<InteractionContext>, Failure> {
    let config = &loaded.config;
    let interactions = config.datasets.iter().filter_map(|dataset| match &dataset.source {
        DatasetSource::Interaction(interaction) => Some(interaction),
        DatasetSource::Path(_)
        | DatasetSource::Git(_)
        | DatasetSource::Named { .. }
        | DatasetSource::Registry { .. } => None,
    });
    let containers: Vec<bool> = interactions.map(|interaction| interaction.environment.is_some()).collect();
    if containers.is_empty() {
        return Ok(None);
    }
    let provider = match known {
        Some(provider) => provider,
        None if containers.contains(&true) => provider(&config.environment).await?,
        None => Arc::new(NoProvider),
    };
    let job = config.name.as_ref().map_or("rollout", |name| name.as_str()).to_owned();
    let python = PythonWorkers::new(loaded.base_dir());
    Ok(Some(InteractionContext { provider, job, python }))
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

/// A pattern on the command line that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("invalid pattern `{pattern}`: {reason}")]
struct PatternError {
    pattern: String,
    reason: String,
}

pub(crate) fn globs(patterns: &[String]) -> Result<Vec<GlobMatcher>, Failure> {
    let compiled = patterns.iter().map(|pattern| match Glob::new(pattern) {
        Ok(glob) => Ok(glob.compile_matcher()),
        Err(error) => Err(PatternError { pattern: pattern.clone(), reason: error.kind().to_string() }),
    });
    Ok(compiled.collect::<Result<_, _>>()?)
}

/// Returns the provider that the trials of a plan need.
async fn provider_of(plan: &Plan, context: Option<InteractionContext>) -> Result<Arc<dyn Provider>, Failure> {
    let has_tasks = plan.tasks().iter().any(|task| matches!(task.work, Work::Container(_)));
    match context {
        Some(InteractionContext { provider, .. }) if !has_tasks || provider.name() != NoProvider.name() => {
            Ok(provider)
        }
        _ => provider(&plan.config().environment).await,
    }
}

/// Starts the provider of an `environment` section.
pub(crate) async fn provider(config: &EnvironmentConfig) -> Result<Arc<dyn Provider>, Failure> {
    connect(config, &place()?).await.map_err(hinted(ConnectError::hint))
}

/// Returns the paths that providers need on this machine.
pub(crate) fn place() -> Result<HostPaths, Failure> {
    // Programs that wrap this command can set another helper.
    let helper = std::env::var_os("ROLLOUT_SANDBOX_HELPER").map(PathBuf::from);
    let helper = helper.map_or_else(std::env::current_exe, Ok)?;
    Ok(HostPaths {
        state_dir: state_dir()?,
        helper,
        docker: engine::place(),
        kubernetes: engine::clusters(),
        clouds: engine::clouds(),
    })
}
