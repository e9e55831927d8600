//! Every way in which a trial can fail, each with its documented behaviour.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{fs, time::Duration};

use serde_json::{Value, json};

use super::{
    Ability, Suite,
    suite::{fails, message, never_ran, says},
};
use crate::{Arrival, Gate, TestTask, long_enough};

/// An image of a registry that does not exist: nothing listens there.
const ABSENT: &str = "127.0.0.1:1/acme/absent:1";

pub fn a_failing_run_instruction_is_environment_build_failed_with_the_end_of_its_output(suite: &Suite) {
    let task =
        TestTask::new("task").dockerfile("FROM test\nRUN echo before\nRUN echo no such luck >&2; exit 7\n");
    let (finished, result) = fails(&suite.job().task(task).oracle(), "environment_build_failed");
    says(&result, "no such luck");
    assert!(message(&result).contains('7'), "{}", message(&result));
    assert!(finished.file("oracle/set/task__1/environment/build.txt").contains("before"));
    assert_eq!(result["tries"], 1, "a failing RUN is not tried again");
    never_ran(&result, &["agent_setup", "agent_execution", "verifier"]);
}

pub fn a_syntax_error_in_the_dockerfile_is_environment_build_failed_with_its_line(suite: &Suite) {
    let task = TestTask::new("task").dockerfile("FROM test\nRUNN echo\n");
    let (_, result) = fails(&suite.job().task(task).oracle(), "environment_build_failed");
    assert!(message(&result).contains('2') && message(&result).contains("RUNN"), "{}", message(&result));
}

pub fn neither_dockerfile_nor_image_is_environment_build_failed_naming_the_file(suite: &Suite) {
    let task = TestTask::new("task").without("environment/Dockerfile");
    let (_, result) = fails(&suite.job().task(task).oracle(), "environment_build_failed");
    says(&result, "environment/Dockerfile");
}

pub fn force_build_without_a_dockerfile_is_environment_build_failed_even_with_an_image(suite: &Suite) {
    let task = TestTask::new("task")
        .config("[environment]\ndocker_image = \"python:3.13\"\n")
        .without("environment/Dockerfile");
    let job = suite.job().task(task).oracle().set("environment/force_build", json!(true));
    let (_, result) = fails(&job, "environment_build_failed");
    says(&result, "environment/Dockerfile");
    says(&result, "remove `force_build` to use python:3.13");
    assert!(!message(&result).contains("docker_image"), "the task names an image: {}", message(&result));
}

pub fn an_instruction_path_that_cannot_be_created_is_environment_start_failed_naming_the_setting(
    suite: &Suite,
) {
    let job = suite.job().task(TestTask::new("task")).oracle();
    let job = job.set("instruction_path", json!("/proc/rollout/instruction.md"));
    let (_, result) = fails(&job, "environment_start_failed");
    says(&result, "`instruction_path` of the job is /proc/rollout/instruction.md");
    says(&result, "set a path where a file can be created");
    assert_eq!(result["tries"], 1, "another try would fail too");
    never_ran(&result, &["agent_execution", "verifier"]);
    job.expect_nothing_left();
}

pub fn an_unavailable_base_image_is_environment_build_failed(suite: &Suite) {
    let task = TestTask::new("task").dockerfile(&format!("FROM {ABSENT}\n"));
    let (_, result) = fails(&suite.job().task(task).oracle(), "environment_build_failed");
    says(&result, ABSENT);
}

pub fn a_slow_build_is_environment_build_timeout_and_stops(suite: &Suite) {
    long_enough(Duration::from_secs(8), |timeout| {
        let gate = Gate::new();
        let run = gate.wait();
        let task = TestTask::new("task")
            .dockerfile(&format!("FROM test\nSHELL [\"/bin/bash\", \"-c\"]\nRUN {}\n", run.trim_end()))
            .config(&format!("[environment]\nbuild_timeout_sec = {}\n", timeout.as_secs()));
        let job = suite.job().task(task).oracle();
        let (_, result) = fails(&job, "environment_build_timeout");
        says(&result, &format!("{} seconds", timeout.as_secs()));
        assert_eq!(result["tries"], 1, "a build timeout is not tried again");
        let arrival = gate.next();
        job.expect_nothing_left();
        arrival.map(Arrival::ended)
    });
}

pub fn a_build_that_the_network_failed_is_tried_again_and_one_that_fails_by_itself_is_not(suite: &Suite) {
    let task = |name: &str, words: &str| {
        TestTask::new(name).dockerfile(&format!("FROM test\nRUN echo \"{words}\" >&2; exit 100\n"))
    };
    let job = suite
        .job()
        .task(task("network", "Temporary failure resolving 'mirror.example'"))
        .task(task("typo", "no such package"))
        .oracle()
        .set("retry/max_attempts", json!(3));
    let finished = job.run().expect(1);
    for (name, tries) in [("network", 3), ("typo", 1)] {
        let result = finished.trial(&format!("oracle/set/{name}__1"));
        assert_eq!(result["error"]["type"], "environment_build_failed", "{result:#}");
        assert_eq!(result["tries"], tries, "{name}");
    }
    assert!(finished.file("oracle/set/network__1/tries/2/error.txt").contains("Temporary failure"));
}

