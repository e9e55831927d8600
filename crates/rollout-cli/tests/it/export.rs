//! `rollout export`, through the command.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use rollout_testkit::{Finished, Hold, ModelReply, ModelServer, TestJob, TestTask, long_enough};
use serde_json::{Value, json};

/// A job with one model, one attempt at a time, and datasets of one example each.
fn job(server: &ModelServer, datasets: &[&str], columns: &[&str], token_ids: bool) -> TestJob {
    let dataset = |name: &&str| {
        let rows = json!([{"question": "What is 1+1?", "answer": "2"}]);
        let interaction =
            json!({"dataset": rows, "rubric": [{"match": "numeric"}], "state_columns": columns});
        json!({"name": name, "interaction": interaction})
    };
    let model = json!({"name": "policy", "base_url": server.url(), "max_retries": 0, "token_ids": token_ids});
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "policy", "model": model}))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1))
        .set("retry", json!({"max_attempts": 1}))
        .set("datasets", datasets.iter().map(dataset).collect())
}

/// A right answer, and a wrong one.
fn server() -> ModelServer {
    ModelServer::sequence([
        ModelReply::text("2").tokens(&[1, 2, 3], &[(4, -0.5)]),
        ModelReply::text("3").tokens(&[1, 2, 3], &[(5, -0.25), (6, -0.125)]),
    ])
}

fn export(job: &TestJob) -> Finished {
    job.rollout(&["export", "rl", "jobs/job", "-o", "out"])
}

fn samples(job: &TestJob, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(job.root().join(file)).unwrap();
    let mut samples: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    samples.sort_by_key(|sample| sample["token_ids"].as_array().unwrap().len());
    samples
}

#[test]
fn rollouts_with_their_turns_become_training_samples() {
    let server = server();
    let job = job(&server, &["sums"], &["trajectory"], true);
    job.run().expect(0);
    insta::assert_snapshot!(export(&job).expect(0).stdout(), @"out/samples.jsonl: 2 samples with 9 tokens, 3 of them sampled, from 2 rollouts");
    let samples = samples(&job, "out/samples.jsonl");
    assert_eq!(samples.len(), 2);
    assert_eq!(samples[1]["token_ids"], json!([1, 2, 3, 5, 6]));
    assert_eq!(samples[1]["loss_mask"], json!([0, 0, 0, 1, 1]));
    assert_eq!(samples[1]["logprobs"], json!([0.0, 0.0, 0.0, -0.25, -0.125]));
    assert_eq!(samples[1]["advantages"], json!([0.0, 0.0, 0.0, -0.5, -0.5]));
    assert_eq!((&samples[0]["reward"], &samples[0]["advantage"]), (&json!(1.0), &json!(0.5)));
    assert_eq!(fs::read_dir(job.root().join("out")).unwrap().count(), 2);
    let summary: Value =
        serde_json::from_slice(&fs::read(job.root().join("out/samples.jsonl.summary.json")).unwrap())
            .unwrap();
    assert_eq!((&summary["samples"], &summary["left_out"]), (&json!(2), &json!({})));
}

