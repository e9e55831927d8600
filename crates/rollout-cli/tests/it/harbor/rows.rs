//! The fields and conventions of a task with one step.

use rollout_testkit::{TestJob, TestTask};
use serde_json::json;

use super::{docker, expect_rewards, graded_by, native, result, task};

/// A task that is solved if the solution runs this command successfully.
pub(super) fn solved_by(name: &str, toml: &str, command: &str) -> TestTask {
    task(name, toml).solution(&format!("if {command}; then touch /app/done; fi\n"))
}

fn rewards() -> Vec<(TestTask, f64)> {
    let writes = |name: &str, tests: &str| task(name, "").tests(tests);
    let dir = "/logs/verifier";
    vec![
        (
            writes(
                "json-first",
                &format!("echo 0 > {dir}/reward.txt; echo '{{\"reward\": 1}}' > {dir}/reward.json"),
            ),
            1.0,
        ),
        (
            writes("json-flat", &format!("echo '{{\"accuracy\": 0.5, \"style\": 1}}' > {dir}/reward.json")),
            0.75,
        ),
        (writes("json-true", &format!("echo '{{\"reward\": true}}' > {dir}/reward.json")), 1.0),
        (
            writes(
                "shebang-other",
                &format!("#!/usr/bin/perl\nopen F, '>{dir}/reward.txt'; print F 1; close F;\n"),
            ),
            1.0,
        ),
        (
            writes(
                "shebang-flags",
                &format!("#!/bin/bash -e\necho 0 > {dir}/reward.txt\nfalse\necho 1 > {dir}/reward.txt\n"),
            ),
            0.0,
        ),
        (writes("exit-code", &format!("echo 1 > {dir}/reward.txt; exit 3")), 1.0),
    ]
}

fn fields() -> Vec<(TestTask, f64)> {
    let is_done = graded_by("[ -e /app/done ]");
    vec![
        (task("oracle-exit", "").solution("touch /app/done; exit 3\n"), 1.0),
        (solved_by("frontend", "", "[ \"$DEBIAN_FRONTEND\" = noninteractive ]"), 1.0),
        (solved_by("solution-env", "[solution.env]\nX = \"${UNSET:-7}\"\n", "[ \"$X\" = 7 ]"), 1.0),
        (
            solved_by(
                "environment-env",
                "[environment.env]\nX = \"e\"\nY = \"e\"\n[verifier.env]\nY = \"v\"\n",
                "[ \"$X$Y\" = ee ]",
            )
            .tests(&graded_by("[ -e /app/done ] && [ \"$X$Y\" = ev ]")),
            1.0,
        ),
        (
            task("workdir", "[environment]\nworkdir = \"/else/where\"\n")
                .dockerfile("FROM test\nWORKDIR /app\nRUN mkdir -p /else/where\n")
                .solution("touch here\n")
                .tests(&graded_by("[ -e /else/where/here ] && [ -e here ]")),
            1.0,
        ),
        (
            task("users", "[agent]\nuser = \"nobody\"\n[verifier]\nuser = 1\n")
                .solution("id -un > /tmp/agent\n")
                .tests(&graded_by("[ \"$(cat /tmp/agent) $(id -u)\" = 'nobody 1' ]")),
            1.0,
        ),
        (solved_by("solution-path", "", "[ \"$0\" = /solution/solve.sh ]"), 1.0),
        (
            task("oracle-output", "").solution("echo shown; echo also >&2\n").tests(&graded_by(
                "grep -q shown /logs/agent/oracle.txt && grep -q also /logs/agent/oracle.txt",
            )),
            1.0,
        ),
        (task("host-main", "").tests(&graded_by("getent hosts main > /dev/null")), 1.0),
        (
            task("image-files", "[environment]\ndocker_image = \"test\"\nworkdir = \"/data\"\n")
                .without("environment/Dockerfile")
                .file("environment/data.txt", "data")
                .tests(&graded_by("[ \"$(cat /data/data.txt)\" = data ]")),
            1.0,
        ),
        (
            solved_by("canary", "", "[ \"$(cat /tmp/instruction.md)\" = 'Do it.' ]")
                .file("instruction.md", "<!-- a-canary GUID 1 -->\n\nDo it.\n"),
            1.0,
        ),
        (task("prior-trajectory", "").file("trajectory.json", "{}").tests(&is_done), 1.0),
        (
            solved_by(
                "healthcheck",
                "[environment.healthcheck]\ncommand = \"[ -e /tmp/ready ] || ! touch /tmp/ready\"\ninterval_sec = 0\n",
                "[ -e /tmp/ready ]",
            ),
            1.0,
        ),
        (
            solved_by(
                "no-network",
                "[environment]\nnetwork_mode = \"no-network\"\n",
                "[ $(grep -c : /proc/net/dev) = 1 ]",
            ),
            1.0,
        ),
        (
            solved_by(
                "no-internet",
                "[environment]\nallow_internet = false\n",
                "[ $(grep -c : /proc/net/dev) = 1 ]",
            ),
            1.0,
        ),
    ]
}

