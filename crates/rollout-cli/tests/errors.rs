//! Every way a trial can fail, each with the behaviour that is documented for it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use rollout_testkit::{Finished, Gate, TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// Runs a job of one trial that has to fail in this way, and returns its result.
#[track_caller]
fn fails(job: &TestJob, kind: &str) -> (Finished, Value) {
    let finished = job.run().expect(1);
    let trial = only_trial(&finished);
    let result = finished.trial(&trial);
    assert_eq!(result["error"]["type"], kind, "{result:#}");
    assert_eq!(result["reward"], Value::Null);
    let text = finished.file(&format!("{trial}/error.txt"));
    assert!(text.starts_with(kind), "error.txt names the type: {text}");
    assert!(
        text.contains(result["error"]["message"].as_str().unwrap().trim_end()),
        "error.txt has the message: {text}"
    );
    let job = finished.result();
    assert_eq!((&job["failed_trials"], &job["completed_trials"]), (&json!(1), &json!(0)));
    assert_eq!(job["results"][0]["error"], kind);
    (finished, result)
}

fn only_trial(finished: &Finished) -> String {
    let row = &finished.result()["results"][0];
    let text = |key: &str| row[key].as_str().unwrap().to_owned();
    format!("{}/{}/{}__{}", text("agent_name"), text("dataset_name"), text("task_name"), row["attempt"])
}

fn message(result: &Value) -> &str {
    result["error"]["message"].as_str().unwrap()
}

/// The phases that did not run have neither a duration nor timestamps.
#[track_caller]
fn never_ran(result: &Value, phases: &[&str]) {
    for phase in phases {
        assert_eq!(result["durations"][format!("{phase}_sec")], Value::Null, "{phase}");
        assert_eq!(result["timestamps"][format!("{phase}_started_at")], Value::Null, "{phase}");
        assert_eq!(result["timestamps"][format!("{phase}_ended_at")], Value::Null, "{phase}");
    }
}

#[test]
fn a_failing_run_instruction_is_environment_build_failed_with_the_end_of_its_output() {
    let task =
        TestTask::new("task").dockerfile("FROM test\nRUN echo before\nRUN echo no such luck >&2; exit 7\n");
    let (finished, result) = fails(&job().task(task).oracle(), "environment_build_failed");
    assert!(message(&result).contains("no such luck"), "{}", message(&result));
    assert!(message(&result).contains('7'), "{}", message(&result));
    assert!(finished.file("oracle/set/task__1/environment/build.txt").contains("before"));
    assert_eq!(result["tries"], 1, "a failing RUN is not tried again");
    never_ran(&result, &["agent_setup", "agent_execution", "verifier"]);
}

#[test]
fn a_syntax_error_in_the_dockerfile_is_environment_build_failed_with_its_line() {
    let task = TestTask::new("task").dockerfile("FROM test\nRUNN echo\n");
    let (_, result) = fails(&job().task(task).oracle(), "environment_build_failed");
    assert!(message(&result).contains('2') && message(&result).contains("RUNN"), "{}", message(&result));
}

#[test]
fn neither_dockerfile_nor_image_is_environment_build_failed_naming_the_file() {
    let task = TestTask::new("task").without("environment/Dockerfile");
    let (_, result) = fails(&job().task(task).oracle(), "environment_build_failed");
    assert!(message(&result).contains("environment/Dockerfile"), "{}", message(&result));
}

#[test]
fn force_build_without_a_dockerfile_is_environment_build_failed_even_with_an_image() {
    let task = TestTask::new("task")
        .config("[environment]\ndocker_image = \"python:3.13\"\n")
        .without("environment/Dockerfile");
    let job = job().task(task).oracle().set("environment/force_build", json!(true));
    let (_, result) = fails(&job, "environment_build_failed");
    assert!(message(&result).contains("environment/Dockerfile"), "{}", message(&result));
}

#[test]
fn a_base_image_without_a_mapping_is_refused_with_the_mapping_to_write() {
    let task = TestTask::new("task").dockerfile("FROM python:3.13-slim\n");
    let job = job().task(task).oracle().set("environment/provider_config", json!({}));
    let (_, result) = fails(&job, "environment_build_failed");
    assert!(message(&result).contains("\"python:3.13-slim\": host"), "{}", message(&result));
}

