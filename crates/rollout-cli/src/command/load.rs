//! Loads and plans jobs: their files, datasets, models and providers, with all problems rendered.

use std::{
    collections::HashMap,
    error::Error,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use globset::{Glob, GlobMatcher};
use rollout::{
    config::{
        AgentKind, DatasetSource, EnvValue, EnvironmentConfig, InteractionConfig, LoadedJob, Override,
        Problems, Severity, env_lines, load_job, load_job_text,
    },
    environment::{ConnectError, HostPaths, Provider, connect},
    job::{ExampleSet, NoProvider, Plan, PlanDataset, PlanError, Selection, Work},
    model::{
        Model, PythonWorkers,
        build::{self, InteractionContext},
    },
    name::{AgentName, DatasetName},
    record::redact::Redactor,
    task::{Dataset, DatasetError, Resolved, Sources, TaskProblem},
    text::chain,
};

use super::{preflight, warnings::TaskWarnings};
use crate::{
    engine,
    exit::{Failure, hinted},
    packages::packages,
    report::text::{BOLD, DIM, count, first_line, paint},
    state::state_dir,
};

/// The names of a job file in a directory.
const JOB_FILES: [&str; 3] = ["job.yaml", "job.yml", "job.json"];

/// The variables of `--env-file`.
static ENV_FILE: OnceLock<HashMap<String, String>> = OnceLock::new();

/// Returns an environment variable, for `${VAR}` in files.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().or_else(|| ENV_FILE.get()?.get(name).cloned())
}

/// Adds the variables of a file to those of the environment.
pub(crate) fn use_env_file(path: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::from(format!("cannot read {}: {error}", path.display())))?;
    let mut variables = HashMap::new();
    for (number, name, value) in env_lines(&text) {
        let Some(value) = value else {
            // The line may be a secret.
            let place = format!("line {number} of {}", path.display());
            return Err(Failure::from(format!("{place} is not of the form NAME=value")));
        };
        variables.insert(name.to_owned(), value.to_owned());
    }
    // One command reads one file.
    let _ = ENV_FILE.set(variables);
    Ok(())
}

/// Parses overrides of the form `key=value`.
pub(crate) fn overrides(texts: &[String]) -> Result<Vec<Override>, Failure> {
    Ok(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
}

/// Returns the base URL and the API key of a model from the options of a command.
pub(crate) fn endpoint(
    base_url: Option<&String>,
    key_var: Option<&String>,
    model: &str,
    hint: &str,
) -> Result<(String, Option<EnvValue>), Failure> {
    let base_url = base_url
        .cloned()
        .or_else(|| variable("OPENAI_BASE_URL"))
        .ok_or_else(|| Failure::from(format!("no base URL for {model}")).hint(Some(hint)))?;
    let key = |name: &String| match variable(name) {
        Some(value) => Ok(EnvValue { value, secret: true }),
        None => Err(format!("no API key for {model}: the environment variable {name} is not set")),
    };
    Ok((base_url, key_var.map(key).transpose()?))
}

/// Loads a job file, the job.yaml of a directory, or stdin. Problems are reported with their source lines.
pub(crate) fn job(path: &Path, overrides: &[Override]) -> Result<LoadedJob, Failure> {
    if is_stdin(path) {
        // Relative paths start at the working directory.
        let name = Path::new("<stdin>");
        let text = io::read_to_string(io::stdin().lock())?;
        let loaded = load_job_text(name, &text, overrides, &variable);
        return loaded.map_err(|problems| refused(name, &problems));
    }
    let path = &in_directory(path)?;
    load_job(path, overrides, &variable).map_err(|problems| refused(path, &problems))
}

/// Whether a path means stdin.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == "-" || path == "/dev/stdin"
}

/// Whether a directory has a job file.
pub(crate) fn has_job(path: &Path) -> bool {
    JOB_FILES.iter().any(|name| path.join(name).is_file())
}

/// Returns the job file of a directory, or the path itself.
fn in_directory(path: &Path) -> Result<PathBuf, Failure> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let files = JOB_FILES.map(|name| path.join(name));
    files.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        Failure::from(format!("{} has no job.yaml", path.display()))
            .hint(Some("pass a job file, or create one with `rollout init job NAME`"))
    })
}

/// Converts the problems of a file to a failure.
pub(crate) fn refused(path: &Path, problems: &Problems) -> Failure {
    let errors = problems.diagnostics().iter().filter(|found| found.severity == Severity::Error).count();
    let failure = Failure::from(format!("{} has {}", path.display(), count(errors as u64, "problem")));
    failure.details(problems.render(true))
}

