//! Tests of a finished job that run again, without its agents.

use std::{fs, path::Path};

use rollout_testkit::{Gate, TestEngine, TestJob, TestTask};
use serde_json::{Value, json};

/// Solved if the agent wrote `ok`.
const TESTS: &str = "if grep -qx ok /app/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n";

/// Also accepts `fine`.
const LENIENT: &str =
    "if grep -Eqx 'ok|fine' /app/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n";

const SEPARATE: &str = "artifacts = [\"/app/answer\"]\n[verifier]\nenvironment_mode = \"separate\"\n";

fn task(name: &str) -> TestTask {
    TestTask::new(name).tests(TESTS)
}

/// Tasks `good` and `near`; the agent writes `ok` for the first, and `fine` for the second.
fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task("good").file("instruction.md", "ok\n"))
        .task(task("near").file("instruction.md", "fine\n"))
        .script("cp $ROLLOUT_TASK_INSTRUCTION /app/answer; echo worked > /logs/agent/log.txt")
}

fn preserved() -> TestJob {
    job().set("environment/preserve_env", json!("always"))
}

fn change_tests(job: &TestJob, script: &str) {
    for task in ["good", "near"] {
        fs::write(job.root().join(format!("set/{task}/tests/test.sh")), script).unwrap();
    }
}

fn trial(job: &TestJob, path: &str) -> Value {
    let text = fs::read(job.root().join("jobs").join(path).join("result.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Every file below a directory, with its content.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn changed_tests_run_on_preserved_environments_and_the_finished_job_stays() {
    let job = preserved();
    job.run().expect(0);
    let before = files(&job.dir());
    change_tests(&job, LENIENT);
    let report = job.rollout(&["regrade", "jobs/job", "--output", "json"]).expect(0).stdout();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["on"], json!({"environment": 2}), "{report:#}");
    assert_eq!(
        report["changed"],
        json!([{
            "trial": "agent/set/near__1",
            "before": {"reward": 0.0, "error": null},
            "after": {"reward": 1.0, "error": null},
        }])
    );
    assert_eq!([&report["before"]["pass_rate"], &report["after"]["pass_rate"]], [0.5, 1.0]);
    assert_eq!(report["tests"][0]["task"], "set/good");
    assert_eq!(report["tests"][0]["changed"], json!(["tests/test.sh"]));
    assert_eq!(files(&job.dir()), before, "the finished job is unchanged");
    let near = trial(&job, "job-regrade-1/agent/set/near__1");
    assert_eq!(near["reward"], 1.0);
    assert_eq!(near["regraded"], json!({"on": "environment", "reward": 0.0}));
    let log = job.root().join("jobs/job-regrade-1/agent/set/near__1/logs/agent/log.txt");
    assert_eq!(fs::read_to_string(log).unwrap(), "worked\n");

    // The preserved environments are still as the agent left them, so this can be done again.
    let again = job.rollout(&["regrade", "jobs/job", "--output", "json"]).expect(0).stdout();
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["after"], report["after"]);
    assert!(again["regraded_in"].as_str().unwrap().ends_with("job-regrade-2"), "{again:#}");
}

