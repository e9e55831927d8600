//! Warnings before a job runs. A warning that applies to several tasks is printed once.

use std::collections::HashSet;

use indexmap::IndexMap;
use rollout::{
    config::{Code, Diagnostic},
    job::{AddedTrials, Plan, PlanDataset, Work},
    name::{DatasetName, TaskName},
    preflight::{Finding, FindingKind},
};

use crate::report::text::{BAD, DIM, ODD, count, paint};

/// How many problems of one kind are printed.
const SHOWN: usize = 5;

/// Settings of tasks that Rollout does not support or interprets differently, by task.
#[derive(Debug, Default)]
pub(crate) struct TaskWarnings {
    datasets: Vec<String>,
    tasks: Vec<(DatasetName, TaskName, Vec<Diagnostic>)>,
}

impl TaskWarnings {
    /// Collects the warnings of the datasets.
    pub(crate) fn of(datasets: &[PlanDataset]) -> Self {
        let mut warnings = Self::default();
        let tasks = datasets.iter().filter_map(|dataset| match dataset {
            PlanDataset::Tasks(dataset) => Some(dataset),
            PlanDataset::Examples(_) => None,
        });
        for dataset in tasks {
            let name = dataset.name.as_str();
            warnings.datasets.extend(dataset.warnings.iter().map(|text| line(name, text)));
            let warned = dataset.tasks.iter().filter(|entry| !entry.warnings.is_empty());
            let entries =
                warned.map(|entry| (dataset.name.clone(), entry.name.clone(), entry.warnings.clone()));
            warnings.tasks.extend(entries);
        }
        warnings
    }

    /// Drops the warnings of tasks that are not in the plan.
    pub(crate) fn within(mut self, plan: &Plan) -> Self {
        let containers = plan.tasks().iter().filter(|task| matches!(task.work, Work::Container(_)));
        let planned: HashSet<_> = containers.map(|task| (task.dataset(), task.name())).collect();
        self.tasks.retain(|(dataset, task, _)| planned.contains(&(dataset, task.as_str())));
        self
    }

    /// Keeps the warnings of the tasks that a plan adds to a job.
    pub(crate) fn added(mut self, plan: &Plan, added: &AddedTrials) -> Self {
        let tasks = plan.tasks().iter().enumerate().filter(|(number, _)| added.has_task(*number));
        let new: HashSet<_> = tasks.map(|(_, task)| (task.dataset(), task.name())).collect();
        self.tasks.retain(|(dataset, task, _)| new.contains(&(dataset, task.as_str())));
        self.datasets.clear();
        self
    }

    /// Renders all warnings, each kind once with its first source line.
    pub(crate) fn render(&self) -> Vec<String> {
        let diagnostics = self
            .tasks
            .iter()
            .flat_map(|(_, task, found)| found.iter().map(move |found| (task.as_str(), found)));
        self.datasets.iter().cloned().chain(grouped(diagnostics)).collect()
    }

    /// Renders the warnings about unsupported settings.
    pub(crate) fn unsupported(&self) -> Vec<String> {
        let diagnostics = self
            .tasks
            .iter()
            .flat_map(|(_, task, found)| found.iter().map(move |found| (task.as_str(), found)));
        grouped(diagnostics.filter(|(_, found)| found.code == Code::Unsupported))
    }

    /// Renders one line for each kind of warning.
    pub(crate) fn short(&self) -> Vec<String> {
        let mut kinds: IndexMap<String, Vec<String>> = IndexMap::new();
        for (_, task, found) in &self.tasks {
            for found in found {
                let hint = found.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
                kinds.entry(format!("{}{hint}", found.message)).or_default().push(format!("task {task}"));
            }
        }
        let lines = kinds.into_iter().map(|(message, tasks)| line(&who(&tasks), &message));
        self.datasets.iter().cloned().chain(lines).collect()
    }
}

/// Renders diagnostics with their source lines, each message once.
pub(crate) fn grouped<'a>(diagnostics: impl Iterator<Item = (&'a str, &'a Diagnostic)>) -> Vec<String> {
    let mut kinds: IndexMap<&str, (&Diagnostic, Vec<String>)> = IndexMap::new();
    for (task, found) in diagnostics {
        kinds.entry(&found.message).or_insert_with(|| (found, Vec::new())).1.push(format!("task {task}"));
    }
    let text = |(first, tasks): (&Diagnostic, Vec<String>)| match &tasks[1..] {
        [] => first.render(true),
        rest => format!("{}\n{}", first.render(true), paint(DIM, &format!("the same in {}", who(rest)))),
    };
    kinds.into_values().map(text).collect()
}

/// Renders a warning that has no source line.
pub(crate) fn line(about: &str, message: &str) -> String {
    format!("{} {about}: {message}", paint(ODD, "warning:"))
}

/// Returns the first name and the number of the others.
pub(crate) fn who(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} and {}", count(rest.len() as u64, "other")),
    }
}

/// Renders preflight findings, one line for each, and at most [`SHOWN`] of each kind.
pub(crate) fn findings(findings: &[Finding], certain: bool) -> Vec<String> {
    let label = if certain { paint(BAD, "error:") } else { paint(ODD, "warning:") };
    let mut lines = Vec::new();
    let kinds = [
        FindingKind::UnknownImage,
        FindingKind::Dockerfile,
        FindingKind::Script,
        FindingKind::Unsupported,
        FindingKind::Environment,
        FindingKind::ModelServer,
    ];
    for kind in kinds {
        let of_kind: Vec<_> = findings.iter().filter(|finding| finding.kind == kind).collect();
        for finding in of_kind.iter().take(SHOWN) {
            lines.push(format!("{label} {}: {}", who(&finding.subjects), finding.message));
        }
        if let Some(more @ 1..) = of_kind.len().checked_sub(SHOWN) {
            let what = match kind {
                FindingKind::UnknownImage => "unknown image",
                FindingKind::Dockerfile => "Dockerfile problem",
                FindingKind::Script => "script problem",
                FindingKind::Unsupported => "unsupported setting",
                FindingKind::Environment => "problem of environments",
                FindingKind::ModelServer => "model server problem",
            };
            lines.push(format!("{label} {} more", count(more as u64, what)));
        }
    }
    lines
}
