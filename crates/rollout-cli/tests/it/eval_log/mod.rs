//! Eval logs of every kind of job, by the command.

mod cube_harness;
mod export;
mod investigate;
mod live;
mod many;
mod questions;

use std::{fs, path::Path};

use rollout_testkit::{ModelServer, TestJob};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// An agent named `model` that is a model of this server.
fn model(server: &ModelServer) -> Value {
    json!({"name": "model", "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0}})
}

/// Sums for a model, with the numbers from 0 on.
fn sums(count: usize) -> Value {
    let sums = (0..count).map(|n| {
        json!({"question": format!("What is {n}+1?"), "answer": (n + 1).to_string(), "info": {"split": "test"}})
    });
    json!([{"name": "sums", "interaction": {"dataset": sums.collect::<Vec<_>>(), "rubric": [{"match": "numeric"}]}}])
}

#[track_caller]
fn json_file(path: impl AsRef<Path>) -> Value {
    let path = path.as_ref();
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The record of an episode in an eval log of a whole job.
#[track_caller]
fn episode(log: &Path, trial: &str) -> Value {
    let (experiment, trajectory) = trial.rsplit_once('/').unwrap();
    json_file(log.join(experiment).join("episodes").join(trajectory).join("episode_record.json"))
}

#[track_caller]
fn experiment(log: &Path, pair: &str) -> Value {
    json_file(log.join(pair).join("experiment_record.json"))
}

/// A record without what differs between two runs: times.
fn without_times(mut record: Value) -> Value {
    for key in ["timestamp", "wall_time_s", "evaluation_timestamp"] {
        if let Some(time) = record.get_mut(key) {
            assert!(time.as_f64().is_some_and(|time| time > 0.0), "{key} is {time}");
            *time = json!("[time]");
        }
    }
    record
}
