//! Rows, conversations and samples, validated against schemas and read by another program.

use std::{fs, path::Path};

use rollout_testkit::{ModelReply, ModelServer, Python, TestJob};
use serde_json::{Value, json};

use super::{benchmark, containers, diligent, model, rollouts};

/// Every format of which a job gives files without a library of its own.
const ALL: [&str; 9] = ["csv", "parquet", "eval-log", "eee", "inspect", "atif", "verifiers", "sft", "rl"];

fn export(job: &TestJob, arguments: &[&str]) {
    job.rollout(&[&["export"], arguments, &["jobs/job", "-o", "out"]].concat()).expect(0);
}

/// How many rows each file has, once all are validated.
#[track_caller]
fn validated(job: &TestJob) -> Value {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/export_tables/schemas");
    let given = json!({"schemas": schemas, "out": job.root().join("out")});
    Python::new().run(include_str!("schemas/check.py"), &given.to_string()).parse().unwrap()
}

/// Two attempts at each of two sums, by a model whose server returns token ids. The first sum is right.
fn with_tokens(server: &ModelServer) -> TestJob {
    rollouts(server).set("agents", json!([policy(server)]))
}

/// A model that asks its server for token ids.
fn policy(server: &ModelServer) -> Value {
    let mut agent = model(server);
    agent["model"]["token_ids"] = json!(true);
    agent
}

fn tokens() -> ModelServer {
    ModelServer::always(ModelReply::text("2").tokens(&[1, 2, 3], &[(4, -0.5), (5, -0.125)]))
}

#[test]
fn rows_conversations_and_samples_of_rollouts_are_as_their_schemas_say() {
    let server = tokens();
    let job = with_tokens(&server);
    job.run().expect(0);
    for arguments in [&["verifiers"][..], &["sft"], &["rl"], &["rl", "--format", "parquet"]] {
        export(&job, arguments);
    }
    let expected = json!({"metadata.json": 1, "results.jsonl": 4, "samples.jsonl": 4, "samples.parquet": 4, "traces.jsonl": 1});
    assert_eq!(validated(&job), expected);
}

#[test]
fn rows_conversations_and_samples_of_containers_are_as_their_schemas_say() {
    let call = ModelReply::tool_call("bash", &json!({"command": "touch /app/done; echo made"}));
    let server = ModelServer::turns([
        call.tokens(&[1], &[(2, -0.5)]),
        ModelReply::text("Done.").tokens(&[1, 2, 3], &[(4, -0.25)]),
    ]);
    let job = containers(&server).set("agents", json!([policy(&server)])).oracle();
    job.run().expect(1);
    for arguments in [&["verifiers"][..], &["sft"], &["rl"], &["rl", "--format", "parquet"]] {
        export(&job, arguments);
    }
    let expected = json!({
        "traces.jsonl": 1,
        "model/set/metadata.json": 1, "model/set/results.jsonl": 2,
        "model/set/samples.jsonl": 1, "model/set/samples.parquet": 1,
        "oracle/set/metadata.json": 1, "oracle/set/results.jsonl": 2,
    });
    assert_eq!(validated(&job), expected);
}

#[test]
fn rows_and_conversations_of_a_benchmark_are_as_their_schemas_say() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server);
    job.rollout(&["eval", "config.json"]).expect(0);
    for arguments in [&["verifiers"], &["sft"]] {
        export(&job, arguments);
    }
    let expected = json!({"metadata.json": 1, "results.jsonl": 2, "traces.jsonl": 1});
    assert_eq!(validated(&job), expected);
}

#[test]
fn messages_and_errors_match_the_schemas() {
    let server = diligent();
    let job = containers(&server);
    job.run().expect(1);
    for arguments in [&["verifiers"], &["sft"]] {
        export(&job, arguments);
    }
    validated(&job);
}

/// Takes all but so many trials out of the journal, as in a job that still runs.
fn cut(job: &TestJob, kept: u64) {
    let journal = job.dir().join("journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    let is_kept = |line: &&str| {
        let entry: Value = line.parse().unwrap();
        entry["entry"] != "trial" || entry["index"].as_u64().unwrap() < kept
    };
    let lines: String = text.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    fs::write(&journal, lines).unwrap();
}

