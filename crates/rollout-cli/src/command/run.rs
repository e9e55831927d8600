//! `rollout run`: a job from its file to its end.

use std::{io::Write as _, path::PathBuf, sync::Arc};

use globset::{Glob, GlobMatcher};
use rollout::{
    config::{DatasetSource, EnvironmentConfig, JobConfig},
    environment::{ConnectError, HostPaths, Provider, connect},
    job::{Job, JobError, NoProvider, Plan, Selection, Work},
    model::build::Surroundings,
    task::Pins,
};

use super::{
    execute::{self, JunitFile},
    load::{self, Oddities},
    plan,
};
use crate::{
    args::Run,
    engine,
    exit::{Exit, Failure, hinted},
    logging,
    report::{Form, text::count},
    signals,
    state::state_dir,
};

/// Loads, plans and runs a job.
pub(crate) async fn run(args: Run) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let form = execute::form(args.output);
    let (plan, surroundings) = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        plan = plan(&args) => plan?,
    };
    if args.dry_run {
        super::print(&plan::render(&plan))?;
        return Ok(Exit::Success);
    }
    let junit = args.junit.as_deref().map(JunitFile::create).transpose()?;
    let log = logging::start(plan.config().log_level, &plan.loaded().secrets, form != Form::Live);
    let job = tokio::select! {
        biased;
        () = cancel.graceful.cancelled() => return Ok(Exit::Cancelled),
        job = create(plan, surroundings) => job?,
    };
    execute::execute(job, form, junit, &args.fail_under, &log, cancel).await
}

async fn plan(args: &Run) -> Result<(Plan, Option<Surroundings>), Failure> {
    let overrides = overrides(args);
    let parsed = load::overrides(&overrides)?;
    let selection = Selection {
        agents: globs(&args.agent)?,
        datasets: globs(&args.dataset)?,
        tasks: globs(&args.task)?,
        limit: args.limit,
    };
    let loaded = load::job(&args.job, &parsed)?;
    let mut warnings: Vec<String> = loaded.warnings.iter().map(|warning| warning.render(true)).collect();
    let surroundings = if args.dry_run { None } else { surroundings(&loaded.config, None).await? };
    let datasets = load::datasets(&loaded, &Pins::new(), surroundings.as_ref()).await?;
    let oddities = Oddities::of(&datasets);
    let models = load::models(&loaded)?;
    let plan = Plan::new(loaded, overrides, datasets, &selection, &load::variable)?.with_models(models);
    let oddities = oddities.within(&plan);
    if args.strict {
        let mut problems = oddities.unsupported();
        problems.extend(load::invalid(&plan));
        if !problems.is_empty() {
            let number = count(problems.len() as u64, "problem");
            let failure =
                Failure::from(format!("the job was refused: --strict, and its tasks have {number}"));
            return Err(failure.details(problems.join("\n\n")));
        }
    }
    warnings.extend(oddities.short());
    for warning in warnings {
        writeln!(anstream::stderr().lock(), "{warning}")?;
    }
    Ok((plan, surroundings))
}

/// What the interactions of a job run in, if it has any. The provider is started only where one of them has containers,
/// or where it is known already.
pub(crate) async fn surroundings(
    config: &JobConfig,
    known: Option<Arc<dyn Provider>>,
) -> Result<Option<Surroundings>, Failure> {
    let interactions = config.datasets.iter().filter_map(|dataset| match &dataset.source {
        DatasetSource::Interaction(interaction) => Some(interaction),
        DatasetSource::Path(_) | DatasetSource::Registry { .. } => None,
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
    Ok(Some(Surroundings { provider, job }))
}

/// Everything that replaces a value of the job file, in the form of `--set`.
fn overrides(args: &Run) -> Vec<String> {
    let mut overrides = args.set.clone();
    overrides.extend(args.attempts.map(|attempts| format!("n_attempts={attempts}")));
    overrides.extend(args.concurrency.map(|trials| format!("n_concurrent_trials={trials}")));
    overrides
}

fn globs(patterns: &[String]) -> Result<Vec<GlobMatcher>, Failure> {
    Ok(patterns
        .iter()
        .map(|pattern| Ok(Glob::new(pattern)?.compile_matcher()))
        .collect::<Result<_, globset::Error>>()?)
}

async fn create(plan: Plan, surroundings: Option<Surroundings>) -> Result<Job, Failure> {
    let has_tasks = plan.tasks().iter().any(|task| matches!(task.work, Work::Container { .. }));
    let provider: Arc<dyn Provider> = match surroundings {
        Some(Surroundings { provider, .. }) if !has_tasks || provider.name() != NoProvider.name() => provider,
        _ => provider(&plan.config().environment).await?,
    };
    Job::create(plan, provider).await.map_err(hinted(JobError::hint))
}

/// Starts the provider that an `environment` section asks for.
pub(crate) async fn provider(config: &EnvironmentConfig) -> Result<Arc<dyn Provider>, Failure> {
    connect(config, &place()?).await.map_err(hinted(ConnectError::hint))
}

/// What providers need of this machine.
pub(crate) fn place() -> Result<HostPaths, Failure> {
    // For those who wrap the command in another program.
    let helper = std::env::var_os("ROLLOUT_SANDBOX_HELPER").map(PathBuf::from);
    let helper = helper.map_or_else(std::env::current_exe, Ok)?;
    Ok(HostPaths { state_dir: state_dir()?, helper, docker: engine::place() })
}