fn artifacts() -> Vec<(TestTask, f64)> {
    let collected = "[[verifier.collect]]\ncommand = \"echo x > /logs/artifacts/dump\"\n[[verifier.collect]]\ncommand = \"false\"\n";
    vec![
        (
            task("logs-artifacts", "").solution("echo x > /logs/artifacts/a\n").tests(&graded_by("[ -e /logs/artifacts/a ]")),
            1.0,
        ),
        (task("collect", collected).tests(&graded_by("[ -e /logs/artifacts/dump ]")), 1.0),
        (
            task(
                "separate",
                "artifacts = [\"/app/a\", {source = \"/app/out\", destination = \"o\", exclude = [\"*.tmp\"]}, \"/app/none\"]\n\
                 [verifier]\nenvironment_mode = \"separate\"\n",
            )
            .solution("mkdir /app/out; echo 1 > /app/a; touch /app/secret /app/out/kept /app/out/left.tmp\n")
            .tests(&graded_by(
                "[ -e /app/a ] && [ -e /app/out/kept ] && [ ! -e /app/out/left.tmp ] && [ ! -e /app/secret ]",
            )),
            1.0,
        ),
    ]
}

/// Tasks whose tests here are not only about the reward.
pub(super) fn others() -> Vec<TestTask> {
    vec![emptied(), claimed(), tests_start()]
}

/// Harbor empties the target of each copied directory (`upload_artifacts` in its `artifact_handler.py`).
fn emptied() -> TestTask {
    let toml = "artifacts = [\"/srv/out\", \"/srv/gone\"]\n[verifier]\nenvironment_mode = \"separate\"\n";
    let image =
        "FROM test\nRUN mkdir -p /app /srv/out /srv/gone && touch /srv/out/old /srv/gone/old\nWORKDIR /app\n";
    task("emptied", toml)
        .dockerfile(image)
        .solution("rm -r /srv/out/old /srv/gone\n")
        .tests(&graded_by("[ -d /srv/out ] && [ ! -e /srv/out/old ] && [ -e /srv/gone/old ]"))
}

fn an_emptied_directory(job: TestJob) {
    let finished = expect_rewards(job, vec![(emptied(), 1.0)]);
    let list = finished.file("oracle/set/emptied__1/artifacts/manifest.json");
    assert!(list.contains("\"empty\"") && list.contains("\"failed\""), "{list}");
}

#[test]
fn separate_tests_see_that_the_agent_emptied_a_directory_on_native() {
    an_emptied_directory(native());
}

#[test]
fn separate_tests_see_that_the_agent_emptied_a_directory_on_docker() {
    an_emptied_directory(docker());
}