#[test]
fn every_format_reports_the_number_of_unfinished_trials() {
    let server = tokens();
    let job = with_tokens(&server);
    job.run().expect(0);
    let last = |out: &str, format: &str| {
        let reported = job.rollout(&["export", format, "jobs/job", "-o", out]).expect(0).stdout();
        reported.lines().last().unwrap().to_owned()
    };
    for format in ALL {
        assert!(!last(&format!("all-{format}"), format).contains("finished"), "{format}");
    }
    cut(&job, 3);
    assert_eq!(last("three", "csv"), "left out: 1 unfinished trial");
    cut(&job, 2);
    for format in ALL {
        let reported = last(&format!("two-{format}"), format);
        assert_eq!(reported, "left out: 2 unfinished trials", "{format}");
    }
}

#[test]
fn every_format_leaves_out_trials_by_tag_and_counts_them() {
    let server = tokens();
    let job = with_tokens(&server);
    job.run().expect(0);
    job.rollout(&["note", "jobs/job/*/*/0__1", "--tag", "broken"]).expect(0);
    for format in ALL {
        let exported =
            job.rollout(&["export", format, "jobs/job", "-o", format, "--exclude-tag", "broken"]).expect(0);
        let text = exported.stdout();
        assert_eq!(text.lines().last(), Some("left out: 1 trial by tag: broken"), "{format}: {text}");
    }
    let trials = fs::read_to_string(job.root().join("csv/trials.csv")).unwrap();
    assert_eq!(trials.lines().count(), 1 + 3, "{trials}");

    job.rollout(&["note", "jobs/job/*/*/*", "--tag", "broken"]).expect(0);
    for format in ["sft", "rl", "verifiers", "eee", "atif"] {
        let refused =
            job.rollout(&["export", format, "jobs/job", "-o", "none", "--exclude-tag", "broken"]).expect(2);
        let reason = refused.stderr();
        assert!(reason.contains("4 trials by tag: broken"), "{format}: {reason}");
        assert!(!reason.contains("model"), "{format}: {reason}");
    }
}

#[test]
fn a_job_without_finished_trials_has_nothing_for_any_format() {
    let server = tokens();
    let job = with_tokens(&server);
    job.run().expect(0);
    cut(&job, 0);
    for format in ALL {
        let refused = job.rollout(&["export", format, "jobs/job", "-o", "out"]).expect(2);
        let expected = "error: jobs/job has nothing to export: no trial is finished\n";
        assert_eq!((format, refused.stderr().as_str()), (format, expected));
        assert!(!job.root().join("out").exists(), "{format}");
    }
}

#[test]
fn a_path_that_is_not_a_directory_is_reported_with_what_to_do() {
    let server = tokens();
    let job = with_tokens(&server).file("taken", "mine");
    job.run().expect(0);
    insta::assert_snapshot!(job.rollout(&["export", "csv", "jobs/job", "-o", "taken"]).expect(2).stderr(), @"
    error: cannot write taken/trials.csv
    cause: File exists (os error 17)
    hint: the output directory is a file; choose another directory
    ");
    insta::assert_snapshot!(job.rollout(&["export", "csv", "nowhere", "-o", "out"]).expect(2).stderr(), @"
    error: nowhere does not exist
    hint: pass the directory that `rollout run` printed
    ");
    assert_eq!(fs::read_to_string(job.root().join("taken")).unwrap(), "mine");
}

#[test]
fn the_hint_on_missing_samples_is_about_the_model_if_there_is_one() {
    let server = diligent();
    let job = containers(&server).script("true");
    job.run().expect(1);
    let refused = job.rollout(&["export", "rl", "jobs/job", "-o", "out"]).expect(2).stderr();
    insta::assert_snapshot!(refused, @"
    error: no training samples in jobs/job: 4 trials without a recorded conversation, 1 rollout without token ids, 1 trial without a reward
    hint: set `token_ids: true` for the model, and run the job again; the model's server must return token ids, as vLLM does
    ");
}
