//! Small tasks in Harbor's format, one for each of its fields and conventions, with the rewards that Harbor gives.

mod beside;
mod compose;
mod judge;
mod killed;
mod more;
mod networks;
mod refusals;
mod rows;
mod steps;

use rollout_testkit::{Finished, TestEngine, TestJob, TestTask};
use serde_json::{Value, json};

fn native() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

fn docker() -> TestJob {
    native().on(&TestEngine::shared())
}

/// A task whose task.toml has this text after `schema_version`.
fn task(name: &str, toml: &str) -> TestTask {
    TestTask::new(name).config(&format!("schema_version = \"1.1\"\n{toml}"))
}

/// Tests that give 1 if this command succeeds, else 0.
fn graded_by(command: &str) -> String {
    format!("if {command}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n")
}

/// Runs the oracle on these tasks, and compares each reward.
#[track_caller]
fn expect_rewards(job: TestJob, rows: Vec<(TestTask, f64)>) -> Finished {
    let names: Vec<(String, f64)> =
        rows.iter().map(|(task, reward)| (task.name().to_owned(), *reward)).collect();
    let job = rows.into_iter().fold(job.oracle(), |job, (task, _)| job.task(task));
    let finished = job.run().expect(0);
    let results: Vec<Value> = names.iter().map(|(name, _)| result(&finished, name)).collect();
    let wrong: Vec<String> = names
        .iter()
        .zip(&results)
        .filter(|((_, reward), result)| result["reward"] != json!(reward) || !result["error"].is_null())
        .map(|((name, reward), result)| format!("{name}: expected {reward}, found {result:#}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    job.expect_nothing_left();
    finished
}

/// The result of the oracle on a task.
#[track_caller]
fn result(finished: &Finished, task: &str) -> Value {
    finished.trial(&format!("oracle/set/{task}__1"))
}
