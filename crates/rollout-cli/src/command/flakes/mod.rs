//! `rollout flakes`: finds tasks that the oracle does not always pass, and tasks that the nop agent passes.

mod report;
pub(crate) mod tally;

use std::ops::ControlFlow;

use rollout::record::{layout::JobDir, saved::SavedJob};
use serde_json::{Value, json};

use self::{report::Report, tally::Tally};
use super::{
    dataset_argument,
    task_trials::{TaskTrials, attempt},
};
use crate::{
    args::{Answer, Flakes},
    exit::{Exit, Failure},
};

/// The agents that test a task.
const AGENTS: [&str; 2] = ["oracle", "nop"];

/// Runs the tasks unless the path is a finished job, and reports the flaky ones.
pub(crate) async fn run(args: Flakes) -> Result<Exit, Failure> {
    if !args.path.exists() && !dataset_argument::is_dataset(&args.path) {
        let failure = Failure::from(format!("{} does not exist", args.path.display()));
        return Err(failure
            .hint(Some("pass a job file, a directory of tasks, a job directory, or the name of a dataset")));
    }
    let is_job = JobDir::new(&args.path).journal().is_file();
    let directory = match is_job {
        true => args.path.clone(),
        false => match attempt(&trials(&args)).await? {
            ControlFlow::Continue(directory) => directory,
            ControlFlow::Break(exit) => return Ok(exit),
        },
    };
    let report = tokio::task::spawn_blocking(move || -> Result<Option<Report>, Failure> {
        let job = SavedJob::open(directory)?;
        Ok(Tally::read(&job)?.map(|tally| Report::new(&job, &tally)))
    })
    .await??;
    let Some(report) = report else {
        let path = args.path.display();
        let failure = Failure::from(format!("{path} has no finished trial of the oracle or nop agent"));
        return Err(failure.hint(Some("pass the job file or the directory of tasks to run the tasks")));
    };
    super::print(&match args.output {
        Answer::Human if is_job => report.render(),
        Answer::Human => format!("\n{}", report.render()),
        Answer::Json => serde_json::to_string(&report)?,
    })?;
    Ok(report.exit())
}

fn trials(args: &Flakes) -> TaskTrials<'_> {
    let agents: Value = AGENTS.iter().map(|name| json!({"name": name})).collect();
    let Flakes { path, attempts, concurrency, output } = args;
    let (attempts, concurrency, output) = (*attempts, *concurrency, *output);
    TaskTrials { path, agents, name: "flakes", attempts, concurrency, output }
}