/// Loads the datasets of a job, and prints progress messages. Interactions run only if `context` is given.
pub(crate) async fn datasets(
    job: &LoadedJob,
    sources: Sources,
    resolved: &Resolved,
    context: Option<&InteractionContext>,
) -> Result<Vec<PlanDataset>, Failure> {
    let sources = Sources { retry: job.config.retry.clone(), ..sources };
    let fetched = sources.load(&job.config.datasets, resolved, &progress);
    let fetched = fetched.await.map_err(hinted(DatasetError::hint))?;
    let mut datasets = Vec::with_capacity(fetched.len());
    for (config, fetched) in job.config.datasets.iter().zip(fetched) {
        datasets.push(match &config.source {
            DatasetSource::Interaction(interaction) => {
                examples(job, &config.name, interaction, fetched, context).await?.into()
            }
            DatasetSource::Path(_)
            | DatasetSource::Git(_)
            | DatasetSource::Named { .. }
            | DatasetSource::Registry { .. } => fetched.into(),
        });
    }
    Ok(datasets)
}

/// Builds an interaction with its fetched examples.
pub(crate) async fn examples(
    job: &LoadedJob,
    name: &DatasetName,
    interaction: &InteractionConfig,
    fetched: Dataset,
    context: Option<&InteractionContext>,
) -> Result<ExampleSet, Failure> {
    let interaction = interaction.clone();
    let interaction = match fetched.rows {
        Some(rows) => interaction.with_rows(rows),
        None => interaction,
    };
    let failed = |error| {
        let source: Box<dyn Error + Send + Sync> = match masked(&error, &job.secrets) {
            Some(masked) => masked.into(),
            None => Box::new(error),
        };
        Failure::from(DatasetFailure { dataset: name.clone(), source })
    };
    let examples = build::examples(name, &interaction, context).await.map_err(failed)?;
    Ok(ExampleSet { resolved: fetched.resolved, ..examples })
}

/// Prints a message about work that takes longer than a moment.
pub(crate) fn progress(message: String) {
    // Loading works without progress messages, so write errors are ignored.
    let _ = writeln!(anstream::stderr().lock(), "{}", paint(DIM, &first_line(&message)));
}

/// An interaction that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("cannot load dataset `{dataset}`")]
struct DatasetFailure {
    dataset: DatasetName,
    source: Box<dyn Error + Send + Sync>,
}

/// Returns an error and its causes as redacted text if they contain a secret, such as a key in the URL of a server.
fn masked(error: &build::BuildError, secrets: &[String]) -> Option<String> {
    let text = chain(error);
    let redactor = Redactor::new(secrets.iter().map(String::as_str));
    redactor.finds(text.as_bytes()).then(|| redactor.text(&text).into_owned())
}

/// Builds the models among the agents of a job.
pub(crate) fn models(job: &LoadedJob) -> Result<HashMap<AgentName, Arc<Model>>, Failure> {
    let agents = job.config.agents.iter();
    let models = agents.filter_map(|agent| match &agent.kind {
        AgentKind::Model(model) => {
            Some(build::model(&model.model).map(|model| (agent.name.clone(), Arc::new(model))))
        }
        AgentKind::Oracle | AgentKind::Nop | AgentKind::Script { .. } | AgentKind::Preset(_) => None,
    });
    Ok(models.collect::<Result<_, _>>()?)
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
    let datasets = datasets(&loaded, sources, &Resolved::default(), context.as_ref()).await?;
    let of_tasks = TaskWarnings::of(&datasets);
    let models = models(&loaded)?;
    let plan = Plan::new(loaded, overrides, datasets, selection, &variable)
        .map_err(hinted(PlanError::hint))?
        .with_models(models)
        .with_packages(packages()?);
    let of_tasks = of_tasks.within(&plan);
    let provider = provider_of(&plan, context).await?;
    let (plan, checked) = preflight::check(plan, None, Some(Arc::clone(&provider))).await?;
    checked.refuse_if_hopeless("trial", &*provider)?;
    if strict {
        let mut problems = of_tasks.unsupported();
        problems.extend(invalid(&plan));
        problems.extend(checked.render(true));
        if !problems.is_empty() {
            let number = count(problems.len() as u64, "problem");
            let failure = Failure::from(format!("rejected by --strict: the tasks have {number}"));
            return Err(failure.details(problems.join("\n\n")));
        }
    }
    warnings.extend(of_tasks.short());
    warnings.extend(checked.render(false));
    preflight::print_warnings(&warnings)?;
    Ok((plan, provider))
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

/// Renders the invalid tasks of a plan with their problems.
pub(crate) fn invalid(plan: &Plan) -> Vec<String> {
    let tasks = plan.tasks().iter();
    tasks
        .filter_map(|task| Some(broken(&format!("{}/{}", task.dataset(), task.name()), task.problem()?)))
        .collect()
}

/// Renders an invalid task.
pub(crate) fn broken(name: &str, problem: &TaskProblem) -> String {
    format!("{}\n{problem}", paint(BOLD, &format!("task {name}")))
}