#[test]
fn a_slow_build_is_environment_build_timeout() {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nRUN sleep 600\n")
        .config("[environment]\nbuild_timeout_sec = 0.5\n");
    let (_, result) = fails(&job().task(task).oracle(), "environment_build_timeout");
    assert!(message(&result).contains("0.5 seconds"), "{}", message(&result));
    assert_eq!(result["tries"], 1, "a build timeout is not tried again");
}

#[test]
fn an_image_that_is_not_to_be_had_is_environment_image_pull_failed() {
    let task = TestTask::new("task").config("[environment]\ndocker_image = \"acme/app:1\"\n");
    let job = job().task(task).oracle().set("environment/provider_config", json!({}));
    let (_, result) = fails(&job, "environment_image_pull_failed");
    assert!(message(&result).contains("\"acme/app:1\": host"), "{}", message(&result));
}

#[test]
fn an_image_that_goes_missing_is_environment_start_failed_after_every_try() {
    let gate = Gate::new();
    let task = TestTask::new("task").dockerfile("FROM test\nRUN touch /built\n");
    let job = job()
        .task(task)
        .script(&gate.wait())
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1))
        .set("retry/max_attempts", json!(2));
    let running = job.start();
    let first = gate.arrival();
    fs::rename(job.state_dir().join("layers"), job.root().join("gone")).unwrap();
    first.pass();
    let finished = running.finish().expect(1);
    let result = finished.trial("agent/set/task__2");
    assert_eq!(result["error"]["type"], "environment_start_failed", "{result:#}");
    assert_eq!(result["tries"], 2);
    assert!(finished.file("agent/set/task__2/tries/1/error.txt").starts_with("environment_start_failed"));
}

#[test]
fn more_memory_than_the_machine_has_is_environment_resource_allocation_failed() {
    let task = TestTask::new("task").config("[environment]\nmemory = \"900Ti\"\n");
    let (_, result) = fails(&job().task(task).oracle(), "environment_resource_allocation_failed");
    assert!(message(&result).contains("memory"), "{}", message(&result));
    assert_eq!(result["tries"], 1);
}

#[test]
fn a_failing_install_script_is_agent_install_failed_and_nothing_else_runs() {
    let agent = json!({"name": "agent", "install": "echo no network >&2; exit 3", "execute": "true"});
    let (finished, result) = fails(&job().task(TestTask::new("task")).agent(agent), "agent_install_failed");
    assert!(message(&result).contains("exited with code 3"), "{}", message(&result));
    assert!(message(&result).contains("no network"), "{}", message(&result));
    assert_eq!(finished.file("agent/set/task__1/setup/stderr.txt"), "no network\n");
    never_ran(&result, &["agent_execution", "verifier"]);
}

#[test]
fn a_slow_install_script_is_agent_install_timeout() {
    let agent = json!({"name": "agent", "install": "sleep 600", "execute": "true"});
    let task = TestTask::new("task").config("[agent]\ninstall_timeout_sec = 0.3\n");
    let (_, result) = fails(&job().task(task).agent(agent), "agent_install_timeout");
    never_ran(&result, &["agent_execution", "verifier"]);
}

#[test]
fn a_failing_execute_script_is_agent_execution_failed_and_its_logs_are_collected() {
    let job = job().task(TestTask::new("task")).script("echo evidence > /logs/agent/trace.txt; exit 4");
    let (finished, result) = fails(&job, "agent_execution_failed");
    assert!(message(&result).contains("exited with code 4"), "{}", message(&result));
    assert_eq!(finished.file("agent/set/task__1/logs/agent/trace.txt"), "evidence\n");
    never_ran(&result, &["agent_setup", "verifier"]);
}

#[test]
fn an_agent_killed_by_a_signal_is_agent_execution_failed_naming_the_signal() {
    let (_, result) =
        fails(&job().task(TestTask::new("task")).script("kill -TERM $$"), "agent_execution_failed");
    assert!(message(&result).contains("signal 15"), "{}", message(&result));
}