pub fn an_unavailable_image_is_environment_image_pull_failed(suite: &Suite) {
    let task = TestTask::new("task").config(&format!("[environment]\ndocker_image = \"{ABSENT}\"\n"));
    let (_, result) = fails(&suite.job().task(task).oracle(), "environment_image_pull_failed");
    says(&result, ABSENT);
    never_ran(&result, &["agent_setup", "agent_execution", "verifier"]);
}

pub fn more_memory_than_the_machine_has_is_environment_resource_allocation_failed(suite: &Suite) {
    let task = TestTask::new("task").config("[environment]\nmemory = \"900Ti\"\n");
    let (_, result) = fails(&suite.job().task(task).oracle(), "environment_resource_allocation_failed");
    says(&result, "memory");
    assert_eq!(result["tries"], 1);
}

pub fn a_failing_install_script_is_agent_install_failed_and_nothing_else_runs(suite: &Suite) {
    let agent = json!({"name": "agent", "install": "echo no network >&2; exit 3", "execute": "true"});
    let (finished, result) =
        fails(&suite.job().task(TestTask::new("task")).agent(agent), "agent_install_failed");
    says(&result, "exited with code 3");
    says(&result, "no network");
    assert_eq!(finished.file("agent/set/task__1/setup/stderr.txt"), "no network\n");
    never_ran(&result, &["agent_execution", "verifier"]);
}

pub fn a_slow_install_script_is_agent_install_timeout(suite: &Suite) {
    let agent = json!({"name": "agent", "install": "sleep 600", "execute": "true"});
    let task = TestTask::new("task").config("[agent]\ninstall_timeout_sec = 0.3\n");
    let (_, result) = fails(&suite.job().task(task).agent(agent), "agent_install_timeout");
    never_ran(&result, &["agent_execution", "verifier"]);
}

pub fn a_failing_execute_script_is_agent_execution_failed_and_its_logs_are_collected(suite: &Suite) {
    let job = suite.job().task(TestTask::new("task")).script("echo evidence > /logs/agent/trace.txt; exit 4");
    let (finished, result) = fails(&job, "agent_execution_failed");
    says(&result, "exited with code 4");
    assert_eq!(finished.file("agent/set/task__1/logs/agent/trace.txt"), "evidence\n");
    assert_eq!(result["durations"]["agent_setup_sec"], 0.0);
    never_ran(&result, &["verifier"]);
}

pub fn an_agent_killed_by_a_signal_is_agent_execution_failed_naming_the_signal(suite: &Suite) {
    let (_, result) =
        fails(&suite.job().task(TestTask::new("task")).script("kill -TERM $$"), "agent_execution_failed");
    says(&result, "signal 15");
}

pub fn a_slow_agent_is_agent_execution_timeout_and_everything_it_started_is_gone(suite: &Suite) {
    let script = "setsid sh -c 'while :; do echo >> /logs/agent/alive; sleep 0.02; done' & sleep 600";
    long_enough(Duration::from_secs(3), |timeout| {
        let config = format!("[agent]\ntimeout_sec = {}\n", timeout.as_secs());
        let task = TestTask::new("task").config(&config).tests(
            "a=$(stat -c %s /logs/agent/alive); sleep 0.3; b=$(stat -c %s /logs/agent/alive)\n\
             if [ -z \"$a\" ]; then echo 0.5; elif [ \"$a\" = \"$b\" ]; then echo 1; else echo 0; fi \
             > /logs/verifier/reward.txt\n",
        );
        let job = suite.job().task(task).script(script).set("verifier", json!({"after_agent_error": "run"}));
        let finished = job.run().expect(0);
        let result = finished.trial("agent/set/task__1");
        assert_eq!(result["error"]["type"], "agent_execution_timeout", "{result:#}");
        // The process had no time to start.
        if result["reward"] == 0.5 {
            return None;
        }
        assert_eq!(result["reward"], 1.0, "the tests found a process of the agent alive: {result:#}");
        Some(())
    });
}

pub fn an_agent_timeout_skips_the_verifier(suite: &Suite) {
    let task = TestTask::new("task").config("[agent]\ntimeout_sec = 0.3\n");
    let (_, result) =
        fails(&suite.job().task(task).script("touch /app/done; sleep 600"), "agent_execution_timeout");
    says(&result, "0.3 seconds");
    never_ran(&result, &["verifier"]);
}

pub fn an_out_of_memory_kill_is_named_in_the_error(suite: &Suite) {
    if suite.lacks(Ability::LimitMemory) {
        return;
    }
    let task = TestTask::new("task").config("[environment]\nmemory = \"64Mi\"\n");
    let script = "x=$(head -c 400000000 /dev/zero | tr '\\0' a); echo ${#x}";
    let (_, result) = fails(&suite.job().task(task).script(script), "agent_execution_failed");
    says(&result, "ran out of memory");
}

