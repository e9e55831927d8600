//! Job directories of Harbor as jobs, and its job files.
//!
//! `nightly` was written by the data types of Harbor 0.24, with values of our own.

use std::{fs, path::Path};

use rollout_testkit::{TestJob, TestTask};
use serde_json::{Value, json};

fn fixture() -> String {
    format!("{}/tests/it/import_harbor/nightly", env!("CARGO_MANIFEST_DIR"))
}

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

fn imported() -> TestJob {
    let job = job();
    job.rollout(&["import", "harbor", &fixture()]).expect(0);
    job
}

fn result(job: &TestJob, trial: &str) -> Value {
    let path = job.root().join("jobs/nightly").join(trial).join("result.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn trials_have_what_harbor_recorded_and_nothing_else() {
    let job = imported();
    let sort = result(&job, "claude-code/tasks/sort__1");
    assert_eq!((&sort["reward"], &sort["model_cost"]), (&json!(1.0), &json!(0.25)));
    let usage = json!({"input_tokens": 1000, "output_tokens": 50, "cached_tokens": 100, "cost_usd": 0.25});
    assert_eq!(sort["usage"], usage);
    assert_eq!(sort["durations"]["total_sec"], 20.0);
    assert_eq!(sort["durations"]["agent_execution_sec"], 10.0);
    assert_eq!(sort["timestamps"]["started_at"], "2026-01-15T10:30:00.123456Z");
    assert_eq!(sort.get("environment"), None, "Harbor records no image");
    let named = result(&job, "claude-code/tasks/sort__2");
    assert_eq!(
        (&named["reward"], &named["rewards"]),
        (&json!(0.75), &json!({"accuracy": 0.5, "style": 1.0}))
    );
    assert_eq!(named["model_cost"], Value::Null);
    let slow = result(&job, "claude-code/tasks/slow__1");
    assert_eq!((&slow["error"]["type"], &slow["reward"]), (&json!("agent_execution_timeout"), &json!(0.0)));
    let broken = result(&job, "oracle/tasks/broken__1");
    assert_eq!(broken["error"]["type"], "environment_start_failed", "by the phase in which it occurred");
    assert_eq!(broken["error"]["message"], "RuntimeError: docker compose failed");
    let steps = result(&job, "oracle/tasks/steps__1");
    assert_eq!([&steps["steps"][0]["reward"], &steps["steps"][1]["reward"]], [1.0, 0.0]);
    assert_eq!(steps["usage"]["input_tokens"], 15);
}

#[test]
fn the_files_of_trials_are_in_their_places() {
    let job = imported();
    let trial = job.root().join("jobs/nightly/claude-code/tasks/sort__1");
    let read = |path: &str| fs::read_to_string(trial.join(path)).unwrap();
    assert_eq!(read("logs/agent/log.txt"), "worked\n");
    assert_eq!(read("logs/verifier/stdout.txt"), "1 passed\n");
    assert!(read("harbor/result.json").contains("\"trial_name\": \"sort__aaaaaaa\""));
    let error = job.root().join("jobs/nightly/claude-code/tasks/slow__1/error.txt");
    assert!(fs::read_to_string(error).unwrap().starts_with("agent_execution_timeout\n"));
}

#[test]
fn other_commands_read_an_imported_job() {
    let job = imported();
    let said = job.rollout(&["list", "jobs/nightly"]).expect(0).stdout();
    for name in ["sort__1", "sort__2", "slow__1", "broken__1", "steps__1"] {
        assert!(said.contains(name), "{name} is not in {said}");
    }
    job.rollout(&["list", "jobs"]).expect(0);
    job.rollout(&["show", "jobs/nightly/claude-code/tasks/sort__1"]).expect(0);
    job.rollout(&["import", "harbor", &fixture(), "--name", "again"]).expect(0);
    let compared =
        job.rollout(&["compare", "jobs/nightly", "jobs/again", "--agent", "claude-code"]).expect(0);
    assert!(compared.stdout().contains("33.3%"), "{}", compared.stdout());
    job.rollout(&["export", "csv", "jobs/nightly", "-o", "out"]).expect(0);
    let csv = fs::read_to_string(job.root().join("out/trials.csv")).unwrap();
    assert_eq!(csv.lines().count(), 6, "{csv}");
    for command in [["resume", "jobs/nightly"], ["regrade", "jobs/nightly"]] {
        let refused = job.rollout(&command).expect(2).stderr();
        assert!(refused.contains("was imported from harbor"), "{refused}");
    }
}

#[test]
fn what_is_left_out_is_listed_and_nothing_is_overwritten() {
    let job = job();
    let said = job.rollout(&["import", "harbor", &fixture(), "--output", "json"]).expect(0).stdout();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["trials"], 5);
    assert_eq!(said["warnings"], json!(["trial gone__fffffff was cancelled, so it has no result"]));
    let refused = job.rollout(&["import", "harbor", &fixture()]).expect(2).stderr();
    assert!(refused.contains("already exists"), "{refused}");
    job.rollout(&["import", "harbor", &fixture(), "--name", "again", "-o", "other"]).expect(0);
    for (path, reason) in
        [("jobs/nightly", "it is a job directory of Rollout"), ("jobs", "it has no config.json")]
    {
        let refused = job.rollout(&["import", "harbor", path, "--name", "x"]).expect(2).stderr();
        assert!(refused.contains(&format!("is not a job directory of Harbor: {reason}")), "{refused}");
    }
    assert!(!job.root().join("jobs/x").exists());
}

