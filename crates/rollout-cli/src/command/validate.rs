//! `rollout validate`: checks a job, a benchmark, a task or a dataset without running anything.

use std::{error::Error, path::Path, sync::Arc};

use rollout::{
    benchmark,
    config::{AgentKind, Compat, DatasetSource, LoadedJob, is_benchmark, load_benchmark},
    environment::{ConnectError, Provider, connect},
    job::{Plan, PlanDataset, PlanError, Selection},
    preflight as checks,
    task::{GitCommits, Resolved, TaskEntry, load_dataset_dir},
    text::chain,
};

use super::{
    dataset_argument, datasets, hub_questions, load, preflight,
    warnings::{TaskWarnings, findings, grouped, line, who},
};
use crate::{
    args::Validate,
    command::sources::sources,
    exit::{Exit, Failure, hinted},
    report::text::{BAD, GOOD, ODD, count, paint},
};

/// The problems and warnings of what was checked.
#[derive(Debug, Default)]
struct Findings {
    /// The name of what was checked.
    subject: String,
    problems: Vec<String>,
    warnings: Vec<String>,
    /// Warnings about this machine. The files may be valid anyway, so these are not counted.
    machine: Vec<String>,
}

/// Checks the path, and prints all problems and warnings.
pub(crate) async fn run(args: &Validate) -> Result<Exit, Failure> {
    let path = args.path.as_path();
    let found = match path {
        path if path.is_dir() && !load::has_job(path) => directory(path)?,
        path if dataset_argument::is_dataset(path) => dataset(path).await?,
        path if is_benchmark(path) => questions(path).await?,
        path => job(path).await?,
    };
    let refused = !found.problems.is_empty() || args.strict && !found.warnings.is_empty();
    super::print(&found.render(refused))?;
    Ok(if refused { Exit::Wrong } else { Exit::Success })
}

impl Findings {
    fn render(&self, refused: bool) -> String {
        let mut parts: Vec<String> =
            self.problems.iter().chain(&self.warnings).chain(&self.machine).cloned().collect();
        let counts = [(BAD, self.problems.len(), "problem"), (ODD, self.warnings.len(), "warning")];
        let counts: Vec<String> = counts
            .into_iter()
            .filter(|(_, number, _)| *number > 0)
            .map(|(style, number, noun)| paint(style, &count(number as u64, noun)))
            .collect();
        let verdict = if refused { paint(BAD, "✗") } else { paint(GOOD, "✓") };
        let counts = if counts.is_empty() { "no problems".to_owned() } else { counts.join(", ") };
        parts.push(format!("{verdict} {}: {counts}", self.subject));
        parts.join("\n\n")
    }

    /// Adds one warning for all tasks that the oracle cannot run.
    fn no_solution(&mut self, tasks: &[String]) {
        if !tasks.is_empty() {
            let message = "solution/solve.sh is missing, so the oracle cannot run";
            self.warnings.push(line(&who(tasks), message));
        }
    }
}

async fn job(path: &Path) -> Result<Findings, Failure> {
    let loaded = load::job(path, &[])?;
    let provider = provider(&loaded).await;
    let datasets = load::datasets(&loaded, sources(false)?, &Resolved::default(), None).await?;
    load::models(&loaded)?;
    let mut found = Findings { subject: subject(path, &loaded, &datasets), ..Findings::default() };
    found.warnings.extend(loaded.warnings.iter().map(|warning| warning.render(true)));
    let provider = provider.unwrap_or_else(|error| {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        let message = chain(&error);
        found.problems.push(format!("{} {}: {message}{hint}", paint(BAD, "error:"), path.display()));
        None
    });
    found.warnings.extend(TaskWarnings::of(&datasets).render());
    let oracle = loaded.config.agents.iter().any(|agent| matches!(agent.kind, AgentKind::Oracle));
    let plan = Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &load::variable)
        .map_err(hinted(PlanError::hint))?;
    found.problems.extend(load::invalid(&plan));
    let unsolved = plan.tasks().iter().filter(|task| task.container().is_some_and(|task| !task.has_solution));
    let unsolved: Vec<_> = unsolved.map(|task| format!("task {}/{}", task.dataset(), task.name())).collect();
    found.no_solution(if oracle { &unsolved } else { &[] });
    found.machine = preflight::low_disk_space_of(plan.config());
    let (_, checked) = preflight::check(plan, None, provider).await?;
    found.warnings.extend(findings(&checked.unreachable, false));
    found.problems.extend(findings(&checked.found.findings, true));
    Ok(found)
}