#[test]
fn an_export_is_never_overwritten() {
    let server = server();
    let job = job(&server, &["sums"], &["trajectory"], true);
    job.run().expect(0);
    export(&job).expect(0);
    let before = fs::read(job.root().join("out/samples.jsonl")).unwrap();
    insta::assert_snapshot!(export(&job).expect(2).stderr(), @"
    error: out/samples.jsonl already exists, and results are never overwritten
    hint: choose another directory, or remove the file
    ");
    assert_eq!(fs::read(job.root().join("out/samples.jsonl")).unwrap(), before);
}

#[test]
fn each_model_and_dataset_has_a_file_of_its_own() {
    let server = ModelServer::always(ModelReply::text("2").tokens(&[1], &[(2, -0.5)]));
    let job = job(&server, &["sums", "others"], &["trajectory"], true);
    job.run().expect(0);
    insta::assert_snapshot!(export(&job).expect(0).stdout(), @"
    out/policy/sums/samples.jsonl: 2 samples with 4 tokens, 2 of them sampled, from 2 rollouts
    out/policy/others/samples.jsonl: 2 samples with 4 tokens, 2 of them sampled, from 2 rollouts
    ");
    for file in ["out/policy/sums/samples.jsonl", "out/policy/others/samples.jsonl"] {
        assert_eq!(samples(&job, file).len(), 2, "{file}");
    }
}

#[test]
fn rollouts_saved_without_their_turns_are_reported_with_the_setting() {
    let server = server();
    let job = job(&server, &["sums"], &[], true);
    job.run().expect(0);
    insta::assert_snapshot!(export(&job).expect(2).stderr(), @"
    error: no training samples in jobs/job: 2 rollouts saved without `trajectory`
    hint: set `state_columns: [trajectory]` in the interaction, and run the job again
    ");
    assert!(!job.root().join("out").exists());
}

#[test]
fn rollouts_without_tokens_are_reported_with_the_setting() {
    let server = server();
    let job = job(&server, &["sums"], &["trajectory"], false);
    job.run().expect(0);
    insta::assert_snapshot!(export(&job).expect(2).stderr(), @"
    error: no training samples in jobs/job: 2 rollouts without token ids
    hint: set `token_ids: true` for the model, and run the job again; the model's server must return token ids, as vLLM does
    ");
}

#[test]
fn what_cannot_be_exported_is_counted_and_the_rest_is_exported() {
    let server = ModelServer::always(ModelReply::text("2").tokens(&[1, 2, 3], &[(4, -0.5)]));
    let job = job(&server, &["sums"], &["trajectory"], true).set("n_attempts", json!(5));
    job.run().expect(0);
    let rows = job.dir().join("outputs.jsonl");
    let text = fs::read_to_string(&rows).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| line.parse().unwrap()).collect();
    lines[0]["trajectory"] = Value::Null;
    lines[1]["trajectory"][0]["tokens"] = Value::Null;
    lines[2]["trajectory"][0]["tokens"]["completion_logprobs"] = json!([]);
    lines[3]["trajectory"] = json!("lost");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&rows, text + "{\"example_id\": 5, \"traj").unwrap();
    insta::assert_snapshot!(export(&job).expect(0).stdout(), @"
    out/samples.jsonl: 1 sample with 4 tokens, 1 of them sampled, from 1 rollout
    left out: 1 rollout saved without `trajectory`; set `state_columns: [trajectory]` in the interaction, and run the job again
    left out: 1 rollout without token ids; set `token_ids: true` for the model, and run the job again; the model's server must return token ids, as vLLM does
    left out: 1 rollout with different numbers of tokens and probabilities; the model's server returned more or fewer probabilities than tokens; update the server
    left out: 1 rollout with an invalid `trajectory`; the file of rows may have been edited
    ");
    assert_eq!(samples(&job, "out/samples.jsonl").len(), 1);
}

#[test]
fn a_rollout_that_was_run_again_gives_the_samples_of_its_last_run() {
    let server = ModelServer::sequence([
        ModelReply::text("3").tokens(&[1], &[(2, -0.5)]),
        ModelReply::text("2").tokens(&[1], &[(3, -0.5)]),
        ModelReply::text("2").tokens(&[1], &[(4, -0.5)]),
    ]);
    let job = job(&server, &["sums"], &["trajectory"], true);
    job.run().expect(0);
    job.rollout(&["resume", "jobs/job", "--rerun", "unsolved"]).expect(0);
    export(&job).expect(0);
    let tokens: Vec<_> = samples(&job, "out/samples.jsonl").iter().map(|s| s["token_ids"].clone()).collect();
    assert_eq!(tokens, [json!([1, 4]), json!([1, 3])]);
}

#[test]
fn models_that_solve_tasks_in_containers_give_samples_too() {
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": "touch /app/done"}))
            .tokens(&[1], &[(2, -0.5)])
            .routed_experts(json!([[[3, 4]]]))
            .field("weight_version", json!("step-7")),
        ModelReply::text("Done.").tokens(&[1, 2, 3], &[(4, -0.25)]),
    ]);
    let model = json!({"name": "scripted", "base_url": server.url(), "max_retries": 0, "token_ids": true});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("broken").tests("exit 1\n"))
        .task(TestTask::new("task"))
        .agent(json!({"name": "policy", "model": model}))
        .oracle()
        .set("n_concurrent_trials", json!(1));
    job.run().expect(1);
    insta::assert_snapshot!(export(&job).expect(0).stdout(), @"
    out/policy/set/samples.jsonl: 1 sample with 4 tokens, 2 of them sampled, from 1 rollout
    left out: 1 trial without a reward; these trials failed; `rollout resume --rerun error` runs them again
    out/oracle/set: 0 samples with 0 tokens, 0 of them sampled, from 0 rollouts
    left out: 2 trials without a recorded conversation; only agents that are models have turns to train on
    ");
    let [sample] = samples(&job, "out/policy/set/samples.jsonl").try_into().unwrap();
    assert_eq!((&sample["token_ids"], &sample["loss_mask"]), (&json!([1, 2, 3, 4]), &json!([0, 1, 0, 1])));
    assert_eq!(
        (&sample["example_id"], &sample["task"], &sample["reward"]),
        (&json!(1), &json!("task"), &json!(1.0))
    );
    let kept = fs::read_to_string(job.dir().join("policy/set/task__1/trajectory.json")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!((&sample["trajectory_id"], &sample["advantage"]), (&kept["trajectory_id"], &Value::Null));
    assert_eq!(sample["stop_condition"], "no_tools_called");
    assert_eq!(sample["routed_experts"], json!([[[3, 4]], [[0, 0]], [[0, 0]], [[0, 0]]]));
    insta::assert_snapshot!(sample["turns"], @r#"[{"turn":0,"first_token":1,"tokens":1,"reward":1.0,"policy_version":"step-7"},{"turn":1,"first_token":3,"tokens":1,"reward":1.0,"policy_version":"scripted"}]"#);
    job.rollout(&["export", "rl", "jobs/job", "-o", "compared", "--advantage", "group_mean"]).expect(0);
    assert_eq!(samples(&job, "compared/policy/set/samples.jsonl")[0]["advantage"], 0.0);
}

#[test]
fn a_model_that_runs_out_of_its_own_time_in_a_container_gives_no_samples() {
    let job = long_enough(Duration::from_secs(5), |timeout| {
        let hold = Hold::new();
        let server = ModelServer::scripted(move |request| match request.turns() {
            0 => ModelReply::tool_call("bash", &json!({"command": "true"})).tokens(&[1], &[(2, -0.5)]),
            _ => ModelReply::text("Done.").held(&hold),
        });
        let model =
            json!({"name": "scripted", "base_url": server.url(), "max_retries": 0, "token_ids": true});
        let limits = json!({"timeout_sec": timeout.as_secs()});
        let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
            .task(TestTask::new("task"))
            .agent(json!({"name": "policy", "model": model, "limits": limits}));
        job.run();
        // Otherwise the time was up before the second turn.
        (server.served() == 2).then_some(job)
    });
    insta::assert_snapshot!(export(&job).expect(2).stderr(), @"
    error: no training samples in jobs/job: 1 rollout ended by timeout_reached
    hint: `rollout resume --rerun error` runs failed rollouts again; `--include-errors` exports them
    ");
}

#[test]
fn a_directory_without_rollouts_of_a_model_is_reported() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout")).file("jobs/job/result.json", "{}");
    insta::assert_snapshot!(export(&job).expect(2).stderr(), @"
    error: jobs/job is not a job directory: it has no journal.jsonl
    hint: pass the directory that `rollout run` printed
    ");
    let missing = job.rollout(&["export", "rl", "nowhere", "-o", "out"]).expect(2);
    insta::assert_snapshot!(missing.stderr(), @"
    error: nowhere does not exist
    hint: pass the directory that `rollout run` printed
    ");
    assert!(!job.root().join("out").exists());
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_says_how_to_get_it() {
    let server = server();
    let job = job(&server, &["sums"], &["trajectory"], true);
    let finished = job.rollout(&["export", "rl", "jobs/job", "-o", "out", "--format", "parquet"]).expect(2);
    insta::assert_snapshot!(finished.stderr(), @"
    error: this build of Rollout cannot write Parquet
    hint: build with `cargo install --path crates/rollout-cli --features parquet`, or export as jsonl
    ");
}

/// A job whose model has a tool.
fn looking(server: &ModelServer, token_prompts: bool) -> TestJob {
    looking_with(server, token_prompts, json!({}))
}

/// The same, with more settings of the interaction.
fn looking_with(server: &ModelServer, token_prompts: bool, settings: Value) -> TestJob {
    let mut interaction = json!({
        "dataset": [{"question": "What is 1+1?", "answer": "2"}],
        "tools": [{"command": ["true"], "name": "look", "description": "Looks.", "parameters": {"type": "object"}}],
        "rubric": [{"match": "numeric"}],
        "state_columns": ["trajectory"],
    });
    interaction.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let model = json!({
        "name": "policy", "base_url": server.url(), "max_retries": 0, "token_ids": true,
        "token_prompts": token_prompts,
    });
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "policy", "model": model}))
        .set("retry", json!({"max_attempts": 1}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]))
}

#[test]
fn with_token_prompts_sampled_tokens_are_sent_back_and_a_rollout_is_one_sample() {
    let server = ModelServer::scripted(|request| match request.turns() {
        0 => ModelReply::tool_call("look", &json!({})).tokens(&[1], &[(7000, -0.5), (2, -0.25)]),
        _ => {
            // Messages are tokenised anew, which gives other tokens.
            let tokens = request.body.get("tokens").cloned().unwrap_or(json!([1, 5]));
            let prompt: Vec<u32> = serde_json::from_value(tokens).unwrap();
            ModelReply::text("2").tokens(&prompt, &[(7001, -0.5)])
        }
    });
    for (token_prompts, path, count) in
        [(true, "/v1/chat/completions/tokens", 1), (false, "/v1/chat/completions", 2)]
    {
        let job = looking(&server, token_prompts);
        job.run().expect(0);
        assert_eq!(server.requests().last().unwrap().path, path);
        export(&job).expect(0);
        let samples = samples(&job, "out/samples.jsonl");
        assert_eq!(samples.len(), count, "{samples:#?}");
    }
    assert_eq!(
        server.requests()[1].body["tokens"].as_array().unwrap()[..3],
        [json!(1), json!(7000), json!(2)]
    );
}

/// Four rollouts of two turns: two end well, in the second turn of the others the server fails.
fn failing_in_the_second_turn(settings: Value) -> (ModelServer, TestJob) {
    let second_turns = AtomicUsize::new(0);
    let server = ModelServer::scripted(move |request| match request.turns() {
        0 => ModelReply::tool_call("look", &json!({})).tokens(&[1, 2], &[(3, -0.5)]),
        _ => match second_turns.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => ModelReply::error(500, "out of memory"),
            2 => ModelReply::text("2").tokens(&[1, 2, 3, 4], &[(5, -0.25)]),
            _ => ModelReply::text("3").tokens(&[1, 2, 3, 4], &[(5, -0.25)]),
        },
    });
    let job = looking_with(&server, false, settings);
    let job = job.set("n_attempts", json!(4)).set("n_concurrent_trials", json!(4));
    (server, job)
}

/// The advantages of the samples of rollouts that failed, and of the others, each in ascending order.
fn advantages(job: &TestJob, dir: &str) -> (Vec<f64>, Vec<f64>) {
    let samples = samples(job, &format!("{dir}/samples.jsonl"));
    let of = |is_failed: bool| {
        let some = samples.iter().filter(|sample| sample["error"].is_string() == is_failed);
        let mut found: Vec<_> = some.map(|sample| sample["advantage"].as_f64().unwrap()).collect();
        found.sort_by(f64::total_cmp);
        found
    };
    (of(true), of(false))
}

fn summary(job: &TestJob, dir: &str) -> Value {
    let text = fs::read(job.root().join(dir).join("samples.jsonl.summary.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn rollouts_that_the_server_failed_are_out_of_baseline_and_samples() {
    let (_server, job) = failing_in_the_second_turn(json!({}));
    job.run().expect(1);
    let exported = export(&job).expect(0);
    assert!(exported.stdout().contains("left out: 2 rollouts ended by ModelError"), "{}", exported.stdout());
    let samples = samples(&job, "out/samples.jsonl");
    assert_eq!(advantages(&job, "out"), (vec![], vec![-0.5, 0.5]));
    assert!(samples.iter().all(|sample| sample["error"].is_null()), "{samples:#?}");
    assert!(samples.iter().all(|sample| sample["stop_condition"] == "no_tools_called"), "{samples:#?}");
    assert_eq!(samples[0]["turns"].as_array().unwrap().len(), 2);
    assert_eq!(samples[0]["turns"][1]["policy_version"], "policy");
    let summary = summary(&job, "out");
    let left_out: u64 =
        summary["left_out"].as_object().unwrap().values().map(|number| number.as_u64().unwrap()).sum();
    assert_eq!(left_out, 2, "{summary:#}");
    assert_eq!(summary["advantage"], "group_mean");

    let all = ["export", "rl", "jobs/job", "-o", "all", "--include-errors"];
    job.rollout(&all).expect(0);
    assert_eq!(advantages(&job, "all"), (vec![-0.25, -0.25], vec![-0.25, 0.75]));

    let other = ["export", "rl", "jobs/job", "-o", "other", "--advantage", "normalised"];
    job.rollout(&other).expect(0);
    assert_eq!(advantages(&job, "other"), (vec![], vec![-1.0, 1.0]));
}

#[test]
fn a_rollout_that_is_left_out_by_its_tag_is_in_no_baseline() {
    let (_server, job) = failing_in_the_second_turn(json!({}));
    job.run().expect(1);
    let solved = job.rollout(&["list", "jobs/job", "--status", "solved", "--json"]).expect(0).stdout();
    let solved: Value = serde_json::from_str(&solved).unwrap();
    let trial = format!("jobs/job/{}", solved["trial"].as_str().unwrap());
    job.rollout(&["note", &trial, "--tag", "broken"]).expect(0);
    let tagged = ["export", "rl", "jobs/job", "-o", "tagged", "--exclude-tag", "broken"];
    let printed = job.rollout(&tagged).expect(0).stdout();
    assert!(printed.ends_with("left out: 1 trial by tag: broken\n"), "{printed}");
    // The recorded advantage of the other one is -0.5.
    assert_eq!(advantages(&job, "tagged"), (vec![], vec![0.0]));

    // Its row is not needed.
    let path = job.dir().join("outputs.jsonl");
    let attempt: u64 = trial.rsplit_once("__").unwrap().1.parse().unwrap();
    let damaged = fs::read_to_string(&path).unwrap().lines().fold(String::new(), |rows, line| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        if row["attempt"] == attempt {
            row["timing"] = json!("lost");
        }
        format!("{rows}{row}\n")
    });
    fs::write(&path, damaged).unwrap();
    job.rollout(&["export", "rl", "jobs/job", "-o", "whole"]).expect(2);
    job.rollout(&["export", "rl", "jobs/job", "-o", "damaged", "--exclude-tag", "broken"]).expect(0);
    assert_eq!(advantages(&job, "damaged"), (vec![], vec![0.0]));
}

#[test]
fn included_errors_count_in_a_baseline_of_the_jobs_own_estimator() {
    let (_server, job) = failing_in_the_second_turn(json!({"advantage": "leave_one_out"}));
    job.run().expect(1);
    job.rollout(&["export", "rl", "jobs/job", "-o", "all", "--include-errors"]).expect(0);
    let below = -1.0 / 3.0;
    let (failed, others) = advantages(&job, "all");
    assert!(
        failed.iter().chain(&others[..1]).all(|advantage| (advantage - below).abs() < 1e-9),
        "{failed:?}"
    );
    assert_eq!((failed.len(), others.len(), others[1]), (2, 2, 1.0));
    assert_eq!(summary(&job, "all")["advantage"], "leave_one_out");

    // A job of a program records neither its interaction nor its estimator.
    let path = job.dir().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["datasets"][0].as_object_mut().unwrap().remove("interaction");
    fs::write(&path, config.to_string()).unwrap();
    let refused = job.rollout(&["export", "rl", "jobs/job", "-o", "own", "--include-errors"]).expect(2);
    insta::assert_snapshot!(refused.stderr(), @"
    error: the advantages of policy on sums must be computed again, but their estimator is not recorded, because a program ran the job
    hint: name an estimator with `--advantage`, or set `include_errors` in the program and run the job again
    ");
    let named = ["export", "rl", "jobs/job", "-o", "named", "--include-errors", "--advantage", "group_mean"];
    job.rollout(&named).expect(0);
    assert_eq!(advantages(&job, "named"), (vec![-0.25, -0.25], vec![-0.25, 0.75]));
    job.rollout(&["export", "rl", "jobs/job", "-o", "recorded"]).expect(0);
    assert_eq!(advantages(&job, "recorded"), (vec![], vec![-1.0, 1.0]));
}

#[test]
fn errors_that_the_interaction_includes_are_exported_with_their_recorded_advantages() {
    let settings = json!({"advantage": "leave_one_out", "include_errors": true});
    let (_server, job) = failing_in_the_second_turn(settings);
    job.run().expect(1);
    let rows = fs::read_to_string(job.dir().join("outputs.jsonl")).unwrap();
    let mut recorded: Vec<f64> = rows
        .lines()
        .map(|row| {
            serde_json::from_str::<Value>(row).unwrap()["trajectory"][0]["advantage"].as_f64().unwrap()
        })
        .collect();
    recorded.sort_by(f64::total_cmp);
    insta::assert_snapshot!(export(&job).expect(0).stdout(), @"out/samples.jsonl: 4 samples with 16 tokens, 6 of them sampled, from 4 rollouts");
    let (failed, others) = advantages(&job, "out");
    assert_eq!((failed.len(), [&failed[..], &others].concat()), (2, recorded));
    let summary = summary(&job, "out");
    assert_eq!((&summary["advantage"], &summary["include_errors"]), (&json!("leave_one_out"), &json!(true)));
}

#[test]
fn a_server_without_token_ids_is_reported_at_the_first_response() {
    let server = ModelServer::scripted(|_| {
        ModelReply::raw(
            200,
            r#"{"id": "r", "model": "m", "choices": [{"message": {"role": "assistant", "content": "2"}}]}"#,
        )
        .content_type("application/json")
    });
    let job = job(&server, &["sums"], &["trajectory"], true);
    let refused = job.run().expect(1);
    assert_eq!(server.served(), 1);
    assert!(
        refused.stderr().contains("returned no token ids, which `token_ids: true`"),
        "{}",
        refused.stderr()
    );
}
