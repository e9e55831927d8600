//! `rollout validate`: what is wrong with a job, a benchmark, a task or a dataset, without running anything.

use std::{error::Error, path::Path};

use rollout::{
    benchmark,
    config::{AgentKind, LoadedJob, is_benchmark, load_benchmark},
    job::{Plan, PlanDataset, Selection},
    task::{GitCommits, Pins, TaskEntry, load_dataset_dir},
};

use super::load::{self, Oddities};
use crate::{
    args::Validate,
    exit::{Exit, Failure},
    report::text::{BAD, GOOD, ODD, count, paint},
};

/// What was found.
#[derive(Debug, Default)]
struct Findings {
    /// What was looked at.
    subject: String,
    problems: Vec<String>,
    warnings: Vec<String>,
}

/// Looks at everything and prints all that is wrong.
pub(crate) async fn run(args: &Validate) -> Result<Exit, Failure> {
    let path = args.path.as_path();
    let found = match path {
        path if path.is_dir() => directory(path)?,
        path if is_benchmark(path) => questions(path)?,
        path => job(path).await?,
    };
    let refused = !found.problems.is_empty() || args.strict && !found.warnings.is_empty();
    super::print(&found.render(refused))?;
    Ok(if refused { Exit::Wrong } else { Exit::Success })
}

impl Findings {
    fn render(&self, refused: bool) -> String {
        let mut parts: Vec<String> = self.problems.iter().chain(&self.warnings).cloned().collect();
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

    fn no_solution(&mut self, name: &str) {
        self.warnings
            .push(load::line(name, "there is no solution/solve.sh, so the oracle cannot attempt the task"));
    }
}

async fn job(path: &Path) -> Result<Findings, Failure> {
    let loaded = load::job(path, &[])?;
    let datasets = load::datasets(&loaded, &Pins::new(), None).await?;
    load::models(&loaded)?;
    let mut found = Findings { subject: subject(path, &loaded, &datasets), ..Findings::default() };
    found.warnings.extend(loaded.warnings.iter().map(|warning| warning.render(true)));
    if loaded.config.needs_environment()
        && let Err(error) = rollout::environment::check(&loaded.config.environment)
    {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        found.problems.push(format!("{} {}: {error}{hint}", paint(BAD, "error:"), path.display()));
    }
    found.warnings.extend(Oddities::of(&datasets).render());
    let oracle = loaded.config.agents.iter().any(|agent| matches!(agent.kind, AgentKind::Oracle));
    let plan = Plan::new(loaded, Vec::new(), datasets, &Selection::default(), &load::variable)?;
    found.problems.extend(load::invalid(&plan));
    for task in plan.tasks().iter().filter(|_| oracle) {
        if task.container().is_some_and(|task| !task.has_solution) {
            found.no_solution(&format!("{}/{}", task.dataset, task.name));
        }
    }
    Ok(found)
}

/// Looks at the configuration of a benchmark, and at its questions.
fn questions(path: &Path) -> Result<Findings, Failure> {
    let loaded =
        load_benchmark(path, &[], &load::variable).map_err(|problems| load::refused(path, &problems))?;
    let mut found = Findings { subject: path.display().to_string(), ..Findings::default() };
    found.warnings.extend(loaded.warnings.iter().map(|warning| warning.render(true)));
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
        PlanDataset::Examples(examples) => examples.inputs.len(),
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
    let subject = format!("{} ({})", path.display(), count(local.tasks.len() as u64, "task"));
    let mut found = Findings { subject, ..Findings::default() };
    found
        .warnings
        .extend(local.warnings.iter().map(|warning| load::line(&path.display().to_string(), warning)));
    for TaskEntry { name, task, warnings } in &local.tasks {
        found.warnings.extend(warnings.iter().map(|warning| warning.render(true)));
        match task {
            Ok(task) if !task.has_solution => found.no_solution(name.as_str()),
            Ok(_) => {}
            Err(problem) => found.problems.push(load::broken(name.as_str(), problem)),
        }
    }
    Ok(found)
}
