//! What a job file and a task file mean, and which are refused before anything runs.

use std::fs;

use rollout_testkit::{TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// The job is refused with these words, and nothing is made.
#[track_caller]
fn refused(job: &TestJob, words: &[&str]) -> String {
    let stderr = job.run().expect(2).stderr();
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in:\n{stderr}");
    }
    assert!(!job.root().join("jobs").exists(), "a refused job makes nothing");
    stderr
}

#[test]
fn names_that_cannot_be_directories_are_refused() {
    for name in
        ["", " ", ".", "..", "a/b", "../up", "/abs", "a\nb", "config.json", "result.json", "journal.jsonl"]
    {
        let job = || job().task(TestTask::new("task"));
        let script = |name: &str| json!({"name": name, "execute": "true"});
        refused(&job().agent(script(name)), &["job.yaml:1:", "name"]);
        refused(&job().oracle().set("name", json!(name)), &["job.yaml:1:", "name"]);
        refused(
            &job().oracle().set("datasets", json!([{"path": "set", "name": name}])),
            &["job.yaml:1:", "name"],
        );
    }
}

#[test]
fn a_hidden_or_strange_name_that_is_a_directory_is_fine() {
    let job = job()
        .task(TestTask::new("täsk 1"))
        .agent(json!({"name": "Äg ent $(x)", "execute": "touch /app/done"}));
    assert_eq!(job.run().expect(0).trial("Äg ent $(x)/set/täsk 1__1")["reward"], 1.0);
}

#[test]
fn two_agents_of_one_name_are_refused_with_how_to_rename() {
    let job = job().task(TestTask::new("task")).script("true").script("false");
    refused(&job, &["two agents are named", "agent", "name"]);
}

#[test]
fn two_datasets_of_one_name_are_refused_with_how_to_rename_and_can_be_renamed() {
    let job = job().task(TestTask::new("task")).oracle();
    let job = job.set("datasets", json!([{"path": "set"}, {"path": "./set"}]));
    refused(&job, &["two datasets are named `set`", "`name:`"]);
    let job = job.set("datasets", json!([{"path": "set"}, {"path": "set", "name": "other"}]));
    assert_eq!(job.run().expect(0).trial("oracle/other/task__1")["reward"], 1.0);
}

#[test]
fn every_problem_is_shown_at_once_with_its_line_and_column() {
    let job = job().task(TestTask::new("task")).file(
        "wrong.yaml",
        "n_atempts: 2\nretry:\n  max_attempts: many\nenvironment:\n  type: podman\nagents:\n  - name: ../up\n    execute: x\n  - name: a\n    env: {KEY: \"${ROLLOUT_TEST_ABSENT}\"}\n    execute: x\ndatasets:\n  - path: absent\n",
    );
    let stderr = job.rollout(&["run", "wrong.yaml"]).expect(2).stderr();
    for part in [
        "wrong.yaml:1:1",
        "did you mean `n_attempts`",
        "wrong.yaml:3:17",
        "wrong.yaml:5:9",
        "`native`",
        "wrong.yaml:7:11",
        "wrong.yaml:10:17",
        "ROLLOUT_TEST_ABSENT",
        "wrong.yaml:13:11",
        "has 6 problems",
    ] {
        assert!(stderr.contains(part), "{part:?} is not in:\n{stderr}");
    }
    assert!(!job.root().join("jobs").exists());
}

#[test]
fn empty_lists_and_absent_ones_are_problems() {
    refused(&job().task(TestTask::new("task")), &["`agents` is empty"]);
    refused(&job().task(TestTask::new("task")).oracle().set("datasets", json!([])), &["`datasets` is empty"]);
    let job = job().file("bare.yaml", "name: bare\n");
    let stderr = job.rollout(&["run", "bare.yaml"]).expect(2).stderr();
    assert!(stderr.contains("agents") && stderr.contains("datasets"), "{stderr}");
}

#[test]
fn a_missing_variable_is_refused_and_a_default_takes_its_place() {
    let task = || TestTask::new("task");
    let agent =
        |value: &str| json!({"name": "agent", "execute": "echo $GREETING", "env": {"GREETING": value}});
    refused(
        &job().task(task()).agent(agent("${ROLLOUT_TEST_ABSENT}")),
        &["ROLLOUT_TEST_ABSENT", "job.yaml:1:"],
    );
    let said = |value: &str, set: Option<&str>| {
        let job = job().task(task()).agent(agent(value));
        let job = if let Some(set) = set { job.env("ROLLOUT_TEST_GREETING", set) } else { job };
        job.run().expect(0).file("agent/set/task__1/command/stdout.txt")
    };
    assert_eq!(said("${ROLLOUT_TEST_GREETING:-hello}", None), "hello\n");
    assert_eq!(said("${ROLLOUT_TEST_GREETING:-hello}", Some("welcome")), "welcome\n");
    assert_eq!(said("<${ROLLOUT_TEST_GREETING}>", Some("welcome")), "<welcome>\n");
}