#[test]
fn the_report_names_changed_tests_rewards_and_rates() {
    let job = preserved();
    job.run().expect(0);
    fs::write(job.root().join("set/near/tests/test.sh"), LENIENT).unwrap();
    fs::write(job.root().join("set/near/tests/words.txt"), "fine\n").unwrap();
    let said = job.rollout(&["regrade", "jobs/job"]).expect(0).stdout();
    let said = said.rsplit_once("regraded:").unwrap().1.replace(&job.root().display().to_string(), "ROOT");
    insta::assert_snapshot!(said.trim(), @r"
    2 on preserved environments
    tests of 1 task differ:
      set/near: tests/test.sh changed; tests/words.txt added

            pass rate  solved  mean reward
    before      50.0%  1 of 2          0.5
    now        100.0%  2 of 2            1

    1 trial with a changed outcome
      agent/set/near__1: 0 → 1
    results: ROOT/jobs/job-regrade-1
    ");
}

#[test]
fn other_commands_read_a_regrade_like_any_job() {
    let job = preserved();
    job.run().expect(0);
    change_tests(&job, LENIENT);
    job.rollout(&["regrade", "jobs/job"]).expect(0);
    let listed = job.rollout(&["list", "jobs/job-regrade-1"]).expect(0).stdout();
    assert!(listed.contains("near__1"), "{listed}");
    job.rollout(&["show", "jobs/job-regrade-1/agent/set/near__1"]).expect(0);
    let compared = job.rollout(&["compare", "jobs/job", "jobs/job-regrade-1"]).expect(0).stdout();
    assert!(compared.contains("100.0%"), "{compared}");
    job.rollout(&["export", "csv", "jobs/job-regrade-1", "-o", "out"]).expect(0);
    assert!(fs::read_to_string(job.root().join("out/trials.csv")).unwrap().contains("near"));
    let again = job.rollout(&["regrade", "jobs/job-regrade-1", "--output", "json"]).expect(0).stdout();
    assert!(again.contains("job-regrade-1-regrade-1"), "a regrade can be graded again: {again}");
}

#[test]
fn tests_in_a_separate_environment_run_again_on_the_collected_artifacts() {
    let config = |job: TestJob| {
        job.task(task("good").file("instruction.md", "ok\n").config(SEPARATE))
            .task(task("near").file("instruction.md", "fine\n").config(SEPARATE))
    };
    let job = config(job());
    job.run().expect(0);
    change_tests(&job, LENIENT);
    let report = job.rollout(&["regrade", "jobs/job", "--output", "json"]).expect(0).stdout();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["on"], json!({"artifacts": 2}), "{report:#}");
    assert_eq!(report["changed"].as_array().unwrap().len(), 1);
    job.expect_nothing_left();
    // An artifact that was not collected by the trial cannot be had now.
    let more = SEPARATE.replace("\"/app/answer\"", "\"/app/answer\", \"/app/more\"");
    fs::write(job.root().join("set/near/task.toml"), more).unwrap();
    let said = job.rollout(&["regrade", "jobs/job"]).expect(1).stdout();
    assert!(said.contains("the artifact /app/more was not collected by the trial"), "{said}");
}

#[test]
fn artifacts_that_are_collected_again_do_not_replace_those_of_the_finished_job() {
    let job = preserved()
        .task(task("good").file("instruction.md", "ok\n").config(SEPARATE))
        .task(task("near").file("instruction.md", "fine\n").config(SEPARATE));
    job.run().expect(0);
    let before = files(&job.dir());
    change_tests(&job, LENIENT);
    let excluding = SEPARATE.replace("\"/app/answer\"", "{source = \"/app/answer\", exclude = [\"*.tmp\"]}");
    fs::write(job.root().join("set/near/task.toml"), excluding).unwrap();
    job.rollout(&["regrade", "jobs/job", "--task", "near"]).expect(0);
    let now = trial(&job, "job-regrade-1/agent/set/near__1");
    assert_eq!((&now["reward"], &now["regraded"]["on"]), (&json!(1.0), &json!("environment")), "{now:#}");
    assert!(files(&job.dir()) == before, "the finished job is unchanged");
}

#[test]
fn the_artifacts_of_each_step_are_graded_again() {
    const STEPS: &str = "schema_version = \"1.0\"\nartifacts = [\"/app/answer\"]\n[verifier]\nenvironment_mode = \"separate\"\n\
        [[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n";
    let task = TestTask::new("steps")
        .config(STEPS)
        .without("instruction.md")
        .file("steps/one/instruction.md", "ok\n")
        .file("steps/two/instruction.md", "fine\n")
        .tests(&format!("#!/bin/bash\n{TESTS}"));
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task)
        .script("cp $ROLLOUT_TASK_INSTRUCTION /app/answer");
    let first = job.run().expect(0).trial("agent/set/steps__1");
    assert_eq!(first["reward"], 0.5, "{first:#}");
    fs::write(job.root().join("set/steps/tests/test.sh"), format!("#!/bin/bash\n{LENIENT}")).unwrap();
    job.rollout(&["regrade", "jobs/job"]).expect(0);
    let now = trial(&job, "job-regrade-1/agent/set/steps__1");
    assert_eq!(now["reward"], 1.0, "{now:#}");
    assert_eq!([&now["steps"][0]["reward"], &now["steps"][1]["reward"]], [1.0, 1.0]);
}

