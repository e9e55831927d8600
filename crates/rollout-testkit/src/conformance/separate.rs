//! Tests in a separate environment, which gets only the declared artifacts of the agent's work.
#![expect(missing_docs, reason = "the names of the cases describe them")]

use serde_json::{Value, json};

use super::{Ability, Suite};
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
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let forger = "while :; do echo 1 > /logs/verifier/reward.txt; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; done";
    let script = format!(
        "(setsid sh -c \"{forger}\" > /dev/null 2>&1 &)
         printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /tmp/forged; chmod +x /tmp/forged
         for name in false bash; do
             for place in $(type -a -P $name); do cp /tmp/forged $place.new && mv $place.new $place; done
         done
         echo /tmp/missing.so > /etc/ld.so.preload
         echo 'echo 1 > /logs/verifier/reward.txt; exit 0' >> /etc/profile
         for name in false bash; do cmp /tmp/forged $(type -P $name) || exit 1; done; exit 0"
    );
    let tests = "[ -e /etc/ld.so.preload ] && echo preloaded
                 grep -q reward /etc/profile && echo profile
                 [ $(head -c 2 $(command -v bash)) = '#!' ] && echo bash
                 env false || echo 0 > /logs/verifier/reward.txt\n";
    let job = suite.job().task(TestTask::new("task").config(SEPARATE).tests(tests)).script(&script);
    let finished = job.run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null), "{result:#}");
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/stdout.txt"), "");
    job.expect_nothing_left();
}

/// Whether the tests find an artifact, another file of the agent, and a file of the task's Dockerfile.
const FOUND: &str =
    "for file in /app/result /app/other /from-task; do if [ -e $file ]; then echo $file; fi; done
                     echo 1 > /logs/verifier/reward.txt\n";

/// What tests find of an agent that makes an artifact and another file.
fn found(suite: &Suite, config: &str, verifier: Value) -> String {
    let task = TestTask::new("task")
        .config(config)
        .dockerfile("FROM test\nWORKDIR /app\nRUN touch /from-task\n")
        .tests(FOUND);
    let script = "[ -e /from-task ] && touch /app/result /app/other";
    let job = suite.job().task(task).script(script).set("verifier", verifier);
    let finished = job.run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    job.expect_nothing_left();
    finished.file("agent/set/task__1/logs/verifier/stdout.txt")
}

pub fn a_job_can_ask_for_separate_tests_and_name_artifacts(suite: &Suite) {
    let verifier = json!({"environment": "separate", "artifacts": ["/app/result"]});
    assert_eq!(found(suite, "version = \"1.0\"\n", verifier), "/app/result\n/from-task\n");
}

pub fn a_job_can_keep_tests_in_the_agents_environment(suite: &Suite) {
    let found = found(suite, SEPARATE, json!({"environment": "shared"}));
    assert_eq!(found, "/app/result\n/app/other\n/from-task\n");
}

pub fn a_job_can_name_the_image_of_separate_tests(suite: &Suite) {
    let verifier = json!({"image": suite.subject().base_image(), "artifacts": ["/app/result"]});
    assert_eq!(found(suite, "version = \"1.0\"\n", verifier), "/app/result\n");
}

pub fn a_task_can_name_the_image_of_separate_tests(suite: &Suite) {
    let image = suite.subject().base_image();
    let config = format!("artifacts = [\"/app/result\"]\n[verifier]\nimage = \"{image}\"\n");
    assert_eq!(found(suite, &config, json!({})), "/app/result\n");
}

pub fn a_missing_artifact_is_noted_and_the_tests_decide(suite: &Suite) {
    let tests = "test -e /app/result; echo $? > /logs/verifier/reward.txt\n";
    let job = suite.job().task(TestTask::new("task").config(SEPARATE).tests(tests)).script("true");
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null));
    let notes = result["notes"].to_string();
    assert!(notes.contains("the artifact /app/result is missing"), "{result:#}");
}