/// Harbor keeps the first of two artifacts that want the same place (`_find_conflicting_claim` in its
/// `artifact_handler.py`).
fn claimed() -> TestTask {
    task("claimed", "artifacts = [\"/app/a\", {source = \"/app/b\", destination = \"app/a\"}]\n")
        .solution("echo first > /app/a; echo second > /app/b; touch /app/done\n")
}

#[test]
fn the_second_artifact_for_a_place_is_skipped() {
    let finished = expect_rewards(native(), vec![(claimed(), 1.0)]);
    let list = finished.file("oracle/set/claimed__1/artifacts/manifest.json");
    let list: Vec<serde_json::Value> = serde_json::from_str(&list).unwrap();
    assert_eq!((&list[0]["status"], &list[1]["status"]), (&json!("ok"), &json!("skipped")), "{list:?}");
    assert_eq!(finished.file("oracle/set/claimed__1/artifacts/app/a"), "first\n");
}

#[test]
fn a_missing_variable_of_the_tests_rejects_only_its_task() {
    let job = native()
        .task(task("whole", ""))
        .task(task("lacking", "[verifier.env]\nX = \"${ABSENT_VARIABLE}\"\n"))
        .oracle();
    let finished = job.run().expect(1);
    assert_eq!(result(&finished, "whole")["reward"], 1.0);
    let error = result(&finished, "lacking")["error"].clone();
    assert_eq!(error["type"], "task_invalid", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("[verifier.env] X") && message.contains("ABSENT_VARIABLE"), "{message}");
}

/// `[verifier.environment]` replaces `[environment]` for separate tests (`resolve_effective_verifier_env_config` in
/// Harbor's `verifier_mode.py`).
fn settings_of_tests(job: TestJob, check: &str) {
    let toml = "artifacts = [\"/app\"]\n[environment.env]\nA = \"task\"\n\
        [verifier.environment]\nworkdir = \"/tmp\"\nmemory_mb = 300\nnetwork_mode = \"no-network\"\nhealthcheck = {command = \"false\"}\n\
        [verifier.environment.env]\nB = \"${UNSET:-own}\"\n[verifier.env]\nC = \"tests\"\n";
    let task = task("tests-settings", toml)
        .solution("[ \"$A\" = task ] && touch /app/done\n")
        .tests(&graded_by(&format!(
            "[ -e /app/done ] && [ \"$PWD:$A:$B:$C\" = /tmp::own:tests ] && [ $(grep -c : /proc/net/dev) = 1 ]{check}"
        )));
    expect_rewards(job, vec![(task, 1.0)]);
}

#[test]
fn separate_tests_have_the_settings_of_their_own_environment_on_native() {
    settings_of_tests(native(), "");
}

#[test]
fn separate_tests_have_the_settings_of_their_own_environment_on_docker() {
    let limit = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null";
    let job = docker().set("environment/provider_config", json!({}));
    settings_of_tests(job, &format!(" && {limit} | grep -qx 314572800"));
}

/// Tests in an image of their own, which has them in `/tests`.
fn images_of_tests() -> Vec<(TestTask, f64)> {
    let judged = "FROM test\nCOPY . /tests\nRUN touch /judge && chmod -x /tests/test.sh\n";
    let tests = graded_by("[ -e /judge ] && [ -e /app/a ]");
    vec![
        (
            task("tests-image", "artifacts = [\"/app/a\"]\n[verifier]\nenvironment_mode = \"separate\"\n")
                .solution("touch /app/a\n")
                .file("tests/Dockerfile", judged)
                .tests(&tests),
            1.0,
        ),
        // The table alone means a separate environment.
        (
            task("tests-table", "artifacts = [\"/app/a\"]\n[verifier.environment]\n")
                .solution("touch /app/a /app/b\n")
                .tests(&graded_by("[ -e /app/a ] && [ ! -e /app/b ]")),
            1.0,
        ),
    ]
}