#[test]
fn trials_of_which_nothing_was_kept_are_listed_with_what_to_set() {
    // The reward of `good` is 1, so only `near` is kept.
    let job = job().set("environment/preserve_env", json!("on_failure"));
    job.run().expect(0);
    change_tests(&job, LENIENT);
    let survey = job.rollout(&["regrade", "jobs/job", "--dry-run"]).expect(1).stdout();
    insta::assert_snapshot!(survey.trim(), @r"
    2 trials: 1 on preserved environments, 1 cannot be graded again
    not graded again: 1 trial, such as agent/set/good__1: its environment was not preserved; set `environment.preserve_env: always` in the next job, or let the tests run in a separate environment, with `verifier.environment: separate` and `verifier.artifacts`
    nothing was run
    ");
    assert!(!job.root().join("jobs/job-regrade-1").exists());
    let said = job.rollout(&["regrade", "jobs/job"]).expect(1).stdout();
    assert!(said.contains("environment.preserve_env: always"), "{said}");
    let good = trial(&job, "job-regrade-1/agent/set/good__1");
    assert_eq!(good["error"]["type"], "not_regraded");
    assert_eq!(good["reward"], Value::Null, "a reward that was not found again is not copied");
    assert_eq!(good["regraded"], json!({"on": "nothing", "reward": 1.0}));
    job.rollout(&["clean", "--preserved"]).expect(0);
    let gone = job.rollout(&["regrade", "jobs/job", "--task", "near", "--dry-run"]).expect(1).stdout();
    assert!(gone.contains("was removed, for example by `rollout clean --preserved`"), "{gone}");
}

#[test]
fn a_trial_that_failed_before_the_tests_keeps_its_result() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task("good"))
        .script("echo ok > /app/answer; exit 3")
        .set("environment/preserve_env", json!("always"));
    job.run().expect(1);
    change_tests(job_with_near(&job), LENIENT);
    job.rollout(&["regrade", "jobs/job"]).expect(0);
    let kept = trial(&job, "job-regrade-1/agent/set/good__1");
    assert_eq!(kept["error"]["type"], "agent_execution_failed");
    assert_eq!(kept["regraded"]["on"], "unchanged");
    // With another setting of the verifier, its tests do run.
    let set = ["regrade", "jobs/job", "--set", "verifier.after_agent_error=run"];
    job.rollout(&set).expect(0);
    let graded = trial(&job, "job-regrade-2/agent/set/good__1");
    assert_eq!(
        (&graded["reward"], &graded["error"]["type"]),
        (&json!(1.0), &json!("agent_execution_failed"))
    );
}

#[test]
fn tests_whose_environment_failed_run_again_after_it_was_repaired() {
    let task = task("good")
        .config(&format!("schema_version = \"1.1\"\n{SEPARATE}"))
        .file("tests/Dockerfile", "FROM test\nRUN false\n");
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout")).task(task).script("echo ok > /app/answer");
    let first = job.run().expect(1).trial("agent/set/good__1");
    assert_eq!(first["error"]["type"], "environment_build_failed", "{first:#}");
    let repaired = "FROM test\nCOPY . /tests\n";
    fs::write(job.root().join("set/good/tests/Dockerfile"), repaired).unwrap();
    job.rollout(&["regrade", "jobs/job"]).expect(0);
    let now = trial(&job, "job-regrade-1/agent/set/good__1");
    assert_eq!(now["regraded"]["on"], "artifacts", "{now:#}");
    assert_eq!((&now["reward"], &now["error"]), (&json!(1.0), &Value::Null), "{now:#}");
}

/// The tests of a task that does not exist can be written too.
fn job_with_near(job: &TestJob) -> &TestJob {
    fs::create_dir_all(job.root().join("set/near/tests")).unwrap();
    job
}

#[test]
fn processes_are_not_kept_so_tests_that_ran_beside_them_need_a_word() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task("good"))
        .script("echo ok > /app/answer; setsid sleep 1000 > /dev/null 2>&1 &")
        .set("environment/preserve_env", json!("always"));
    job.run().expect(0);
    let said = job.rollout(&["regrade", "jobs/job"]).expect(1).stdout();
    assert!(said.contains("--ignore-processes"), "{said}");
    job.rollout(&["regrade", "jobs/job", "--ignore-processes"]).expect(0);
    assert_eq!(trial(&job, "job-regrade-2/agent/set/good__1")["reward"], 1.0);
}

#[test]
fn tests_of_another_directory_replace_those_of_the_tasks() {
    let job = preserved().file("new/near/tests/test.sh", LENIENT).file("one/test.sh", LENIENT);
    job.run().expect(0);
    job.rollout(&["regrade", "jobs/job", "--tests", "new", "--task", "near"]).expect(0);
    assert_eq!(trial(&job, "job-regrade-1/agent/set/near__1")["reward"], 1.0);
    assert!(!job.root().join("jobs/job-regrade-1/agent/set/good__1").exists());
    job.rollout(&["regrade", "jobs/job", "--tests", "one"]).expect(0);
    assert_eq!(trial(&job, "job-regrade-2/agent/set/near__1")["reward"], 1.0);
    fs::create_dir(job.root().join("empty")).unwrap();
    let refused = job.rollout(&["regrade", "jobs/job", "--tests", "empty"]).expect(2).stderr();
    assert!(refused.contains("has no tests for the selected tasks"), "{refused}");
    let refused = job.rollout(&["regrade", "jobs/job", "--set", "n_attempts=3"]).expect(2).stderr();
    assert!(refused.contains("n_attempts cannot be changed"), "{refused}");
}

