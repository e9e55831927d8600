//! `rollout check`: the quality of tasks, from one job with three agents and from their files.

mod leaks;
mod pins;
mod report;
mod summary;

use std::collections::HashMap;

use serde_json::json;
use tokio::runtime::Handle;

use self::report::Report;
use super::task_trials::{self, PathHints, TaskTrials};
use crate::{
    args::Check,
    engine::{self, Found},
    exit::{Exit, Failure},
    state::state_dir,
};

/// The agent that lists the files of the environment.
const LOOK: &str = "look";

/// Runs the agents unless the path is a job, and reports on each task.
pub(crate) async fn run(args: Check) -> Result<Exit, Failure> {
    let agents = json!([
        {"name": "oracle"},
        {"name": "nop"},
        {"name": LOOK, "execute": leaks::LIST_FILES},
    ]);
    let Check { path, attempts, concurrency, output, strict } = args;
    let trials = TaskTrials { path: &path, agents, name: "check", attempts, concurrency, output };
    let hints = PathHints {
        accepted: "pass a task, a directory of tasks, a job file, a job directory, or the name of a dataset",
        agents: "agents oracle and nop",
        run: "pass a task or a directory of tasks to run the agents",
    };
    let cache_dir = state_dir()?;
    let runtime = Handle::current();
    let image_sizes = move |provider: &str| match provider {
        "docker" => runtime.block_on(docker_images()),
        // Other providers do not know the size of an image without its files.
        _ => HashMap::new(),
    };
    task_trials::report(&trials, hints, move |job| Report::read(job, &cache_dir, strict, image_sizes)).await
}

/// The sizes of the images on the Docker engine. None if it does not answer: the report is complete without them.
async fn docker_images() -> HashMap<String, u64> {
    let Found::Engine(engine) = engine::find().await else { return HashMap::new() };
    let images = engine.images().await.unwrap_or_default();
    images.into_iter().map(|image| (image.reference, image.size)).collect()
}
