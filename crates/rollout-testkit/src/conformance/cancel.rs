//! Jobs that are cancelled while they run: their processes end, and nothing is left behind.
#![expect(missing_docs, reason = "the names of the cases describe them")]

use serde_json::json;

use super::Suite;
use crate::{Gate, Library, TestJob, TestTask};

/// Stops a job when one of its scripts is at the gate, and checks that this ends the script.
#[track_caller]
fn stopped_at(gate: &Gate, job: &TestJob<Library>) {
    let running = job.start();
    let waiting = running.arrival(gate);
    running.cancel.graceful.cancel();
    waiting.ended();
    let finished = running.finish().expect(130);
    assert_eq!(finished.result()["skipped_trials"], 1);
    job.expect_nothing_left();
}

pub fn a_job_stopped_while_it_builds_stops_the_build(suite: &Suite) {
    let gate = Gate::new();
    let wait = gate.wait().trim_end().to_owned();
    let task =
        TestTask::new("task").dockerfile(&format!("FROM test\nSHELL [\"/bin/bash\", \"-c\"]\nRUN {wait}\n"));
    stopped_at(&gate, &suite.job().task(task).oracle());
}

pub fn a_job_stopped_while_it_installs_leaves_nothing(suite: &Suite) {
    let gate = Gate::new();
    let agent = json!({"name": "agent", "install": gate.wait(), "execute": "true"});
    stopped_at(&gate, &suite.job().task(TestTask::new("task")).agent(agent));
}

pub fn a_job_stopped_while_the_agent_works_leaves_nothing(suite: &Suite) {
    let gate = Gate::new();
    let script = format!("setsid sleep 1001 & {}", gate.wait());
    stopped_at(&gate, &suite.job().task(TestTask::new("task")).script(&script));
}

pub fn a_job_stopped_while_it_verifies_leaves_nothing(suite: &Suite) {
    let gate = Gate::new();
    stopped_at(&gate, &suite.job().task(TestTask::new("task").tests(&gate.wait())).oracle());
}

pub fn a_job_stopped_at_once_ends_what_runs_inside(suite: &Suite) {
    let gate = Gate::new();
    let job = suite.job().task(TestTask::new("task")).script(&gate.wait());
    let running = job.start();
    let waiting = running.arrival(&gate);
    running.cancel.graceful.cancel();
    running.cancel.now.cancel();
    running.finish().expect(130);
    waiting.ended();
}

pub fn an_environment_let_go_after_its_provider_leaves_nothing(suite: &Suite) {
    suite.let_go();
}
