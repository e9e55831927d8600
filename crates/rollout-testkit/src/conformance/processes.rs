//! Processes that outlive the script that started them.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use serde_json::{Value, json};

use super::Suite;
use crate::{Gate, TestTask};

pub fn a_daemon_that_rewrites_the_reward_is_ended_where_the_job_says_so(suite: &Suite) {
    let script = "setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1 &
                  until [ -s /logs/verifier/reward.txt ]; do :; done";
    let task = TestTask::new("task").tests("sleep 0.3; echo 0 > /logs/verifier/reward.txt\n");
    let job = suite.job().task(task).script(script).set("verifier", json!({"agent_processes": "kill"}));
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!(result["reward"], 0.0);
    assert!(result["survivors"][0].as_str().unwrap().contains("reward.txt"), "{result:#}");
}

pub fn a_service_that_the_tests_need_stays_by_default(suite: &Suite) {
    let script = "mkfifo /app/ask /app/answer; (while read -r x < /app/ask; do echo got $x > /app/answer; echo served; done) & echo up";
    let task = TestTask::new("task").tests(
        "echo ping > /app/ask; read -r reply < /app/answer\n\
         if [ \"$reply\" = 'got ping' ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    );
    let finished = suite.job().task(task).script(script).run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert!(!result["survivors"].as_array().unwrap().is_empty());
    // The service could still write its log: its output stayed open after the agent's script had ended.
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "up\nserved\n");
}

pub fn a_process_that_the_tests_leave_does_not_hold_up_the_trial(suite: &Suite) {
    let task = TestTask::new("task").tests("(sleep 600; echo never) & echo 1 > /logs/verifier/reward.txt\n");
    let job = suite.job().task(task).oracle();
    assert_eq!(job.run().expect(0).trial("oracle/set/task__1")["reward"], 1.0);
    job.expect_nothing_left();
}

pub fn a_process_that_the_install_script_leaves_serves_the_agent(suite: &Suite) {
    let install = "mkfifo /tmp/in; (cat /tmp/in > /app/done) & true";
    let agent = json!({"name": "agent", "install": install, "execute": "echo hello > /tmp/in; while [ ! -s /app/done ]; do :; done"});
    let task = TestTask::new("task").tests("grep -c hello /app/done > /logs/verifier/reward.txt\n");
    assert_eq!(suite.job().task(task).agent(agent).run().expect(0).trial("agent/set/task__1")["reward"], 1.0);
}

pub fn a_pipe_that_a_process_of_the_agent_keeps_open_does_not_hold_up_the_trial(suite: &Suite) {
    let gate = Gate::new();
    let task = TestTask::new("task").tests(&(gate.wait() + "echo 1 > /logs/verifier/reward.txt\n"));
    let started = "until grep -qx sleep /proc/[0-9]*/comm 2>/dev/null; do :; done";
    let job = suite
        .job()
        .task(task)
        .script(&format!("echo before; (sleep 600; echo never) & {started}; echo after"));
    let running = job.start();
    running.arrival(&gate).pass();
    let finished = running.finish().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null));
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "before\nafter\n");
    assert!(result.to_string().contains("sleep 600"), "survivors are recorded: {result:#}");
    job.expect_nothing_left();
}

pub fn a_timeout_ends_the_agent_after_the_multiplied_time(suite: &Suite) {
    let task = TestTask::new("task").config("[agent]\ntimeout_sec = 0.2\ninstall_timeout_sec = 9\n");
    let job = suite.job().task(task).script("trap '' TERM; sleep 600").set("timeout_multiplier", json!(2.0));
    let result = job.run().expect(1).trial("agent/set/task__1");
    assert_eq!(result["error"]["type"], "agent_execution_timeout");
    assert!(result["error"]["message"].as_str().unwrap().contains("0.4 seconds"), "{result:#}");
    assert!(result["durations"]["agent_execution_sec"].as_f64().unwrap() >= 0.4);
}
