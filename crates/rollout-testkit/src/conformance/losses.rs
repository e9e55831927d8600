//! Environments that are lost for an outside reason: the trial is retried, and the agent is not blamed.
#![expect(missing_docs, reason = "the names of the cases describe them")]

use serde_json::{Value, json};

use super::Suite;
use crate::{Gate, TestTask};

/// Runs a trial that waits in the middle, ends its environment there, and lets the next attempt continue.
fn lose(suite: &Suite, gate: &Gate, task: TestTask, script: &str) {
    let job = suite
        .job()
        .task(task)
        .script(script)
        .set("retry", json!({"max_attempts": 2, "initial_delay_ms": 10}));
    let running = job.start();
    let first = running.arrival(gate);
    suite.subject().end_environments(job.name(), &job.state_dir());
    drop(first);
    running.arrival(gate).pass();
    let finished = running.finish().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(
        (&result["reward"], &result["error"], &result["tries"]),
        (&json!(1.0), &Value::Null, &json!(2)),
        "{result:#}"
    );
    let evidence = finished.file("agent/set/task__1/tries/1/error.txt");
    assert!(evidence.starts_with("internal_error\n"), "{evidence}");
    job.expect_nothing_left();
}

pub fn an_environment_that_is_ended_from_outside_while_the_agent_works_is_tried_again(suite: &Suite) {
    let gate = Gate::new();
    lose(suite, &gate, TestTask::new("task"), &(gate.wait() + "touch /app/done"));
}

pub fn an_environment_that_is_ended_from_outside_while_the_tests_run_is_tried_again(suite: &Suite) {
    let gate = Gate::new();
    let tests = gate.wait() + "echo 1 > /logs/verifier/reward.txt\n";
    lose(suite, &gate, TestTask::new("task").tests(&tests), "true");
}
