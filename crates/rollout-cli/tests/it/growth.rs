//! Jobs that are made larger after they have run, and what a resume needs.

use std::fs;

use rollout::record::saved::SavedJob;
use rollout_testkit::{FileServer, Gate, ModelReply, ModelServer, TestJob, TestRepo, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

fn events_named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

/// The trials of a result, by their names.
fn names(result: &Value) -> Vec<String> {
    let rows = result["results"].as_array().unwrap().iter();
    rows.map(|row| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        format!("{}/{}/{}__{}", text("agent_name"), text("dataset_name"), text("task_name"), row["attempt"])
    })
    .collect()
}

/// The trials of a job, as its journal has them.
fn saved(job: &TestJob) -> Vec<(u64, String)> {
    let saved = SavedJob::open(job.dir()).unwrap();
    let trials = saved.trials().unwrap().map(Result::unwrap);
    trials.map(|trial| (trial.index.0, trial.id.to_string())).collect()
}

#[test]
fn more_attempts_keep_those_that_have_run() {
    let job = job().task(TestTask::new("a")).task(TestTask::new("b")).oracle();
    let first = job.run().expect(0);
    let kept = first.file("oracle/set/b__1/result.json");
    let grown = job.rollout(&["resume", "jobs/job", "--attempts", "3", "--output", "json"]).expect(0);
    assert_eq!(events_named(&grown.events(), "trial_finished").len(), 4);
    let expected = ["a__1", "a__2", "a__3", "b__1", "b__2", "b__3"].map(|name| format!("oracle/set/{name}"));
    assert_eq!(names(&grown.result()), expected);
    assert_eq!(grown.file("oracle/set/b__1/result.json"), kept);
    assert_eq!(saved(&job), (0..6).zip(expected).collect::<Vec<_>>());
    let config: Value = serde_json::from_str(&grown.file("config.json")).unwrap();
    assert_eq!(config["n_attempts"], 3);

    job.rollout(&["resume", "jobs/job"]).expect(0);
    let fewer = job.rollout(&["resume", "jobs/job", "--attempts", "2"]).expect(2);
    assert!(fewer.stderr().contains("n_attempts: was 3, is 2"), "{}", fewer.stderr());
}

