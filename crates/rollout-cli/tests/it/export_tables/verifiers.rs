//! Rows in the form of the verifiers library.

use std::fs;

use rollout::{model::RolloutOutput, record::rows};
use rollout_testkit::{ModelServer, TestJob};
use serde_json::{Value, json};

use super::{HOSTILE, benchmark, containers, diligent, rollouts};

fn export(job: &TestJob) -> String {
    job.rollout(&["export", "verifiers", "jobs/job", "-o", "out"]).expect(0).stdout()
}

/// The rows of a file, as the library reads them. All of its lines are rows.
fn read(job: &TestJob, file: &str) -> Vec<RolloutOutput> {
    let mut found = Vec::new();
    let foreign = rows::read(&job.root().join(file), |_, row| found.push(row)).unwrap();
    assert_eq!(foreign, 0);
    found
}

fn json(job: &TestJob, file: &str) -> Value {
    serde_json::from_slice(&fs::read(job.root().join(file)).unwrap()).unwrap()
}

#[test]
fn rollouts_are_copied_with_their_averages() {
    let server = ModelServer::arithmetic();
    let job = rollouts(&server);
    job.run().expect(0);
    insta::assert_snapshot!(export(&job), @"
    out/outputs.jsonl
    out/metadata.json
    4 rows
    ");
    let mut own = read(&job, "jobs/job/outputs.jsonl");
    own.sort_by_key(|row| (row.example_id, row.attempt));
    assert_eq!(read(&job, "out/outputs.jsonl"), own);
    assert_eq!(json(&job, "out/metadata.json"), json(&job, "jobs/job/metadata.json"));
}

#[test]
fn tasks_in_containers_become_rows_with_what_was_said() {
    let server = diligent();
    let job = containers(&server);
    job.run().expect(1);
    insta::assert_snapshot!(export(&job), @"
    out/model/set/outputs.jsonl
    out/model/set/metadata.json
    out/oracle/set/outputs.jsonl
    out/oracle/set/metadata.json
    4 rows
    ");

    let [broken, plain] = read(&job, "out/model/set/outputs.jsonl").try_into().unwrap();
    let said: Vec<_> = plain.completion.iter().flatten().map(|message| message.role.as_str()).collect();
    assert_eq!((plain.example_id, plain.attempt, plain.reward), (1, Some(1), 1.0));
    assert_eq!(said, ["assistant", "tool", "assistant"]);
    assert_eq!(plain.completion.unwrap()[2].text(), HOSTILE);
    assert_eq!((plain.prompt.unwrap().len(), plain.stop_condition.as_deref()), (2, Some("no_tools_called")));
    assert!(plain.timing.total_ms > 0.0 && !plain.tool_defs.is_empty());
    assert_eq!((broken.reward, broken.error.unwrap().error.as_str()), (0.0, "verifier_failed"));

    let [_, script] = read(&job, "out/oracle/set/outputs.jsonl").try_into().unwrap();
    assert_eq!(script.prompt.unwrap()[0].text(), "Create the file /app/done.\n");
    assert_eq!((script.completion, script.is_completed), (Some(Vec::new()), true));

    let metadata = json(&job, "out/model/set/metadata.json");
    let told = ["env_id", "model", "num_examples", "rollouts_per_example", "avg_reward", "avg_error"];
    let told: Vec<_> = told.iter().map(|key| metadata[key].clone()).collect();
    assert_eq!(told, [json!("set"), json!("scripted"), json!(2), json!(1), json!(0.5), json!(0.5)]);
    assert_eq!(json(&job, "out/oracle/set/metadata.json")["model"], "oracle");
}

#[test]
fn questions_of_a_benchmark_become_rows() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server);
    job.rollout(&["eval", "config.json"]).expect(0);
    export(&job);
    let [right, wrong] = read(&job, "out/outputs.jsonl").try_into().unwrap();
    assert_eq!((right.task.as_str(), right.reward, right.metrics["exact_match"]), ("q1", 1.0, 1.0));
    assert_eq!((&right.columns["predicted_answer"], right.error), (&json!("4"), None));
    assert_eq!((wrong.reward, wrong.answer.as_deref()), (0.0, Some("8")));
    assert_eq!(wrong.completion.unwrap()[0].role.as_str(), "assistant");
    assert_eq!(json(&job, "out/metadata.json")["avg_reward"], 0.5);
}