#[test]
fn inputs_lie_beside_the_job_file_and_jobs_in_the_working_directory() {
    let job = job()
        .task(TestTask::new("task"))
        .file("agent.sh", "touch /app/done")
        .agent(json!({"name": "agent", "execute_file": "agent.sh"}));
    let elsewhere = job.root().join("elsewhere/deep");
    fs::create_dir_all(&elsewhere).unwrap();
    let output = job.command(&["run", "../../job.yaml"]).current_dir(&elsewhere).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result = fs::read_to_string(elsewhere.join("jobs/job/agent/set/task__1/result.json")).unwrap();
    assert_eq!(result.parse::<Value>().unwrap()["reward"], 1.0);
    assert!(!job.root().join("jobs").exists());
    let resumed = job.command(&["resume", "elsewhere/deep/jobs/job", "--rerun", "missing"]).output().unwrap();
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
}

#[test]
fn jobs_dir_is_relative_to_the_working_directory_too() {
    let job = job().task(TestTask::new("task")).oracle().set("jobs_dir", json!("out/here"));
    fs::create_dir(job.root().join("elsewhere")).unwrap();
    let elsewhere = job.root().join("elsewhere");
    assert!(job.command(&["run", "../job.yaml"]).current_dir(&elsewhere).output().unwrap().status.success());
    assert!(elsewhere.join("out/here/job/result.json").is_file());
}

#[test]
fn a_job_can_be_json() {
    let config = json!({"name": "job", "agents": [{"name": "oracle"}], "datasets": [{"path": "set"}],
        "environment": {"type": "native", "provider_config": {"images": {"*": "host"}}}});
    let job = job().task(TestTask::new("task")).file("job.json", &config.to_string());
    assert_eq!(job.rollout(&["run", "job.json"]).expect(0).trial("oracle/set/task__1")["reward"], 1.0);
}

