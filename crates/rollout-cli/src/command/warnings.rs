//! What a reader should know before a job runs, each thing once however many tasks share it.

use std::collections::HashSet;

use indexmap::IndexMap;
use rollout::{
    config::{Code, Diagnostic},
    job::{Plan, PlanDataset},
    name::{DatasetName, TaskName},
    preflight::{Finding, FindingKind},
};

use crate::report::text::{BAD, DIM, ODD, count, paint};

/// Problems of one kind that are shown.
const SHOWN: usize = 5;

/// What tasks say that Rollout does not do, or reads differently, by task.
#[derive(Debug, Default)]
pub(crate) struct TaskWarnings {
    datasets: Vec<String>,
    tasks: Vec<(DatasetName, TaskName, Vec<Diagnostic>)>,
}

impl TaskWarnings {
    /// Takes them from the datasets.
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

    /// Leaves those of tasks that are not in a plan out.
    pub(crate) fn within(mut self, plan: &Plan) -> Self {
        let planned: HashSet<_> = plan.tasks().iter().map(|task| (&task.dataset, &task.name)).collect();
        self.tasks.retain(|(dataset, task, _)| planned.contains(&(dataset, task)));
        self
    }

    /// All of them, each kind once with its first source line.
    pub(crate) fn render(&self) -> Vec<String> {
        let diagnostics = self
            .tasks
            .iter()
            .flat_map(|(_, task, found)| found.iter().map(move |found| (task.as_str(), found)));
        self.datasets.iter().cloned().chain(grouped(diagnostics)).collect()
    }

    /// Those that change what a task means.
    pub(crate) fn unsupported(&self) -> Vec<String> {
        let diagnostics = self
            .tasks
            .iter()
            .flat_map(|(_, task, found)| found.iter().map(move |found| (task.as_str(), found)));
        grouped(diagnostics.filter(|(_, found)| found.code == Code::Unsupported))
    }

    /// A line for each kind.
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

/// Diagnostics with their source lines, those that say the same once.
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

/// A warning about something that has no source line.
pub(crate) fn line(about: &str, message: &str) -> String {
    format!("{} {about}: {message}", paint(ODD, "warning:"))
}

/// Names the first of those who share something, and counts the others.
pub(crate) fn who(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} and {}", count(rest.len() as u64, "other")),
    }
}

/// What was found before a job, a line for each problem and few of each kind.
pub(crate) fn findings(findings: &[Finding], certain: bool) -> Vec<String> {
    let label = if certain { paint(BAD, "error:") } else { paint(ODD, "warning:") };
    let mut lines = Vec::new();
    let kinds =
        [FindingKind::UnknownImage, FindingKind::Dockerfile, FindingKind::Script, FindingKind::ModelServer];
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
                FindingKind::ModelServer => "model server problem",
            };
            lines.push(format!("{label} {} more", count(more as u64, what)));
        }
    }
    lines
}