/// Tasks for every provider, with the rewards of the oracle.
pub(super) fn rows() -> Vec<(TestTask, f64)> {
    rewards().into_iter().chain(fields()).chain(artifacts()).chain(images_of_tests()).collect()
}

fn every_row(job: TestJob) {
    let finished = expect_rewards(job, rows());
    assert_eq!(result(&finished, "json-flat")["rewards"], json!({"accuracy": 0.5, "style": 1.0}));
    let listed: serde_json::Value =
        serde_json::from_str(&finished.file("oracle/set/separate__1/artifacts/manifest.json")).unwrap();
    let listed: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| json!([entry["source"], entry["destination"], entry["type"], entry["status"]]))
        .collect();
    let expected = json!([
        ["/app/a", "app/a", "file", "ok"],
        ["/app/out", "o", "directory", "ok"],
        ["/app/none", "app/none", null, "failed"],
        ["/logs/artifacts", "logs/artifacts", "directory", "empty"],
    ]);
    assert_eq!(serde_json::Value::from(listed), expected);
    assert_eq!(finished.file("oracle/set/separate__1/artifacts/app/a"), "1\n");
    let notes = result(&finished, "collect")["notes"].to_string();
    assert!(notes.contains("`false` of verifier.collect exited with code 1"), "{notes}");
}

#[test]
fn every_row_has_the_reward_of_harbor_on_native() {
    every_row(native());
}

/// A service that a timed-out agent started is still there for the tests.
fn timeout(job: TestJob) {
    let waits = "rm -f /app/alive; for _ in $(seq 6000); do [ -e /app/alive ] && break; sleep 0.1; done";
    let job = job
        .task(
            task("timeout", "[agent]\ntimeout_sec = 1\n")
                .tests(&format!("{waits}\n{}", graded_by("[ -e /app/alive ]"))),
        )
        .script("while :; do touch /app/alive; sleep 0.1; done");
    let result = job.run().expect(0).trial("agent/set/timeout__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(result["error"]["type"], "agent_execution_timeout", "{result:#}");
    job.expect_nothing_left();
}

#[test]
fn tests_run_after_a_timeout_with_the_agents_processes_on_native() {
    timeout(native());
}

#[test]
fn tests_run_after_a_timeout_with_the_agents_processes_on_docker() {
    timeout(docker());
}

#[test]
fn an_agent_that_fails_is_graded_and_a_task_without_a_version_is_not() {
    let job =
        native().task(task("harbor", "")).task(TestTask::new("plain")).script("touch /app/done; exit 4");
    let finished = job.run().expect(1);
    let (harbor, plain) = (finished.trial("agent/set/harbor__1"), finished.trial("agent/set/plain__1"));
    assert_eq!(
        (&harbor["reward"], &harbor["error"]["type"]),
        (&json!(1.0), &json!("agent_execution_failed"))
    );
    assert_eq!((&plain["reward"], &plain["error"]["type"]), (&json!(null), &json!("agent_execution_failed")));
}

#[test]
fn the_job_gives_the_rules_of_harbor_to_all_tasks() {
    let both = "echo 0 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json\n";
    let job = native().task(TestTask::new("plain").tests(both)).oracle().set("compat", json!("harbor"));
    assert_eq!(result(&job.run().expect(0), "plain")["reward"], 1.0);
}

/// The rules come from the job, so the task without test.sh cannot be refused when it is read.
#[test]
fn tests_of_an_older_task_can_be_in_their_image_if_the_job_has_the_rules_of_harbor() {
    let tests = graded_by("[ -e /judge ] && [ -e /app/a ]");
    let image =
        format!("FROM test\nRUN mkdir /tests && touch /judge && echo {} > /tests/test.sh\n", quoted(&tests));
    let task = TestTask::new("older")
        .config("version = \"1.0\"\nartifacts = [\"app/a/\"]\n[verifier]\nenvironment_mode = \"separate\"\n")
        .solution("touch /app/a\n")
        .without("tests/test.sh")
        .file("tests/Dockerfile", &image);
    let job = || native().task(task.clone()).oracle();
    assert_eq!(result(&job().set("compat", json!("harbor")).run().expect(0), "older")["reward"], 1.0);
    let job = job();
    let message = result(&job.run().expect(1), "older")["error"]["message"].to_string();
    assert!(message.contains("tests/test.sh is missing (with `compat: harbor`"), "{message}");
    let found = job.rollout(&["validate", "set"]).expect(2).stdout();
    assert!(found.contains("tests/test.sh is missing"), "{found}");
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.trim_end().replace('\'', "'\\''"))
}

#[test]
fn a_dataset_or_an_entry_of_a_registry_gives_the_rules_of_harbor_to_its_tasks_only() {
    let both = "echo 0 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json\n";
    let entry = |compat: &str| json!([{"name": "listed", "compat": compat, "tasks": [{"name": "plain", "path": "set/plain"}]}]);
    let job = native()
        .task(TestTask::new("plain").tests(both))
        .script("exit 1")
        .file("registry.json", &entry("harbor").to_string())
        .set(
            "datasets",
            json!([
                {"path": "set", "name": "ours"},
                {"path": "set", "name": "theirs", "compat": "harbor"},
                {"registry": {"path": "registry.json"}, "name": "listed"},
            ]),
        );
    let expected = [("ours", json!(null)), ("theirs", json!(1.0)), ("listed", json!(1.0))];
    let finished = job.run().expect(1);
    for (dataset, reward) in &expected {
        assert_eq!(finished.trial(&format!("agent/{dataset}/plain__1"))["reward"], *reward, "{dataset}");
    }
    // A resume does not read the registry again, and has the rules of the first run.
    let job = job.file("registry.json", &entry("unknown").to_string());
    let resumed = job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(1);
    for (dataset, reward) in &expected {
        let result = resumed.trial(&format!("agent/{dataset}/plain__1"));
        assert_eq!(result["reward"], *reward, "{dataset}, again: {result:#}");
    }
}

#[test]
fn a_health_check_that_keeps_failing_is_an_error_that_quotes_it() {
    let check =
        "[environment.healthcheck]\ncommand = \"echo not yet; false\"\ninterval_sec = 0\nretries = 2\n";
    let job = native().task(task("ill", check)).oracle();
    let result = result(&job.run().expect(1), "ill");
    assert_eq!(result["error"]["type"], "environment_start_failed", "{result:#}");
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.contains("exited with code 1, 2 times in a row\nnot yet"), "{message}");
}

