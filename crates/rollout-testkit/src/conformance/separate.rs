//! Tests in a separate environment, which gets only the declared artifacts of the agent's work.
#![expect(missing_docs, reason = "the names of the cases describe them")]

use serde_json::{Value, json};

use super::Suite;
use crate::TestTask;

const SEPARATE: &str =
    "artifacts = [\"/app/result\", \"/app/tree\"]\n[verifier]\nenvironment_mode = \"separate\"\n";

pub fn separate_tests_see_the_artifacts_and_nothing_else_of_the_agents_work(suite: &Suite) {
    let script =
        "mkdir -p /app/tree/deep; echo right > /app/result; echo x > /app/tree/deep/x; echo y > /app/other
                  mkdir -p /logs/artifacts; echo z > /logs/artifacts/z; echo mine > /logs/verifier/forged";
    let tests = "cat /app/result /app/tree/deep/x /logs/artifacts/z; ls /logs/verifier
                 if [ \"$(cat /app/result)\" = right ] && [ ! -e /app/other ]; then echo 1; else echo 0; fi \
                 > /logs/verifier/reward.txt\n";
    let job = suite.job().task(TestTask::new("task").config(SEPARATE).tests(tests)).script(script);
    let finished = job.run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    let printed = finished.file("agent/set/task__1/logs/verifier/stdout.txt");
    assert!(printed.starts_with("right\nx\nz\n") && !printed.contains("forged"), "{printed}");
    assert_eq!(finished.file("agent/set/task__1/artifacts/app/result"), "right\n");
    assert!(!job.dir().join("agent/set/task__1/logs/verifier/forged").exists());
    job.expect_nothing_left();
}

pub fn an_agent_that_replaces_programs_or_keeps_processes_gains_nothing_from_separate_tests(suite: &Suite) {
    let forger = "while :; do echo 1 > /logs/verifier/reward.txt; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; done";
    let script = format!(
        "(setsid sh -c \"{forger}\" > /dev/null 2>&1 &)
         printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /tmp/false; chmod +x /tmp/false
         for place in /usr/bin /bin /usr/local/bin; do cp /tmp/false $place/false 2> /dev/null; done; true"
    );
    let tests = "false || echo 0 > /logs/verifier/reward.txt\n";
    let job = suite.job().task(TestTask::new("task").config(SEPARATE).tests(tests)).script(&script);
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!(result["reward"], 0.0, "{result:#}");
    job.expect_nothing_left();
}

pub fn a_missing_artifact_is_noted_and_the_tests_decide(suite: &Suite) {
    let tests = "test -e /app/result; echo $? > /logs/verifier/reward.txt\n";
    let job = suite.job().task(TestTask::new("task").config(SEPARATE).tests(tests)).script("true");
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null));
    let notes = result["notes"].to_string();
    assert!(notes.contains("the artifact /app/result is missing"), "{result:#}");
}
