//! `eval_log: true`: records as trials end.

use std::fs;

use rollout_testkit::{Hold, ModelReply, ModelServer, TestJob, TestTask};
use serde_json::{Value, json};

use super::{episode, experiment, job, model, sums};

/// How many episodes have a record.
fn recorded(job: &TestJob, pair: &str) -> usize {
    let entries = fs::read_dir(job.dir().join("eval-log").join(pair).join("episodes"));
    entries.map_or(0, |entries| {
        entries.filter(|entry| entry.as_ref().unwrap().path().join("episode_record.json").is_file()).count()
    })
}

/// All records, as one text each.
fn records(job: &TestJob, log: &str, pair: &str) -> Vec<String> {
    let dir = job.root().join(log).join(pair);
    let mut records = vec![fs::read_to_string(dir.join("experiment_record.json")).unwrap()];
    let mut names: Vec<_> =
        fs::read_dir(dir.join("episodes")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    records.extend(names.iter().map(|name| fs::read_to_string(name.join("episode_record.json")).unwrap()));
    records
}

#[test]
fn a_job_writes_what_an_export_of_it_would() {
    let server = ModelServer::arithmetic();
    let job = job().task(TestTask::new("task")).oracle().agent(model(&server)).set("eval_log", json!(true));
    let job = job.set("datasets", json!([{"path": "set"}, sums(3)[0]]));
    job.run();
    job.rollout(&["export", "eval-log", "jobs/job", "-o", "out"]).expect(0);
    for (pair, episodes) in [("oracle/set", 1), ("model/set", 1), ("model/sums", 3), ("oracle/sums", 3)] {
        let written = records(&job, "jobs/job/eval-log", pair);
        assert_eq!(written.len(), episodes + 1, "{pair}");
        assert_eq!(written, records(&job, "out", pair), "{pair}");
    }
}

#[test]
fn the_experiment_is_recorded_at_the_start_and_each_episode_as_it_ends() {
    let hold = Hold::new();
    hold.pass(2);
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let job = job().agent(model(&server)).set("datasets", sums(4)).set("eval_log", json!(true));
    let job = job.set("n_concurrent_trials", json!(1));
    let mut running = job.start();
    running.until("two rollouts", |events| rollout_testkit::finished_trials(events) == 2);
    assert_eq!(experiment(&job.dir().join("eval-log"), "model/sums")["benchmark_subset"]["n_tasks"], 4);
    assert_eq!(recorded(&job, "model/sums"), 2);
    hold.open();
    running.finish().expect(0);
    assert_eq!(recorded(&job, "model/sums"), 4);
}

#[test]
fn a_killed_job_has_all_its_records_when_it_is_resumed() {
    let hold = Hold::new();
    hold.pass(5);
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let job = job().agent(model(&server)).set("datasets", sums(9)).set("eval_log", json!(true));
    job.kill_at(&["run", "job.yaml", "--output", "json"], &[], [5], || ());
    // As if the process had been killed before these were written.
    let log = job.dir().join("eval-log");
    let first = fs::read_dir(log.join("model/sums/episodes")).unwrap().next().unwrap().unwrap().path();
    fs::remove_dir_all(first).unwrap();
    let before = experiment(&log, "model/sums");
    hold.open();
    job.rollout(&["resume", "jobs/job"]).expect(0);
    assert_eq!(recorded(&job, "model/sums"), 9);
    assert_eq!(experiment(&log, "model/sums"), before);
}

#[test]
fn an_episode_that_is_run_again_takes_the_place_of_its_record_and_loses_its_findings() {
    let job = job().task(TestTask::new("task")).set("eval_log", json!(true));
    let job = job.script("test -e /app/no || exit 1").set("n_attempts", json!(1));
    job.run().expect(1);
    let log = job.dir().join("eval-log");
    let mut before = episode(&log, "agent/set/task__1");
    before["findings"] = json!({"difficulty": "easy", "feasible": true, "failure_root_cause": "It gave up."});
    let path = log.join("agent/set/episodes/task__1/episode_record.json");
    fs::write(&path, before.to_string()).unwrap();

    job.rollout(&["resume", "jobs/job"]).expect(1);
    assert_eq!(episode(&log, "agent/set/task__1"), before, "nothing ran");
    job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(1);
    let after = episode(&log, "agent/set/task__1");
    assert_eq!(after["findings"], Value::Null);
    assert!(after["timestamp"].as_f64() > before["timestamp"].as_f64(), "{after:#}");
    assert_eq!(recorded(&job, "agent/set"), 1);
}

#[test]
fn a_log_that_cannot_be_written_is_reported_and_stops_nothing() {
    let server = ModelServer::always(ModelReply::text("1"));
    let job = job().agent(model(&server)).set("datasets", sums(2)).set("eval_log", json!(true));
    job.run().expect(0);
    let log = job.dir().join("eval-log");
    fs::remove_dir_all(&log).unwrap();
    fs::write(&log, "in the way").unwrap();
    let resumed = job.rollout(&["resume", "jobs/job", "--rerun", "unsolved", "--output", "json"]).expect(0);
    let warnings: Vec<_> = resumed
        .events()
        .into_iter()
        .filter(|event| event["message"].as_str().is_some_and(|message| message.contains("eval log")))
        .collect();
    let message = warnings[0]["message"].as_str().unwrap().replace(job.root().to_str().unwrap(), "");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    insta::assert_snapshot!(message, @"the eval log is incomplete: cannot write jobs/job/eval-log/model/sums: Not a directory (os error 20); create it again with `rollout export eval-log`");
}
