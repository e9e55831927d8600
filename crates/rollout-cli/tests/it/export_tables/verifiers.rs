//! Rows in the form of the verifiers library.

use std::fs;

use rollout::{model::RolloutOutput, record::rows};
use rollout_testkit::{ModelReply, ModelServer, Python, TestJob};
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
    out/results.jsonl
    out/metadata.json
    4 rows
    ");
    let mut own = read(&job, "jobs/job/outputs.jsonl");
    own.sort_by_key(|row| (row.example_id, row.attempt));
    let exported = read(&job, "out/results.jsonl");
    assert_eq!(exported.len(), own.len());
    for (exported, own) in exported.into_iter().zip(own) {
        assert!((exported.timing.total_ms - own.timing.total_ms).abs() < 1e-6, "{:?}", exported.timing);
        // Times are spans there, and turns have all that the original has.
        let mut same = RolloutOutput { timing: own.timing, extras: own.extras.clone(), ..exported };
        same.columns["trajectory"] = own.columns["trajectory"].clone();
        assert_eq!(same, own);
    }
    let (mut exported, mut own) = (json(&job, "out/metadata.json"), json(&job, "jobs/job/metadata.json"));
    assert!(exported["usage"]["final_output_tokens"].is_number());
    for metadata in [&mut exported, &mut own] {
        metadata["usage"] = Value::Null;
    }
    assert_eq!(exported, own);
}

#[test]
fn the_original_loads_an_export_and_resumes_it() {
    let call = ModelReply::tool_call("add", &json!({"a": 1, "b": 2})).call_id("call-1");
    let server = ModelServer::turns([call, ModelReply::text("It is 3")]);
    let rows = json!([{"question": "1+2?", "answer": "3"}, {"question": "2+2?", "answer": "4"}]);
    let add = json!({"name": "add", "description": "Adds.", "command": ["sh", "-c", "echo 3"]});
    let interaction = json!({
        "dataset": rows, "tools": [add], "rubric": [{"match": "contains"}], "state_columns": ["trajectory"],
    });
    let job = super::job()
        .agent(super::model(&server))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    job.run().expect(0);
    export(&job);

    let results = job.root().join("out/results.jsonl");
    let text = fs::read_to_string(&results).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let said = &first["completion"][0];
    assert_eq!((&said["content"], said["tool_calls"][0].is_string()), (&json!(""), true), "{first:#}");

    // The original finds nothing to do, and then the one row that is missing.
    let examples = json!([["1+2?", "3"], ["2+2?", "4"]]);
    let resume = json!({
        "do": "generate", "dir": job.root().join("out"), "env_id": "sums", "model": "scripted",
        "examples": examples, "rollouts": 2, "tools": true,
    });
    let load = json!({"do": "load", "dir": job.root().join("out")});
    let python = Python::new();
    let [loaded, resumed] = python.verifiers(&[load, resume.clone()]).try_into().unwrap();
    assert_eq!(loaded.as_array().map(Vec::len), Some(4));
    assert_eq!((&resumed["calls"], &resumed["rows"]), (&json!(0), &json!(4)));
    let ours = json(&job, "jobs/job/metadata.json");
    for key in ["avg_reward", "avg_metrics", "avg_error", "pass_at_k", "pass_all_k"] {
        assert_eq!(resumed["metadata"][key], ours[key], "{key}");
    }
    assert_eq!(resumed["metadata"]["usage"], json(&job, "out/metadata.json")["usage"]);

    let cut: String = text.lines().take(3).map(|line| format!("{line}\n")).collect();
    fs::write(&results, cut).unwrap();
    let [resumed] = python.verifiers(&[resume]).try_into().unwrap();
    assert_eq!((&resumed["calls"], &resumed["rows"]), (&json!(2), &json!(4)));
    assert_eq!(read(&job, "out/results.jsonl").len(), 4, "its row is read here again");
}

