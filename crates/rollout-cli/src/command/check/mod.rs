//! `rollout check`: the quality of tasks, from one job with three agents and from their files.

mod leaks;
mod pins;
mod report;

use std::ops::ControlFlow;

use rollout::record::{layout::JobDir, saved::SavedJob};
use serde_json::json;

use self::report::Report;
use super::{
    dataset_argument,
    task_trials::{TaskTrials, attempt},
};
use crate::{
    args::{Answer, Check},
    exit::{Exit, Failure},
    state::state_dir,
};

/// The agent that lists the files of the environment.
const LOOK: &str = "look";

/// Runs the agents unless the path is a job, and reports on each task.
pub(crate) async fn run(args: Check) -> Result<Exit, Failure> {
    if !args.path.exists() && !dataset_argument::is_dataset(&args.path) {
        let failure = Failure::from(format!("{} does not exist", args.path.display()));
        return Err(failure.hint(Some(
            "pass a task, a directory of tasks, a job file, a job directory, or the name of a dataset",
        )));
    }
    let is_job = JobDir::new(&args.path).journal().is_file();
    let agents = json!([
        {"name": "oracle"},
        {"name": "nop"},
        {"name": LOOK, "execute": leaks::LIST_FILES},
    ]);
    let Check { attempts, concurrency, output, strict, .. } = args;
    let trials = TaskTrials { path: &args.path, agents, name: "check", attempts, concurrency, output };
    let directory = match is_job {
        true => args.path.clone(),
        false => match attempt(&trials).await? {
            ControlFlow::Continue(directory) => directory,
            ControlFlow::Break(exit) => return Ok(exit),
        },
    };
    let cache_dir = state_dir()?;
    let report = tokio::task::spawn_blocking(move || -> Result<Option<Report>, Failure> {
        Report::read(&SavedJob::open(directory)?, &cache_dir, strict)
    })
    .await??;
    let Some(report) = report else {
        let path = args.path.display();
        let failure = Failure::from(format!("{path} has no finished trial of the agents oracle and nop"));
        return Err(failure.hint(Some("pass a task or a directory of tasks to run the agents")));
    };
    super::print(&match args.output {
        Answer::Human if is_job => report.render(),
        Answer::Human => format!("\n{}", report.render()),
        Answer::Json => serde_json::to_string(&report)?,
    })?;
    Ok(report.exit())
}