/// Tasks whose image starts or checks something, which needs an engine.
pub(super) fn images_that_start() -> Vec<(TestTask, f64)> {
    let entry = "FROM test\nWORKDIR /app\nCOPY entry.sh /\nENTRYPOINT [\"bash\", \"/entry.sh\"]\n";
    // More than a pipe holds is printed first.
    let script = "printf '%0204800d' 0; echo \"$SEED\" > /tmp/entered; [ \"$*\" = 'sh -c sleep infinity' ] && touch /tmp/asked; exec \"$@\"\n";
    let healthy =
        "FROM test\nWORKDIR /app\nHEALTHCHECK --interval=1s CMD [ -e /tmp/seen ] || ! touch /tmp/seen\n";
    let entered = "until [ -e /tmp/asked ]; do sleep 0.05; done; [ \"$(cat /tmp/entered)\" = seed ]";
    vec![
        (
            solved_by("entrypoint", "[environment.env]\nSEED = \"seed\"\n", entered)
                .dockerfile(entry)
                .file("environment/entry.sh", script),
            1.0,
        ),
        (solved_by("image-health", "", "[ -e /tmp/seen ]").dockerfile(healthy), 1.0),
    ]
}

#[test]
fn what_an_image_starts_runs_on_native() {
    let inherited =
        "FROM test AS base\nCOPY entry.sh /\nENTRYPOINT [\"bash\", \"/entry.sh\"]\nFROM base\nWORKDIR /app\n";
    let task = solved_by("inherited-entrypoint", "", "until [ -e /tmp/entered ]; do sleep 0.05; done")
        .dockerfile(inherited)
        .file("environment/entry.sh", "touch /tmp/entered; exec \"$@\"\n");
    let finished = expect_rewards(native(), images_that_start().into_iter().chain([(task, 1.0)]).collect());
    let printed = finished.file("oracle/set/entrypoint__1/environment/entrypoint/stdout.txt");
    assert_eq!(printed.len(), 204_800);
}