#[test]
fn a_slow_agent_is_agent_execution_timeout_and_everything_it_started_is_gone() {
    let script = "setsid sh -c 'while :; do i=$((i + 1)); echo $i >> /logs/agent/alive; done' & sleep 600";
    let task = TestTask::new("task").config("[agent]\ntimeout_sec = 0.5\n").tests(
        "a=$(stat -c %s /logs/agent/alive); sleep 0.3; b=$(stat -c %s /logs/agent/alive)\n\
         if [ -n \"$a\" ] && [ \"$a\" = \"$b\" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    );
    let job = job().task(task).script(script).set("verifier", json!({"after_agent_error": "run"}));
    let finished = job.run().expect(0);
    let result = finished.trial("agent/set/task__1");
    assert_eq!(result["error"]["type"], "agent_execution_timeout", "{result:#}");
    assert_eq!(result["reward"], 1.0, "the tests found a process of the agent alive: {result:#}");
}

#[test]
fn an_agent_timeout_skips_the_verifier() {
    let task = TestTask::new("task").config("[agent]\ntimeout_sec = 0.3\n");
    let (_, result) =
        fails(&job().task(task).script("touch /app/done; sleep 600"), "agent_execution_timeout");
    assert!(message(&result).contains("0.3 seconds"), "{}", message(&result));
    never_ran(&result, &["verifier"]);
}

#[test]
fn tests_that_exit_non_zero_are_verifier_failed_whatever_reward_they_wrote() {
    let task = TestTask::new("task").tests("echo 1 > /logs/verifier/reward.txt; echo oops >&2; exit 1\n");
    let (finished, result) = fails(&job().task(task).oracle(), "verifier_failed");
    assert!(message(&result).contains("oops"), "{}", message(&result));
    assert_eq!(finished.file("oracle/set/task__1/logs/verifier/stderr.txt"), "oops\n");
    assert_eq!(finished.file("oracle/set/task__1/logs/verifier/reward.txt"), "1\n");
}

#[test]
fn slow_tests_are_verifier_timeout() {
    let task = TestTask::new("task").tests("sleep 600\n").config("[verifier]\ntimeout_sec = 0.3\n");
    let (_, result) = fails(&job().task(task).oracle(), "verifier_timeout");
    assert!(message(&result).contains("0.3 seconds"), "{}", message(&result));
}

#[test]
fn tests_without_a_reward_are_verifier_reward_missing_quoting_their_output() {
    let task = TestTask::new("task").tests("echo pytest: not found >&2\n");
    let (_, result) = fails(&job().task(task).oracle(), "verifier_reward_missing");
    assert!(message(&result).contains("pytest: not found"), "{}", message(&result));
}

#[test]
fn what_is_not_one_finite_number_in_a_regular_file_is_verifier_reward_invalid() {
    let mut job = job().oracle();
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

#[test]
fn incomplete_tasks_are_task_invalid_without_an_environment_and_the_others_run() {
    let job = job()
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

#[test]
fn strict_refuses_a_job_with_an_invalid_task() {
    let job = job().task(TestTask::new("good")).task(TestTask::new("bad").without("instruction.md")).oracle();
    let finished = job.rollout(&["run", "job.yaml", "--strict"]).expect(2);
    assert!(finished.stderr().contains("instruction.md"), "{}", finished.stderr());
    assert!(!job.dir().exists());
}

#[test]
fn a_registry_task_that_is_not_there_is_task_not_found() {
    let registry = json!([{"name": "set", "version": "1", "description": "", "tasks": [
        {"name": "there", "path": "set/there"}, {"name": "absent", "path": "set/absent"}]}]);
    let job = job()
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

#[test]
fn output_that_cannot_be_captured_is_internal_error() {
    let gate = Gate::new();
    let agent = json!({"name": "agent", "install": gate.wait(), "execute": "true"});
    let job = job().task(TestTask::new("task")).agent(agent);
    let running = job.start();
    let arrival = gate.arrival();
    fs::write(job.dir().join("agent/set/task__1/command"), "in the way").unwrap();
    arrival.pass();
    let finished = running.finish().expect(1);
    assert_eq!(finished.trial("agent/set/task__1")["error"]["type"], "internal_error");
}

#[test]
fn an_out_of_memory_kill_is_named_in_the_error() {
    let task = TestTask::new("task").config("[environment]\nmemory = \"64Mi\"\n");
    let script = "x=$(head -c 400000000 /dev/zero | tr '\\0' a); echo ${#x}";
    let (_, result) = fails(&job().task(task).script(script), "agent_execution_failed");
    assert!(message(&result).contains("ran out of memory"), "{}", message(&result));
}

#[test]
fn a_build_that_the_network_failed_is_tried_again_and_one_that_fails_by_itself_is_not() {
    let task = |name: &str, words: &str| {
        TestTask::new(name).dockerfile(&format!("FROM test\nRUN echo \"{words}\" >&2; exit 100\n"))
    };
    let job = job()
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