/// Connects to the provider that a run would use, if it needs one.
async fn provider(loaded: &LoadedJob) -> Result<Option<Arc<dyn Provider>>, ConnectError> {
    if !loaded.config.needs_environment() {
        return Ok(None);
    }
    rollout::environment::check(&loaded.config.environment)?;
    match load::place() {
        Ok(place) => connect(&loaded.config.environment, &place).await.map(Some),
        // Without a state directory, the files can still be checked.
        Err(_) => Ok(None),
    }
}

/// Checks a benchmark configuration and its questions.
async fn questions(path: &Path) -> Result<Findings, Failure> {
    let load = |overrides: &[_]| {
        load_benchmark(path, overrides, &load::variable).map_err(|problems| load::refused(path, &problems))
    };
    let mut loaded = load(&[])?;
    let of_hub = hub_questions::overrides(&loaded).await?;
    if !of_hub.is_empty() {
        loaded = load(&of_hub)?;
    }
    let mut found = Findings { subject: path.display().to_string(), ..Findings::default() };
    found.warnings.extend(loaded.warnings.iter().map(|warning| warning.render(true)));
    let unreachable = checks::unreachable_models_of_benchmark(&loaded.config).await;
    found.warnings.extend(findings(&unreachable, false));
    match benchmark::load_questions(&loaded.config) {
        Ok(items) => found.subject += &format!(" ({})", count(items.len() as u64, "question")),
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            found.problems.push(format!("{} {error}{cause}", paint(BAD, "error:")));
        }
    }
    Ok(found)
}

fn subject(path: &Path, loaded: &LoadedJob, datasets: &[PlanDataset]) -> String {
    let number = |dataset: &PlanDataset| match dataset {
        PlanDataset::Tasks(dataset) => dataset.tasks.len(),
        PlanDataset::Examples(examples) => examples.examples.len(),
    };
    let tasks: usize = datasets.iter().map(number).sum();
    format!(
        "{} ({}, {}, {})",
        path.display(),
        count(loaded.config.agents.len() as u64, "agent"),
        count(datasets.len() as u64, "dataset"),
        count(tasks as u64, "task"),
    )
}

fn directory(path: &Path) -> Result<Findings, Failure> {
    let local = load_dataset_dir(path, &mut GitCommits::default())?;
    Ok(tasks(&path.display().to_string(), &local.tasks, &local.warnings, None))
}

/// Fetches a dataset that is not a path, and checks its tasks or its questions.
async fn dataset(name: &Path) -> Result<Findings, Failure> {
    let name = name.display().to_string();
    let config = datasets::parsed(&name)?;
    if matches!(config.source, DatasetSource::Interaction(_)) {
        // Loading it reads every row.
        datasets::fetch(&config, &sources(false)?).await?;
        return Ok(Findings { subject: name, ..Findings::default() });
    }
    let fetched = datasets::fetch(&config, &sources(false)?).await?;
    Ok(tasks(&name, &fetched.tasks, &fetched.warnings, fetched.compat))
}

fn tasks(subject: &str, entries: &[TaskEntry], warnings: &[String], compat: Option<Compat>) -> Findings {
    let shown = format!("{subject} ({})", count(entries.len() as u64, "task"));
    let mut found = Findings { subject: shown, ..Findings::default() };
    found.warnings.extend(warnings.iter().map(|warning| line(subject, warning)));
    let mut unsolved = Vec::new();
    let mut tasks = Vec::new();
    for TaskEntry { name, task, .. } in entries {
        match task {
            Ok(task) => {
                let missing = task.missing().filter(|_| compat.is_none());
                found.problems.extend(missing.map(|problem| load::broken(name.as_str(), &problem)));
                unsolved.extend((!task.has_solution).then(|| format!("task {name}")));
                tasks.push(&**task);
            }
            Err(problem) => found.problems.push(load::broken(name.as_str(), problem)),
        }
    }
    let diagnostics =
        entries.iter().flat_map(|entry| entry.warnings.iter().map(|warning| (entry.name.as_str(), warning)));
    found.warnings.extend(grouped(diagnostics));
    found.no_solution(&unsolved);
    found.problems.extend(findings(&checks::check_tasks(tasks), true));
    found
}
