//! Grading: the sources of rewards, and the verifier settings of the job file.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use serde_json::{Value, json};

use super::Suite;
use crate::TestTask;

pub fn reward_json_gives_a_reward_and_named_rewards(suite: &Suite) {
    let task =
        TestTask::new("task").tests("echo '{\"reward\": 0.75, \"speed\": 2}' > /logs/verifier/reward.json\n");
    let result = suite.job().task(task).oracle().run().expect(0).trial("oracle/set/task__1");
    assert_eq!(result["reward"], 0.75);
    assert_eq!(result["rewards"], json!({"speed": 2.0}));
}

pub fn reward_txt_takes_precedence_over_reward_json(suite: &Suite) {
    let task = TestTask::new("task").tests("cd /logs/verifier; echo 0 > reward.txt; echo 1 > reward.json\n");
    assert_eq!(suite.job().task(task).oracle().run().expect(0).trial("oracle/set/task__1")["reward"], 0.0);
}

pub fn an_agent_error_can_be_graded_all_the_same(suite: &Suite) {
    let job = suite
        .job()
        .task(TestTask::new("task"))
        .script("touch /app/done; exit 9")
        .set("verifier", json!({"after_agent_error": "run"}));
    let finished = job.run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(result["error"]["type"], "agent_execution_failed");
    assert_eq!(result["reward"], 1.0);
    assert_eq!(finished.result()["completed_trials"], 1);
}

pub fn the_exit_code_of_the_tests_can_be_ignored(suite: &Suite) {
    let task = TestTask::new("task").tests("echo 0 > /logs/verifier/reward.txt; exit 1\n");
    let job = suite.job().task(task).oracle().set("verifier", json!({"ignore_exit_code": true}));
    let result = job.run().expect(0).trial("oracle/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(0.0), &Value::Null));
}

pub fn compat_harbor_grades_failed_agents_and_ignores_the_exit_code_of_tests(suite: &Suite) {
    let task = TestTask::new("task").tests("echo 0.5 > /logs/verifier/reward.txt; exit 1\n");
    let job = suite.job().task(task).script("exit 1").set("compat", json!("harbor"));
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!(
        (&result["reward"], &result["error"]["type"]),
        (&json!(0.5), &json!("agent_execution_failed"))
    );
}

pub fn without_a_verifier_a_trial_completes_without_a_reward(suite: &Suite) {
    let job = suite
        .job()
        .task(TestTask::new("task").tests("exit 1\n"))
        .oracle()
        .set("verifier", json!({"disable": true}));
    let finished = job.run().expect(0);
    let result = finished.trial("oracle/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&Value::Null, &Value::Null));
    assert_eq!(result["durations"]["verifier_sec"], Value::Null);
    let job = finished.result();
    assert_eq!(
        (&job["completed_trials"], &job["pass_rate"], &job["mean_reward"]),
        (&json!(1), &json!(0.0), &json!(0.0))
    );
}

pub fn the_verifiers_timeout_is_the_override_under_the_ceiling_times_the_multiplier(suite: &Suite) {
    for (verifier, multiplier, expected) in [
        (json!({}), 1.0, "0.4 seconds"),
        (json!({"override_timeout_sec": 0.2}), 1.0, "0.2 seconds"),
        (json!({"override_timeout_sec": 0, "max_timeout_sec": 0}), 1.0, "0.4 seconds"),
        (json!({"max_timeout_sec": 0.1}), 3.0, "0.3 seconds"),
        (json!({"override_timeout_sec": 0.2, "max_timeout_sec": 0.3}), 2.0, "0.4 seconds"),
    ] {
        let task = TestTask::new("task").tests("sleep 600\n").config("[verifier]\ntimeout_sec = 0.4\n");
        let job = suite
            .job()
            .task(task)
            .oracle()
            .set("verifier", verifier.clone())
            .set("timeout_multiplier", json!(multiplier));
        let result = job.run().expect(1).trial("oracle/set/task__1");
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{verifier} × {multiplier}: {message}");
    }
}

pub fn a_reward_that_the_agent_forged_is_gone_before_the_tests_run(suite: &Suite) {
    let script = "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 555 /tests
                  echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json; chmod 500 /logs/verifier";
    let task = TestTask::new("task").tests("ls /logs/verifier\n");
    let finished = suite.job().task(task).script(script).run().expect(1);
    assert_eq!(finished.trial("agent/set/task__1")["error"]["type"], "verifier_reward_missing");
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/stdout.txt"), "");
}

pub fn directories_that_the_agent_made_links_are_directories_again(suite: &Suite) {
    let script = "rm -rf /logs/verifier /tests; mkdir /elsewhere; ln -s /elsewhere /logs/verifier; ln -s /elsewhere /tests";
    let finished = suite
        .job()
        .task(TestTask::new("task").tests("ls /elsewhere; echo 1 > /logs/verifier/reward.txt\n"))
        .script(script)
        .run()
        .expect(0);
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/stdout.txt"), "");
}