#[test]
fn variables_of_the_agents_are_not_needed() {
    let job = preserved().env("AGENT_KEY", "a-long-secret-key").agent(json!({
        "name": "with-key", "execute": "echo ok > /app/answer", "env": {"KEY": "${AGENT_KEY}"},
    }));
    job.run().expect(0);
    let job = job.env("AGENT_KEY", "");
    let mut command = job.command(&["regrade", "jobs/job"]);
    let ended = command.env_remove("AGENT_KEY").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_killed_regrade_is_resumed_and_grades_nothing_twice() {
    let job = preserved().set("n_concurrent_trials", json!(1));
    job.run().expect(0);
    let gate = Gate::new();
    fs::write(job.root().join("set/near/tests/test.sh"), gate.wait() + LENIENT).unwrap();
    fs::write(job.root().join("set/good/tests/test.sh"), LENIENT).unwrap();
    let running = job.start_with(&["regrade", "jobs/job"]);
    let arrival = gate.arrival();
    running.signal("-KILL");
    running.finish();
    drop(arrival);
    let good = fs::read(job.root().join("jobs/job-regrade-1/agent/set/good__1/result.json")).unwrap();
    let resumed = job.start_with(&["resume", "jobs/job-regrade-1"]);
    drop(gate.arrival());
    let said = resumed.finish().expect(0).stdout();
    assert!(said.contains("agent/set/near__1: 0 → 1"), "{said}");
    let after = fs::read(job.root().join("jobs/job-regrade-1/agent/set/good__1/result.json")).unwrap();
    assert_eq!(good, after);
}

#[test]
fn jobs_without_tests_are_left_to_score() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"));
    let refused = job.rollout(&["regrade", "nowhere"]).expect(2).stderr();
    assert!(refused.contains("is not a job directory"), "{refused}");
}

#[test]
fn preserved_containers_are_graded_again_and_keep_running() {
    for engine in [TestEngine::shared(), TestEngine::podman()] {
        let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
            .on(&engine)
            .task(task("good").file("instruction.md", "ok\n"))
            .task(task("near").file("instruction.md", "fine\n"))
            .script("cp $ROLLOUT_TASK_INSTRUCTION /app/answer")
            .set("environment/preserve_env", json!("always"));
        job.run().expect(0);
        change_tests(&job, LENIENT);
        for number in 1..=2 {
            let report = job.rollout(&["regrade", "jobs/job", "--output", "json"]).expect(0).stdout();
            let report: Value = serde_json::from_str(&report).unwrap();
            assert_eq!(report["on"], json!({"environment": 2}), "{report:#}");
            assert_eq!(trial(&job, &format!("job-regrade-{number}/agent/set/near__1"))["reward"], 1.0);
        }
        for name in ["good", "near"] {
            let kept = trial(&job, &format!("job/agent/set/{name}__1"));
            engine.docker(&["rm", "-f", kept["environment"]["preserved"].as_str().unwrap()]);
        }
        let gone = job.rollout(&["regrade", "jobs/job"]).expect(1).stdout();
        assert!(gone.contains("no longer exists"), "{gone}");
    }
}