#[test]
fn the_environment_that_was_chosen_is_printed_and_recorded() {
    let job = job().task(TestTask::new("task")).oracle();
    let job = job.set("environment", json!({"provider_config": {"images": {"*": "host"}}}));
    let finished = job.run().expect(0);
    assert!(finished.stdout().contains("on native"), "{}", finished.stdout());
    assert_eq!(finished.trial("oracle/set/task__1")["environment"]["provider"], "native");
    assert!(finished.file("journal.jsonl").contains(r#""provider":"native""#));
}

#[cfg(not(feature = "e2b"))]
#[test]
fn a_cloud_that_is_not_built_in_is_refused_with_the_way_to_build_it() {
    let job = job().task(TestTask::new("task")).oracle().set("environment", json!({"type": "e2b"}));
    refused(&job, &["\"e2b\" is not part of this build", "the cargo feature of the same name"]);
}

#[cfg(all(feature = "daytona", feature = "e2b", feature = "fly", feature = "modal"))]
#[test]
fn a_cloud_without_credentials_is_refused_with_where_they_are_looked_for() {
    for (kind, variable) in [
        ("daytona", "DAYTONA_API_KEY"),
        ("e2b", "E2B_API_KEY"),
        ("fly", "FLY_API_TOKEN"),
        ("modal", "MODAL_TOKEN_ID"),
    ] {
        let job = job()
            .task(TestTask::new("task"))
            .oracle()
            .set("environment", json!({"type": kind}))
            .env("HOME", "/nonexistent")
            .env(variable, "");
        refused(&job, &[&format!("there are no credentials for {kind}"), variable]);
    }
}

#[test]
fn an_engine_that_does_not_answer_is_refused_with_what_was_tried() {
    let job = job()
        .task(TestTask::new("task"))
        .oracle()
        .set("environment", json!({"type": "docker"}))
        .env("DOCKER_HOST", "unix:///nonexistent");
    let words = ["unix:///nonexistent: there is no such socket", "start the engine", "`type: native`"];
    refused(&job, &words);
    let job = job.env("DOCKER_HOST", "ssh://far");
    refused(&job, &["is an ssh address (far)", "ssh -nNT -L"]);
}

#[test]
fn without_a_type_the_job_runs_natively_where_no_engine_answers() {
    let job = job()
        .task(TestTask::new("task").config("[environment]\ndocker_image = \"127.0.0.1:1/no/such:image\"\n"))
        .oracle()
        .set("environment", json!({}))
        .env("DOCKER_HOST", "unix:///nonexistent");
    let said = job.run().expect(1).stdout();
    assert!(said.contains("cannot pull 127.0.0.1:1/no/such:image from its registry"), "{said}");
    let why =
        "no Docker engine answers at unix:///nonexistent: there is no such socket; the job runs natively";
    assert!(said.contains(why), "{said}");
}

#[test]
fn settings_of_the_docker_environment_are_checked_before_an_engine_is_looked_for() {
    for (key, value) in
        [("netwrok", json!("none")), ("pids", json!(0)), ("mounts", json!([{"source": "/x"}]))]
    {
        let job = job()
            .task(TestTask::new("task"))
            .oracle()
            .set("environment", json!({"type": "docker", "provider_config": {key: value}}))
            .env("DOCKER_HOST", "unix:///nonexistent");
        refused(&job, &["provider_config", key.trim_end_matches('s')]);
    }
}

#[test]
fn settings_that_the_provider_does_not_know_are_refused() {
    for (key, value) in [
        ("netwrok", json!("none")),
        ("network", json!("bridge")),
        ("pids", json!(0)),
        ("images", json!({"a": "b"})),
    ] {
        let job = job()
            .task(TestTask::new("task"))
            .oracle()
            .set(&format!("environment/provider_config/{key}"), value);
        refused(&job, &["provider_config", key]);
    }
}

#[test]
fn amounts_are_read_in_every_form_and_a_bare_number_is_warned_of() {
    for (toml, warned) in [
        ("memory = \"64Mi\"\nstorage = \"1Gi\"\ncpus = \"500m\"", None),
        ("memory_mb = 64\nstorage_mb = 1024\ncpus = 0.5", None),
        ("memory = 67108864", None),
        ("memory = \"64\"", Some("64Mi")),
        ("memory = 64", Some("64Mi")),
        ("storage = \"1024\"", Some("1Gi")),
    ] {
        let task = TestTask::new("task").config(&format!("[environment]\n{toml}\n"));
        let job = job().task(task).script("tail /dev/zero");
        let validated = job.rollout(&["validate", "set/task"]).expect(0);
        let said = validated.stdout() + &validated.stderr();
        assert_eq!(said.contains("warning"), warned.is_some(), "{toml}: {said}");
        assert!(said.contains(warned.unwrap_or_default()), "{toml}: {said}");
        if !toml.starts_with("storage") {
            let result = job.run().expect(1).trial("agent/set/task__1");
            let message = result["error"]["message"].as_str().unwrap();
            assert!(message.contains("ran out of memory"), "{toml}: {message}");
        }
    }
    let wrong = TestTask::new("task").config("[environment]\nmemory = \"2 gigs\"\n");
    let validated = job().task(wrong).rollout(&["validate", "set"]).expect(2);
    let said = validated.stdout() + &validated.stderr();
    assert!(said.contains("task.toml:2:10"), "{said}");
}

#[test]
fn unknown_keys_of_a_task_are_no_error_and_settings_that_cannot_be_honoured_are() {
    let harmless = TestTask::new("task")
        .config("colour = \"red\"\n[metadata]\nauthor = \"me\"\n[environment]\nshape = 1\n");
    job().task(harmless).oracle().rollout(&["run", "job.yaml", "--strict"]).expect(0);

    let task = TestTask::new("task").config("[environment]\nos = \"windows\"\n");
    let job = job().task(task).oracle();
    let refused = job.rollout(&["run", "job.yaml", "--strict"]).expect(2);
    assert!(refused.stderr().contains("environment.os"), "{}", refused.stderr());
    assert!(!job.dir().exists());
    let error = job.run().expect(1).trial("oracle/set/task__1")["error"].clone();
    assert_eq!(error["type"], "task_invalid");
    assert!(error["message"].as_str().unwrap().contains("environment.os"), "{error:#}");
}

#[test]
fn a_timeout_of_zero_and_an_absent_task_toml_mean_the_defaults() {
    let zero = TestTask::new("zero").config("[agent]\ntimeout_sec = 0\n[verifier]\ntimeout_sec = 0\n");
    let job = job().task(zero).task(TestTask::new("bare").without("task.toml")).oracle();
    let finished = job.run().expect(0);
    assert_eq!(finished.result()["mean_reward"], 1.0);
    let plan = job.rollout(&["run", "job.yaml", "--dry-run"]).expect(0).stdout();
    let timeouts =
        |task: &str| plan.lines().find(|line| line.contains(task)).unwrap().matches("10m 00s").count();
    assert_eq!((timeouts("oracle/set/zero__1"), timeouts("oracle/set/bare__1")), (3, 3), "{plan}");
}

#[test]
fn overrides_of_the_job_take_the_place_of_what_tasks_ask_for() {
    let task = TestTask::new("task").config("[environment]\nmemory = \"900Ti\"\ncpus = 1\n");
    let job = job().task(task).oracle().set("environment/override_memory", json!("256Mi"));
    assert_eq!(job.run().expect(0).trial("oracle/set/task__1")["reward"], 1.0);
}

#[test]
fn a_task_directory_of_a_reserved_name_is_refused_with_what_to_do() {
    let job = job().task(TestTask::new("result.json")).task(TestTask::new("good")).oracle();
    refused(&job, &["set/result.json", "rename the directory"]);
}