#[test]
fn the_original_reads_masks_of_tokens_and_the_error_of_a_failed_rollout() {
    let server = ModelServer::scripted(|request| match request.last_text().contains("1+2") {
        true => ModelReply::text("3").tokens(&[1, 2], &[(3, -0.5)]),
        false => ModelReply::error(400, "no such thing"),
    });
    let mut agent = super::model(&server);
    agent["model"]["token_ids"] = json!(true);
    let rows = json!([{"question": "1+2?", "answer": "3"}, {"question": "2+2?", "answer": "4"}]);
    let interaction =
        json!({"dataset": rows, "rubric": [{"match": "numeric"}], "state_columns": ["trajectory"]});
    let job = super::job()
        .agent(agent)
        .set("n_concurrent_trials", json!(1))
        .set("retry", json!({"max_attempts": 1}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    job.run().expect(1);
    export(&job);

    // It checks the masks of the response against those of the turn.
    let load = json!({"do": "load", "dir": job.root().join("out")});
    let [loaded] = Python::new().verifiers(&[load]).try_into().unwrap();
    let (solved, failed) = (&loaded[0], &loaded[1]);
    let tokens = &solved["trajectory"][0]["response"]["message"]["tokens"];
    assert_eq!((&tokens["prompt_ids"], &tokens["prompt_mask"]), (&json!([1, 2]), &json!([0, 0])));
    assert_eq!((&tokens["completion_ids"], &tokens["completion_mask"]), (&json!([3]), &json!([1])));
    assert_eq!((&solved["reward"], &solved["error"]), (&json!(1.0), &Value::Null));

    assert_eq!((&failed["reward"], &failed["error"]["error"]), (&json!(0.0), &json!("ModelError")));
    let [chain, long] = ["error_chain", "long_error_chain"].map(|key| failed[key].as_str().unwrap());
    // The original puts the messages into the first, and only the names into the second.
    assert!(chain.starts_with("ModelError(\"") && chain.contains("no such thing"), "{chain}");
    assert!(long.starts_with("ModelError") && !long.contains('('), "{long}");
    assert_eq!((chain, long), {
        let text = |key: &str| failed["error"][key].as_str().unwrap();
        (text("error_chain_repr"), text("error_chain_str"))
    });
}

#[test]
fn tasks_in_containers_become_rows_with_what_was_said() {
    let server = diligent();
    let job = containers(&server);
    job.run().expect(1);
    insta::assert_snapshot!(export(&job), @"
    out/model/set/results.jsonl
    out/model/set/metadata.json
    out/oracle/set/results.jsonl
    out/oracle/set/metadata.json
    4 rows
    ");

    let [broken, plain] = read(&job, "out/model/set/results.jsonl").try_into().unwrap();
    let said: Vec<_> = plain.completion.iter().flatten().map(|message| message.role.as_str()).collect();
    assert_eq!((plain.example_id, plain.attempt, plain.reward), (1, Some(1), 1.0));
    assert_eq!(said, ["assistant", "tool", "assistant"]);
    assert_eq!(plain.completion.unwrap()[2].text(), HOSTILE);
    assert_eq!((plain.prompt.unwrap().len(), plain.stop_condition.as_deref()), (2, Some("no_tools_called")));
    assert!(plain.timing.total_ms > 0.0 && !plain.tool_defs.is_empty());
    assert_eq!((broken.reward, broken.error.unwrap().error.as_str()), (0.0, "verifier_failed"));

    let [_, script] = read(&job, "out/oracle/set/results.jsonl").try_into().unwrap();
    assert_eq!(script.prompt.unwrap()[0].text(), "Create the file /app/done.\n");
    assert_eq!((script.completion, script.is_completed), (Some(Vec::new()), true));

    let metadata = json(&job, "out/model/set/metadata.json");
    let reported = ["env_id", "model", "num_examples", "rollouts_per_example", "avg_reward", "avg_error"];
    let reported: Vec<_> = reported.iter().map(|key| metadata[key].clone()).collect();
    assert_eq!(reported, [json!("set"), json!("scripted"), json!(2), json!(1), json!(0.5), json!(0.5)]);
    assert_eq!(json(&job, "out/oracle/set/metadata.json")["model"], "oracle");
}

#[test]
fn questions_of_a_benchmark_become_rows() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server);
    job.rollout(&["eval", "config.json"]).expect(0);
    export(&job);
    let [right, wrong] = read(&job, "out/results.jsonl").try_into().unwrap();
    assert_eq!((right.task.as_str(), right.reward, right.metrics["exact_match"]), ("q1", 1.0, 1.0));
    assert_eq!((&right.columns["predicted_answer"], right.error), (&json!("4"), None));
    assert_eq!((wrong.reward, wrong.answer.as_deref()), (0.0, Some("8")));
    assert_eq!(wrong.completion.unwrap()[0].role.as_str(), "assistant");
    assert_eq!(json(&job, "out/metadata.json")["avg_reward"], 0.5);
}

#[test]
fn unscored_questions_have_no_row_and_are_not_in_the_averages() {
    let server = ModelServer::arithmetic();
    let questions = "{\"id\": \"right\", \"question\": \"What is 2+2?\", \"answer\": \"4\"}\n\
                     {\"id\": \"open\", \"question\": \"What is 3+4?\"}\n";
    let job = benchmark(&server).file("questions.jsonl", questions);
    job.rollout(&["eval", "config.json"]).expect(0);
    insta::assert_snapshot!(export(&job), @"
    out/results.jsonl
    out/metadata.json
    1 row
    left out: unscored trials of m on questions (1)
    ");
    let [right] = read(&job, "out/results.jsonl").try_into().unwrap();
    assert_eq!((right.task.as_str(), right.reward), ("right", 1.0));
    assert_eq!(json(&job, "out/metadata.json")["avg_reward"], 1.0);
    let load = json!({"do": "load", "dir": job.root().join("out")});
    let [loaded] = Python::new().verifiers(&[load]).try_into().unwrap();
    assert_eq!(loaded.as_array().map(Vec::len), Some(1));

    let job = job.file("questions.jsonl", "{\"id\": \"open\", \"question\": \"What is 3+4?\"}\n");
    job.rollout(&["eval", "config.json", "--output-dir", "jobs/open"]).expect(0);
    let refused = job.rollout(&["export", "verifiers", "jobs/open", "-o", "none"]).expect(2);
    insta::assert_snapshot!(refused.stderr(), @"error: jobs/open has nothing to export: no scores, only unscored trials of m on questions (1)");
    assert!(!job.root().join("none").exists());
}
