//! From a job file to its tasks, with everything that is odd about them.

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    io::Write as _,
    path::Path,
    sync::Arc,
};

use rollout::{
    config::{
        AgentKind, Code, DatasetSource, Diagnostic, EnvValue, LoadedJob, Override, Problems, Severity,
        load_job,
    },
    job::{Plan, PlanDataset},
    model::{
        Model,
        build::{self, Surroundings},
    },
    name::{AgentName, DatasetName, TaskName},
    record::redact::Redactor,
    task::{Pins, Sources, TaskProblem},
};

use crate::{
    exit::{Failure, chain},
    report::text::{BOLD, DIM, ODD, count, first_line, paint},
    state::state_dir,
};

/// A variable of this process, for `${VAR}` in files.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What replaces values of a configuration: `key=value`.
pub(crate) fn overrides(texts: &[String]) -> Result<Vec<Override>, Failure> {
    Ok(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
}

/// The server of a model and its key, as the options of a command give them.
pub(crate) fn endpoint(
    base_url: Option<&String>,
    key_var: Option<&String>,
    model: &str,
    hint: &str,
) -> Result<(String, Option<EnvValue>), Failure> {
    let base_url = base_url.cloned().or_else(|| variable("OPENAI_BASE_URL")).ok_or_else(|| {
        Failure::from(format!("it is not said where the server of {model} answers")).hint(Some(hint))
    })?;
    let key = |name: &String| match variable(name) {
        Some(value) => Ok(EnvValue { value, secret: true }),
        None => Err(format!("the variable {name} is not set, and it is to hold the key of {model}")),
    };
    Ok((base_url, key_var.map(key).transpose()?))
}

/// Reads a job file; its problems are shown with their source lines.
pub(crate) fn job(path: &Path, overrides: &[Override]) -> Result<LoadedJob, Failure> {
    load_job(path, overrides, &variable).map_err(|problems| refused(path, &problems))
}

/// The problems of a file as a failure.
pub(crate) fn refused(path: &Path, problems: &Problems) -> Failure {
    let errors = problems.diagnostics().iter().filter(|found| found.severity == Severity::Error).count();
    let failure = Failure::from(format!("{} has {}", path.display(), count(errors as u64, "problem")));
    failure.details(problems.render(true))
}

/// Loads the datasets of a job, saying what takes long. Interactions can be run only with surroundings.
pub(crate) async fn datasets(
    job: &LoadedJob,
    pins: &Pins,
    surroundings: Option<&Surroundings>,
) -> Result<Vec<PlanDataset>, Failure> {
    let sources = Sources::new(state_dir()?);
    let progress = |message: String| {
        // Only for whoever waits.
        let _ = writeln!(anstream::stderr().lock(), "{}", paint(DIM, &first_line(&message)));
    };
    let tasks = sources.load(&job.config.datasets, pins, &progress).await?;
    let mut datasets = Vec::with_capacity(tasks.len());
    for (config, tasks) in job.config.datasets.iter().zip(tasks) {
        datasets.push(match &config.source {
            DatasetSource::Interaction(interaction) => {
                let examples = build::examples(&config.name, interaction, surroundings).await;
                let failed = |error| {
                    let dataset = config.name.clone();
                    let source: Box<dyn Error + Send + Sync> = match masked(&error, &job.secrets) {
                        Some(masked) => masked.into(),
                        None => Box::new(error),
                    };
                    Failure::from(DatasetFailure { dataset, source })
                };
                examples.map_err(failed)?.into()
            }
            DatasetSource::Path(_) | DatasetSource::Registry { .. } => tasks.into(),
        });
    }
    Ok(datasets)
}

/// An interaction that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("dataset `{dataset}` cannot be loaded")]
struct DatasetFailure {
    dataset: DatasetName,
    source: Box<dyn Error + Send + Sync>,
}

/// An error with its causes in one text without secrets, if it holds any: a server may be named with its key.
fn masked(error: &build::BuildError, secrets: &[String]) -> Option<String> {
    let text = chain(error);
    let redactor = Redactor::new(secrets.iter().map(String::as_str));
    redactor.finds(text.as_bytes()).then(|| redactor.text(&text).into_owned())
}

/// The models among the agents of a job.
pub(crate) fn models(job: &LoadedJob) -> Result<HashMap<AgentName, Arc<Model>>, Failure> {
    let agents = job.config.agents.iter();
    let models = agents.filter_map(|agent| match &agent.kind {
        AgentKind::Model(model) => {
            Some(build::model(&model.model).map(|model| (agent.name.clone(), Arc::new(model))))
        }
        AgentKind::Oracle | AgentKind::Nop | AgentKind::Script { .. } => None,
    });
    Ok(models.collect::<Result<_, _>>()?)
}

/// What tasks say that Rollout does not do, or reads differently, by task.
#[derive(Debug, Default)]
pub(crate) struct Oddities {
    datasets: Vec<String>,
    tasks: Vec<(DatasetName, TaskName, Vec<Diagnostic>)>,
}

impl Oddities {
    /// Takes them from the datasets.
    pub(crate) fn of(datasets: &[PlanDataset]) -> Self {
        let mut oddities = Self::default();
        let tasks = datasets.iter().filter_map(|dataset| match dataset {
            PlanDataset::Tasks(dataset) => Some(dataset),
            PlanDataset::Examples(_) => None,
        });
        for dataset in tasks {
            oddities
                .datasets
                .extend(dataset.warnings.iter().map(|warning| line(dataset.name.as_str(), warning)));
            let odd = dataset.tasks.iter().filter(|entry| !entry.warnings.is_empty());
            oddities
                .tasks
                .extend(odd.map(|entry| (dataset.name.clone(), entry.name.clone(), entry.warnings.clone())));
        }
        oddities
    }

    /// Leaves those of tasks that are not in a plan out.
    pub(crate) fn within(mut self, plan: &Plan) -> Self {
        let planned: HashSet<_> = plan.tasks().iter().map(|task| (&task.dataset, &task.name)).collect();
        self.tasks.retain(|(dataset, task, _)| planned.contains(&(dataset, task)));
        self
    }

    /// All of them with their source lines.
    pub(crate) fn render(&self) -> Vec<String> {
        let tasks = self.tasks.iter().flat_map(|(_, _, warnings)| warnings);
        self.datasets.iter().cloned().chain(tasks.map(|warning| warning.render(true))).collect()
    }

    /// Those that change what a task means.
    pub(crate) fn unsupported(&self) -> Vec<String> {
        let tasks = self.tasks.iter().flat_map(|(_, _, warnings)| warnings);
        tasks
            .filter(|warning| warning.code == Code::Unsupported)
            .map(|warning| warning.render(true))
            .collect()
    }

    /// A line for each dataset, and one for all tasks: thousands of them may be odd in the same way.
    pub(crate) fn short(&self) -> Vec<String> {
        let mut lines = self.datasets.clone();
        if let [(_, task, _), rest @ ..] = &self.tasks[..] {
            let tasks = match rest.len() as u64 {
                0 => format!("task {task}"),
                others => format!("task {task} and {}", count(others, "other")),
            };
            lines.push(line(
                &tasks,
                "not all of task.toml means here what it says; `rollout validate` shows what",
            ));
        }
        lines
    }
}

/// A warning about something that has no source line.
pub(crate) fn line(about: &str, message: &str) -> String {
    format!("{} {about}: {message}", paint(ODD, "warning:"))
}

/// The tasks of a plan that cannot be run, each with its problems.
pub(crate) fn invalid(plan: &Plan) -> Vec<String> {
    let tasks = plan.tasks().iter();
    tasks
        .filter_map(|task| Some(broken(&format!("{}/{}", task.dataset, task.name), task.problem()?)))
        .collect()
}

/// A task that cannot be run.
pub(crate) fn broken(name: &str, problem: &TaskProblem) -> String {
    format!("{}\n{problem}", paint(BOLD, &format!("task {name}")))
}