#[test]
fn a_larger_job_file_adds_agents_datasets_tasks_and_attempts() {
    let job = job().task(TestTask::new("b")).oracle();
    job.run().expect(0);
    TestTask::new("c").write(&job.root().join("more"));
    let job = job
        .task(TestTask::new("a"))
        .script("touch /app/done")
        .set("n_attempts", json!(2))
        .set("datasets", json!([{"path": "set"}, {"path": "more"}]));
    let refused = job.rollout(&["resume", "jobs/job"]).expect(2);
    assert!(refused.stderr().contains("has additions since the job was started"), "{}", refused.stderr());
    assert!(refused.stderr().contains("--with"), "{}", refused.stderr());
    let grown = job.rollout(&["resume", "jobs/job", "--with", "job.yaml", "--output", "json"]).expect(0);
    assert_eq!(events_named(&grown.events(), "trial_finished").len(), 11);
    let tasks = ["set/a__1", "set/a__2", "set/b__1", "set/b__2", "more/c__1", "more/c__2"];
    let expected: Vec<String> =
        ["oracle", "agent"].iter().flat_map(|agent| tasks.map(|task| format!("{agent}/{task}"))).collect();
    assert_eq!(names(&grown.result()), expected);
    assert_eq!(saved(&job), (0..12).zip(expected).collect::<Vec<_>>());
    assert_eq!(grown.file("tasks.jsonl").lines().count(), 3);
    let headers: Vec<Value> = grown
        .file("journal.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|entry| entry["entry"] == "job")
        .collect();
    let attempts = headers.iter().map(|header| header["config"]["n_attempts"].clone());
    assert_eq!(attempts.collect::<Vec<_>>(), [json!(1), json!(2)], "the journal has both configurations");
    job.rollout(&["resume", "jobs/job"]).expect(0);
}

#[test]
fn a_change_to_what_has_run_is_refused_with_the_difference() {
    let job = job().task(TestTask::new("task")).script("touch /app/done; true one");
    job.run().expect(0);
    let before = fs::read(job.dir().join("journal.jsonl")).unwrap();
    let job = job
        .set("agents", json!([{"name": "agent", "execute": "touch /app/done; true two"}, {"name": "nop"}]));
    let refused = job.rollout(&["resume", "jobs/job", "--with", "job.yaml"]).expect(2);
    let expected =
        "agents.agent.execute: was \"touch /app/done; true one\", is \"touch /app/done; true two\"";
    assert!(refused.stderr().contains(expected), "{}", refused.stderr());
    assert_eq!(fs::read(job.dir().join("journal.jsonl")).unwrap(), before);
    let job = job.set("agents", json!([{"name": "nop"}]));
    let refused = job.rollout(&["resume", "jobs/job", "--with", "job.yaml"]).expect(2);
    assert!(refused.stderr().contains("agents.agent: removed, was"), "{}", refused.stderr());
}

#[test]
fn growth_that_is_killed_is_carried_on_by_a_plain_resume() {
    let gate = Gate::new();
    let job = job().task(TestTask::new("task")).oracle().set("n_concurrent_trials", json!(1));
    job.run().expect(0);
    let job = job.script(&(gate.wait() + "touch /app/done"));
    let running = job.start_with(&["resume", "jobs/job", "--with", "job.yaml", "--attempts", "2"]);
    let _waiting = gate.arrival();
    running.signal("-KILL");
    running.finish();
    // What is made of the journal may not have come to the disk.
    for file in ["config.json", "tasks.jsonl"] {
        fs::remove_file(job.dir().join(file)).unwrap();
    }
    let running = job.start_with(&["resume", "jobs/job", "--output", "json"]);
    for _ in 0..2 {
        gate.arrival().pass();
    }
    let resumed = running.finish().expect(0);
    assert_eq!(resumed.result()["completed_trials"], 4);
    let config: Value = serde_json::from_str(&resumed.file("config.json")).unwrap();
    assert_eq!((&config["n_attempts"], config["agents"].as_array().unwrap().len()), (&json!(2), 2));
    assert_eq!(resumed.file("tasks.jsonl").lines().count(), 1);
}

#[test]
fn a_journal_cut_off_anywhere_in_its_growth_is_a_job_that_can_be_resumed() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    let journal = job.dir().join("journal.jsonl");
    let before = fs::read(&journal).unwrap();
    job.rollout(&["resume", "jobs/job", "--attempts", "2"]).expect(0);
    let after = fs::read(&journal).unwrap();
    let header = after[before.len()..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for (cut, trials) in [(1, 1), (header / 2, 1), (header, 2)] {
        fs::write(&journal, &after[..before.len() + cut]).unwrap();
        let resumed = job.rollout(&["resume", "jobs/job"]).expect(0);
        assert_eq!(resumed.result()["completed_trials"], trials, "cut after {cut} bytes");
    }
}

#[test]
fn rows_of_a_model_follow_when_another_agent_comes() {
    let server = ModelServer::always(ModelReply::text("1"));
    let model = |name: &str| json!({"name": name, "model": {"name": "m", "base_url": server.url()}});
    let sums = json!([{"question": "0+1?", "answer": "1"}, {"question": "1+1?", "answer": "2"}]);
    let interaction = json!({"dataset": sums, "rubric": [{"match": "numeric"}]});
    let job =
        job().agent(model("one")).set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    job.run().expect(0);
    let rows = fs::read_to_string(job.dir().join("outputs.jsonl")).unwrap();
    let job = job.agent(model("two"));
    let grown = job.rollout(&["resume", "jobs/job", "--with", "job.yaml", "--output", "json"]).expect(0);
    assert_eq!(events_named(&grown.events(), "trial_finished").len(), 2);
    assert_eq!(grown.file("one/sums/outputs.jsonl"), rows);
    assert_eq!(grown.file("two/sums/outputs.jsonl").lines().count(), 2);
    assert!(!job.dir().join("outputs.jsonl").exists());
    assert_eq!(grown.result()["completed_trials"], 4);
    let more = job.rollout(&["resume", "jobs/job", "--attempts", "2", "--output", "json"]).expect(0);
    assert_eq!(events_named(&more.events(), "trial_finished").len(), 4);
    assert_eq!(more.file("one/sums/outputs.jsonl").lines().count(), 4);
}

#[test]
fn a_finished_job_reports_that_nothing_is_left_and_what_can_be_run_again() {
    let job = job().task(TestTask::new("a")).task(TestTask::new("b").tests("exit 1\n")).oracle();
    job.run().expect(1);
    let resumed = job.rollout(&["resume", "jobs/job"]).expect(1);
    insta::assert_snapshot!(resumed.stderr(), @"
    nothing to do: every trial has a result
    `--rerun error` runs 1 failed trial again
    `--rerun unsolved` runs 1 unsolved trial again
    ");
}

#[test]
fn the_copy_of_a_job_runs_from_anywhere_without_its_scripts() {
    let job = job()
        .task(TestTask::new("task"))
        .file("agent.sh", "touch /app/done")
        .agent(json!({"name": "agent", "execute_file": "agent.sh"}));
    job.run().expect(0);
    fs::remove_file(job.root().join("agent.sh")).unwrap();
    let elsewhere = job.root().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let arguments = ["run", "../jobs/job/config.json", "--set", "name=again"];
    let again = job.command(&arguments).current_dir(&elsewhere).output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(elsewhere.join("jobs/again/agent/set/task__1/result.json").is_file());
}

#[test]
fn a_resume_needs_neither_the_job_file_nor_its_scripts() {
    let job = job()
        .task(TestTask::new("task"))
        .file("agent.sh", "exit 1")
        .agent(json!({"name": "agent", "execute_file": "agent.sh"}));
    job.run().expect(1);
    let mut resume = job.command(&["resume", "jobs/job", "--rerun", "error", "--output", "json"]);
    fs::remove_file(job.root().join("agent.sh")).unwrap();
    fs::remove_file(job.root().join("job.yaml")).unwrap();
    let resumed = resume.output().unwrap();
    let stdout = String::from_utf8_lossy(&resumed.stdout);
    assert_eq!(resumed.status.code(), Some(1), "{}", String::from_utf8_lossy(&resumed.stderr));
    assert_eq!(stdout.lines().filter(|line| line.contains(r#""event":"trial_finished""#)).count(), 1);
}

#[test]
fn a_resume_asks_no_registry_and_no_repository_again() {
    let job = job().oracle();
    TestRepo::new(job.root().join("public/repo")).commit(&TestTask::new("task").solution("exit 1\n"));
    let server = FileServer::new(job.root().join("public"));
    let tasks = json!([{"name": "task", "git_url": server.url("repo/.git"), "path": "tasks/task"}]);
    let registry = json!([{"name": "set", "version": "1", "tasks": tasks}]);
    let job = job
        .file("public/registry.json", &registry.to_string())
        .set("datasets", json!([{"registry": {"url": server.url("registry.json")}, "name": "set"}]));
    job.run().expect(1);
    fs::remove_dir_all(job.root().join("public")).unwrap();
    let resumed = job.rollout(&["resume", "jobs/job", "--rerun", "error", "--output", "json"]).expect(1);
    assert_eq!(events_named(&resumed.events(), "trial_finished").len(), 1);
    assert_eq!(resumed.trial("oracle/set/task__1")["error"]["type"], "agent_execution_failed");
}

#[test]
fn a_resume_uses_the_provider_of_the_first_run() {
    let images = json!({"images": {"*": "host"}});
    let job = job()
        .task(TestTask::new("task"))
        .oracle()
        .set("environment", json!({"provider_config": images}))
        .env("DOCKER_HOST", "unix:///nonexistent");
    job.run().expect(0);
    let job = job.set("environment", json!({"type": "native", "provider_config": images}));
    job.rollout(&["resume", "jobs/job"]).expect(0);

    let journal = job.dir().join("journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, text.replace(r#""provider":"native","agents""#, r#""provider":"docker","agents""#))
        .unwrap();
    let config = fs::read_to_string(job.dir().join("journal.jsonl")).unwrap();
    let config = config.replace(r#""provider_config":{"images":{"*":"host"}}"#, r#""provider_config":{}"#);
    fs::write(&journal, config).unwrap();
    let job = job.set("environment", json!({}));
    let refused = job.rollout(&["resume", "jobs/job"]).expect(2);
    assert!(
        refused.stderr().contains("the job ran on docker, which is not available now"),
        "{}",
        refused.stderr()
    );
    assert!(refused.stderr().contains("hint: start the engine"), "{}", refused.stderr());
}

#[test]
fn a_directory_that_is_no_job_is_not_offered_for_a_resume() {
    let job = job().task(TestTask::new("task")).oracle();
    fs::create_dir_all(job.dir()).unwrap();
    let refused = job.run().expect(2);
    assert!(refused.stderr().contains("is not a job directory"), "{}", refused.stderr());
    assert!(!refused.stderr().contains("rollout resume"), "{}", refused.stderr());
}

#[test]
fn a_job_of_too_many_trials_is_refused_before_anything_is_made() {
    let job = job().task(TestTask::new("task")).oracle().set("n_attempts", json!(4_294_967_295_u32));
    let refused = job.run().expect(2);
    assert!(refused.stderr().contains("the limit is 1000000"), "{}", refused.stderr());
    assert!(!job.root().join("jobs").exists());
}
