//! `rollout flakes`: finds tasks that the oracle does not always pass, and tasks that the nop agent passes.

mod report;
pub(crate) mod tally;

use serde_json::{Value, json};

use self::{report::Report, tally::Tally};
use super::task_trials::{self, PathHints, TaskTrials};
use crate::{
    args::Flakes,
    exit::{Exit, Failure},
};

/// The agents that test a task.
const AGENTS: [&str; 2] = ["oracle", "nop"];

/// Runs the tasks unless the path is a finished job, and reports the flaky ones.
pub(crate) async fn run(args: Flakes) -> Result<Exit, Failure> {
    let agents: Value = AGENTS.iter().map(|name| json!({"name": name})).collect();
    let Flakes { path, attempts, concurrency, output } = args;
    let trials = TaskTrials { path: &path, agents, name: "flakes", attempts, concurrency, output };
    let hints = PathHints {
        accepted: "pass a job file, a directory of tasks, a job directory, or the name of a dataset",
        agents: "oracle or nop agent",
        run: "pass the job file or the directory of tasks to run the tasks",
    };
    task_trials::report(&trials, hints, |job| Ok(Tally::read(job)?.map(|tally| Report::new(job, &tally))))
        .await
}