pub fn tests_that_exit_non_zero_are_verifier_failed_whatever_reward_they_wrote(suite: &Suite) {
    let task = TestTask::new("task").tests("echo 1 > /logs/verifier/reward.txt; echo oops >&2; exit 1\n");
    let (finished, result) = fails(&suite.job().task(task).oracle(), "verifier_failed");
    says(&result, "oops");
    assert_eq!(finished.file("oracle/set/task__1/logs/verifier/stderr.txt"), "oops\n");
    assert_eq!(finished.file("oracle/set/task__1/logs/verifier/reward.txt"), "1\n");
}

pub fn slow_tests_are_verifier_timeout(suite: &Suite) {
    let task = TestTask::new("task").tests("sleep 600\n").config("[verifier]\ntimeout_sec = 0.3\n");
    let (_, result) = fails(&suite.job().task(task).oracle(), "verifier_timeout");
    says(&result, "0.3 seconds");
}

pub fn tests_without_a_reward_are_verifier_reward_missing_quoting_their_output(suite: &Suite) {
    let task = TestTask::new("task").tests("echo pytest: not found >&2\n");
    let (_, result) = fails(&suite.job().task(task).oracle(), "verifier_reward_missing");
    says(&result, "pytest: not found");
}

pub fn a_reward_that_is_not_one_finite_number_in_a_regular_file_is_verifier_reward_invalid(suite: &Suite) {
    let mut job = suite.job().oracle();
    let cases = [
        ("text", "echo passed > reward.txt"),
        ("nan", "echo nan > reward.txt"),
        ("two", "echo 1 0 > reward.txt"),
        ("empty", ": > reward.txt"),
        ("large", "head -c 70000 /dev/zero | tr '\\0' 1 > reward.txt"),
        ("link", "echo 1 > one; ln -s one reward.txt"),
        ("pipe", "mkfifo reward.txt"),
        ("directory", "mkdir reward.txt"),
        ("json", "echo '{\"score\": 1}' > reward.json"),
        ("bytes", "printf '\\377' > reward.txt"),
    ];
    for (name, script) in cases {
        job = job.task(TestTask::new(name).tests(&format!("cd /logs/verifier; {script}\n")));
    }
    let finished = job.run().expect(1);
    for (name, _) in cases {
        let result = finished.trial(&format!("oracle/set/{name}__1"));
        assert_eq!(result["error"]["type"], "verifier_reward_invalid", "{name}: {result:#}");
        assert_eq!(result["reward"], Value::Null);
    }
}

pub fn incomplete_tasks_are_task_invalid_without_an_environment_and_the_others_run(suite: &Suite) {
    let job = suite
        .job()
        .task(TestTask::new("good"))
        .task(TestTask::new("no-instruction").without("instruction.md"))
        .task(TestTask::new("no-tests").without("tests/test.sh"))
        .task(TestTask::new("bad-toml").config("version = [\n"))
        .oracle();
    let finished = job.run().expect(1);
    assert_eq!(finished.trial("oracle/set/good__1")["reward"], 1.0);
    for (task, words) in
        [("no-instruction", "instruction.md"), ("no-tests", "tests/test.sh"), ("bad-toml", "task.toml")]
    {
        let result = finished.trial(&format!("oracle/set/{task}__1"));
        assert_eq!(result["error"]["type"], "task_invalid", "{result:#}");
        assert!(message(&result).contains(words), "{}", message(&result));
        assert_eq!(result.get("environment"), None, "no environment was made");
        never_ran(&result, &["environment_setup", "agent_setup", "agent_execution", "verifier"]);
    }
    assert_eq!(finished.result()["failed_trials"], 3);
}

pub fn a_missing_registry_task_is_task_not_found(suite: &Suite) {
    let registry = json!([{"name": "set", "version": "1", "description": "", "tasks": [
        {"name": "there", "path": "set/there"}, {"name": "absent", "path": "set/absent"}]}]);
    let job = suite
        .job()
        .task(TestTask::new("there"))
        .file("registry.json", &registry.to_string())
        .oracle()
        .set("datasets", json!([{"registry": {"path": "registry.json"}, "name": "set"}]));
    let finished = job.run().expect(1);
    assert_eq!(finished.trial("oracle/set/there__1")["reward"], 1.0);
    let result = finished.trial("oracle/set/absent__1");
    assert_eq!(result["error"]["type"], "task_not_found", "{result:#}");
    never_ran(&result, &["environment_setup"]);
}

pub fn output_that_cannot_be_captured_is_internal_error(suite: &Suite) {
    let gate = Gate::new();
    let agent = json!({"name": "agent", "install": gate.wait(), "execute": "true"});
    let job = suite.job().task(TestTask::new("task")).agent(agent);
    let running = job.start();
    let arrival = running.arrival(&gate);
    fs::write(job.dir().join("agent/set/task__1/command"), "in the way").unwrap();
    arrival.pass();
    let finished = running.finish().expect(1);
    assert_eq!(finished.trial("agent/set/task__1")["error"]["type"], "internal_error");
}