/// A service whose file the tests read over the network, so its files have to be kept too. Each start prints something
/// else.
const COMPOSE: &str = "services:
  main: {}
  db:
    image: busybox
    command: >-
      sh -c 'busybox cat /proc/sys/kernel/random/uuid && busybox mkdir -p /www && busybox touch /www/answer
      && exec busybox httpd -f -p 80 -h /www'
    healthcheck: {test: [CMD, busybox, wget, -q, -O, /dev/null, \"http://127.0.0.1/answer\"], interval: 1s, retries: 60}
";

/// Tests that ask the service, and accept these words.
fn asks_service(words: &str) -> String {
    format!(
        "exec 3<>/dev/tcp/db/80 && printf 'GET /answer HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3 > /tmp/found\n\
         if [ -e /app/answer ] && grep -Eq '^({words})?$' /app/answer && grep -q '200 OK' /tmp/found; then echo 1; else echo 0; fi \
         > /logs/verifier/reward.txt\n"
    )
}

fn on_engine(task: TestTask, script: &str) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set("environment", json!({"type": "docker", "preserve_env": "always"}))
        .env("DOCKER_HOST", TestEngine::shared().host())
        .task(task)
        .script(script)
}

fn remove_preserved(result: &Value) {
    let environment = &result["environment"];
    let services =
        environment["preserved_services"].as_object().into_iter().flatten().map(|(_, place)| place);
    for place in services.chain([&environment["preserved"]]) {
        TestEngine::shared().docker(&["rm", "-f", place.as_str().unwrap()]);
    }
}

#[test]
fn the_services_of_a_compose_task_are_preserved_and_start_again_for_the_tests() {
    let task = task("near").tests(&asks_service("ok")).file("environment/docker-compose.yaml", COMPOSE);
    let job = on_engine(task, "echo fine > /app/answer");
    let first = job.run().expect(0).trial("agent/set/near__1");
    assert_eq!(first["reward"], 0.0, "{first:#}");
    assert!(first["environment"]["preserved_services"]["db"].is_string(), "{first:#}");
    let printed = job.dir().join("agent/set/near__1/environment/services/db/stdout.txt");
    assert!(!fs::read(printed).unwrap().is_empty());
    let before = files(&job.dir());
    fs::write(job.root().join("set/near/tests/test.sh"), asks_service("ok|fine")).unwrap();
    job.rollout(&["regrade", "jobs/job"]).expect(0);
    assert!(files(&job.dir()) == before, "the finished job is unchanged");
    let now = trial(&job, "job-regrade-1/agent/set/near__1");
    assert_eq!((&now["reward"], &now["regraded"]["on"]), (&json!(1.0), &json!("environment")), "{now:#}");
    remove_preserved(&first);
    let gone = job.rollout(&["regrade", "jobs/job"]).expect(1).stdout();
    assert!(gone.contains("no longer exists"), "{gone}");
}

#[test]
fn environments_that_cannot_be_copied_do_not_count_as_preserved() {
    let job = preserved();
    job.run().expect(0);
    for task in ["good", "near"] {
        let mut result = trial(&job, &format!("job/agent/set/{task}__1"));
        result["environment"]["provider"] = json!("kubernetes");
        fs::write(job.dir().join(format!("agent/set/{task}__1/result.json")), result.to_string()).unwrap();
    }
    let survey = job.rollout(&["regrade", "jobs/job", "--dry-run"]).expect(1).stdout();
    assert!(survey.contains("2 trials: 2 cannot be graded again"), "{survey}");
    assert!(survey.contains("the kubernetes provider cannot copy a preserved environment"), "{survey}");
}

#[test]
fn volumes_of_a_compose_task_are_named_as_the_reason_why_it_is_not_graded_again() {
    let compose = "services:\n  main: {volumes: ['data:/data']}\nvolumes: {data: {}}\n";
    let task = task("good").file("environment/docker-compose.yaml", compose);
    let job = on_engine(task, "echo ok > /app/answer");
    let first = job.run().expect(0).trial("agent/set/good__1");
    let said = job.rollout(&["regrade", "jobs/job", "--dry-run"]).expect(1).stdout();
    assert!(said.contains("the content of the volumes of its compose file is not kept"), "{said}");
    assert!(said.contains("let the tests run in a separate environment"), "{said}");
    remove_preserved(&first);
}

/// A task with two steps and shared tests, whose reward is made like this.
fn in_steps(strategy: &str) -> TestJob {
    let toml = format!(
        "schema_version = \"1.0\"\nmulti_step_reward_strategy = \"{strategy}\"\n[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n"
    );
    let task = TestTask::new("steps")
        .config(&toml)
        .without("instruction.md")
        .file("steps/one/instruction.md", "ok\n")
        .file("steps/two/instruction.md", "fine\n")
        .tests(&format!("#!/bin/bash\n{TESTS}"));
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task)
        .script("cp $ROLLOUT_TASK_INSTRUCTION /app/answer")
        .set("environment/preserve_env", json!("always"));
    job.run().expect(0);
    fs::write(job.root().join("set/steps/tests/test.sh"), format!("#!/bin/bash\n{LENIENT}")).unwrap();
    job
}

#[test]
fn the_last_step_is_graded_again_where_only_its_reward_counts() {
    let job = in_steps("final");
    job.rollout(&["regrade", "jobs/job"]).expect(0);
    let now = trial(&job, "job-regrade-1/agent/set/steps__1");
    assert_eq!(now["reward"], 1.0, "{now:#}");
    let steps: Vec<_> = now["steps"].as_array().unwrap().iter().map(|step| step["reward"].clone()).collect();
    assert_eq!(steps, [json!(1.0), json!(1.0)], "{now:#}");
    let all = in_steps("mean").rollout(&["regrade", "jobs/job", "--dry-run"]).expect(1).stdout();
    assert!(all.contains("the rewards of all steps count"), "{all}");
}