#[test]
fn the_logs_of_a_trial_stay_if_the_image_of_its_tests_is_there_already() {
    let toml = "artifacts = [\"/app/done\"]\n[verifier]\nenvironment_mode = \"separate\"\n";
    let task = solved_by("entered", toml, "true")
        .dockerfile("FROM test\nWORKDIR /app\nCOPY entry.sh /\nENTRYPOINT [\"bash\", \"/entry.sh\"]\n")
        .file("environment/entry.sh", "echo entered; exec \"$@\"\n")
        .file("tests/Dockerfile", "FROM test\nCOPY . /tests\n");
    let job = native().task(task).oracle();
    for name in ["first", "second"] {
        job.rollout(&["run", "job.yaml", "--set", &format!("name={name}")]).expect(0);
        let log = job.root().join("jobs").join(name);
        let log = log.join("oracle/set/entered__1/environment/entrypoint/stdout.txt");
        assert_eq!(std::fs::read_to_string(log).unwrap(), "entered\n", "{name}");
    }
}

/// Harbor starts the environment of separate tests like that of the agent (`_separate_verifier_env` in its `trial.py`).
fn tests_start() -> TestTask {
    let image = "FROM test\nWORKDIR /app\nCOPY . /tests\nENV SEED=judge\nENTRYPOINT [\"bash\", \"/tests/entry.sh\"]\n\
        HEALTHCHECK --interval=1s CMD [ -e /tmp/healthy ] || ! touch /tmp/healthy\n";
    let toml = "artifacts = [\"/app/done\"]\n[verifier]\nenvironment_mode = \"separate\"\n";
    let entered = "for _ in $(seq 6000); do [ -s /tmp/entered ] && break; sleep 0.1; done\n";
    let check = "[ -e /app/done ] && [ -e /tmp/healthy ] && [ \"$(cat /tmp/entered)\" = judge ]";
    task("tests-start", toml)
        .file("tests/Dockerfile", image)
        .file("tests/entry.sh", "echo $SEED > /tmp/entered; exec \"$@\"\n")
        .tests(&format!("{entered}{}", graded_by(check)))
}

fn image_of_tests_that_starts(job: TestJob) {
    expect_rewards(job, vec![(tests_start(), 1.0)]);
}

#[test]
fn what_the_image_of_separate_tests_starts_runs_on_native() {
    image_of_tests_that_starts(native());
}

#[test]
fn what_the_image_of_separate_tests_starts_runs_on_docker() {
    image_of_tests_that_starts(docker());
}

/// Only the agent is without the network: the install script and the tests have it.
#[test]
fn the_network_of_a_phase_is_taken_away_on_docker() {
    let interfaces = "$(grep -c : /proc/net/dev)";
    let job = docker()
        .set("environment/provider_config", json!({}))
        .task(
            task("phase", "[agent]\nnetwork_mode = \"no-network\"\n")
                .tests(&graded_by(&format!("[ \"$(cat /app/seen)\" = '2 1' ] && [ {interfaces} = 2 ]"))),
        )
        .agent(json!({
            "name": "agent",
            "install": format!("echo {interfaces} > /tmp/installed"),
            "execute": format!("echo $(cat /tmp/installed) {interfaces} > /app/seen"),
        }));
    let result = job.run().expect(0).trial("agent/set/phase__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
}
