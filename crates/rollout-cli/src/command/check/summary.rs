//! The findings about the tasks of one dataset together.

use serde::Serialize;

use super::report::CheckedTask;
use crate::report::text::{count, span};

/// How many tasks of a dataset passed, and why others did not.
#[derive(Debug, Serialize)]
pub(super) struct DatasetSummary {
    dataset: String,
    tasks: usize,
    passed: usize,
    /// Tasks whose solution passes some attempts and not others.
    flaky: usize,
    /// Tasks whose environment has their solution or tests.
    leaking: usize,
    /// Tasks that do not pin a version.
    unpinned: usize,
    /// The sum of the times of the builds; null if none is known.
    build_sec: Option<f64>,
}

/// Summarizes tasks, which are ordered by dataset.
pub(super) fn summaries(tasks: &[CheckedTask]) -> Vec<DatasetSummary> {
    let of_dataset = |tasks: &[CheckedTask]| {
        let number =
            |is_counted: &dyn Fn(&CheckedTask) -> bool| tasks.iter().filter(|task| is_counted(task)).count();
        let builds: Vec<f64> = tasks.iter().filter_map(|task| task.build_sec).collect();
        DatasetSummary {
            dataset: tasks[0].dataset().to_owned(),
            tasks: tasks.len(),
            passed: number(&|task| task.passed),
            flaky: number(&|task| task.flaky),
            leaking: number(&CheckedTask::is_leaking),
            unpinned: number(&|task| !task.unpinned.is_empty()),
            build_sec: (!builds.is_empty()).then(|| builds.iter().sum()),
        }
    };
    tasks.chunk_by(|a, b| a.dataset() == b.dataset()).map(of_dataset).collect()
}

impl DatasetSummary {
    /// One line for people.
    pub(super) fn line(&self) -> String {
        let Self { dataset, tasks, passed, flaky, leaking, unpinned, build_sec } = self;
        let tasks = count(*tasks as u64, "task");
        let build = build_sec.map_or_else(String::new, |time| format!(", built in {}", span(time)));
        format!(
            "{dataset}: {passed} of {tasks} passed, {flaky} flaky, {leaking} leaking, {unpinned} unpinned{build}"
        )
    }
}