fn write(job: &TestJob, name: &str, text: &str) {
    fs::write(job.root().join(name), text).unwrap();
}

#[test]
fn a_job_file_of_harbor_runs() {
    let job = job().task(TestTask::new("one")).task(TestTask::new("two"));
    write(
        &job,
        "harbor.yaml",
        "job_name: from-harbor\njobs_dir: jobs\nn_attempts: 2\norchestrator:\n  type: local\n  n_concurrent_trials: 2\n  \
         quiet: true\n  retry: {max_retries: 1, min_wait_sec: 0.1}\nenvironment:\n  delete: false\n  force_build: false\n  \
         override_memory_mb: 512\n  env: {}\nverifier:\n  override_timeout_sec: 30\nmetrics:\n  - type: mean\n    kwargs: {}\n\
         agents:\n  - name: oracle\n    import_path: null\n    kwargs: {}\ndatasets:\n  - path: set\n",
    );
    let native = ["--set", "environment.type=native", "--set", "environment.provider_config.images.*=host"];
    let run = |arguments: &[&str]| job.rollout(&[arguments, &native].concat());
    let ended = run(&["run", "harbor.yaml"]).expect(0);
    assert!(
        ended.stderr().contains("Rollout does not support Harbor's setting `quiet`, and ignores it"),
        "{}",
        ended.stderr()
    );
    let why = "read as a job file of Harbor, because of `job_name`";
    assert!(ended.stderr().contains(why), "{}", ended.stderr());
    let config: Value =
        serde_json::from_slice(&fs::read(job.root().join("jobs/from-harbor/config.json")).unwrap()).unwrap();
    assert_eq!((&config["compat"], &config["n_attempts"]), (&json!("harbor"), &json!(2)));
    assert_eq!(config["retry"]["max_attempts"], 2);
    assert_eq!(config["environment"]["preserve_env"], "always");
    assert_eq!(config["n_concurrent_trials"], 2);
    assert!(Path::new(&job.root().join("jobs/from-harbor/oracle/set/two__2/result.json")).exists());
    job.rollout(&["resume", "jobs/from-harbor"]).expect(0);
}

#[test]
fn the_tasks_that_a_job_file_of_harbor_selects_are_run() {
    let tasks = ["hello-a", "hello-b", "hello-c", "other"];
    let job = tasks.iter().fold(job(), |job, name| job.task(TestTask::new(name)));
    write(
        &job,
        "harbor.yaml",
        "job_name: part\njobs_dir: jobs\ndatasets:\n  - path: set\n    task_names: ['hello-*', missing]\n    \
         exclude_task_names: [hello-a]\n    n_tasks: 1\n",
    );
    let native = ["--set", "environment.type=native", "--set", "environment.provider_config.images.*=host"];
    let ended = job.rollout(&[&["run", "harbor.yaml"], &native[..]].concat()).expect(0);
    let dir = job.root().join("jobs/part/oracle/set");
    let ran: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(ran, ["hello-b__1"]);
    assert!(
        ended.stderr().contains("`include` or `exclude` matches no task: `missing`"),
        "{}",
        ended.stderr()
    );
    job.rollout(&["resume", "jobs/part"]).expect(0);
}

#[test]
fn settings_of_harbor_without_a_counterpart_are_refused_by_name() {
    let job = job().task(TestTask::new("one"));
    write(
        &job,
        "harbor.yaml",
        "job_name: x\nagent_timeout_multiplier: 2\nextra_instructions: [be quick]\nenvironment:\n  type: daytona\n  \
         env: {A: b}\nverifier:\n  import_path: my.verifier\nagents:\n  - import_path: my.agent\n  - name: claude-code\n    \
         model_name: anthropic/claude-sonnet-4-5\n    kwargs: {max_turns: 3, version: \"2.0\"}\ndatasets:\n  - path: set\n    \
         sampling: true\n  - name: org/package\nartifacts:\n  - source: /a\n    destination: b\n",
    );
    let refused = job.rollout(&["validate", "harbor.yaml"]).expect(2);
    let said = refused.stdout() + &refused.stderr();
    for name in [
        "agent_timeout_multiplier",
        "extra_instructions",
        "environment.type: daytona",
        "environment.env",
        "verifier.import_path",
        "agents.import_path",
        "agents.kwargs.max_turns",
        "datasets.sampling",
        "datasets.name with an organization",
        "artifacts with more than `source`",
    ] {
        assert!(
            said.contains(&format!("Rollout does not support Harbor's setting `{name}`")),
            "{name}: {said}"
        );
    }
    assert!(!said.contains("kwargs.version"), "{said}");
}

#[test]
fn our_own_job_files_are_not_taken_for_those_of_harbor() {
    let job = job().task(TestTask::new("one")).oracle().set("job_name", json!("x"));
    let refused = job.run().expect(2).stderr();
    assert!(refused.contains("unknown key `job_name`"), "{refused}");
}
