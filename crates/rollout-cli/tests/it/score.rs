//! `rollout score`, by the real command against a scripted judge.

use std::{fs, time::Duration};

use rollout_testkit::{ModelReply, ModelServer, TestJob};
use serde_json::{Value, json};

/// A directory with a benchmark's results: right, nearly right, failed, without and with an empty ground truth.
const RESULTS: &str = r#"{"task_id": "q1", "question": "法国的首都是哪里？", "predicted_answer": "巴黎", "success": true, "ground_truth": "巴黎", "score": 1.0, "metric": "exact_match"}
{"task_id": "q2", "question": "And of Italy?", "predicted_answer": "Rome, Italy", "success": true, "ground_truth": "Rome", "score": 0.0, "metric": "exact_match", "trajectory": {"task_id": "q2", "messages": [{"role": "user", "content": "And of Italy?"}, {"role": "assistant", "content": "Rome, Italy"}], "start_time": "2025-02-04T10:00:00"}}
# notes of a reader
{"task_id": "q3", "question": "And of Spain?", "predicted_answer": "", "success": false, "ground_truth": "Madrid", "score": null, "error": "the model went away"}
{"task_id": "q4", "question": "Why?", "predicted_answer": "Because", "success": true, "ground_truth": null}

{"task_id": "q5", "question": "Silence?", "predicted_answer": "", "success": true, "ground_truth": "", "score": 1.0, "metric": "exact_match"}
"#;

fn directory() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).file("eval/results.jsonl", RESULTS)
}

fn evaluation(job: &TestJob, dir: &str) -> Value {
    let text = fs::read(job.root().join(dir).join("evaluation.json")).expect("there is an evaluation");
    serde_json::from_slice(&text).expect("an evaluation is JSON")
}

fn judge_flags(server: &ModelServer) -> Vec<String> {
    let url = server.url();
    ["--metric", "llm_judgement", "--evaluator-model", "j", "--evaluator-base-url", &url]
        .map(str::to_owned)
        .into()
}

fn score(job: &TestJob, path: &str, flags: &[String]) -> rollout_testkit::Finished {
    let mut arguments = vec!["score", path];
    arguments.extend(flags.iter().map(String::as_str));
    job.rollout(&arguments)
}

#[test]
fn saved_answers_are_scored_by_another_metric() {
    let job = directory();
    let finished = job.rollout(&["score", "eval", "--metric", "char_f1"]).expect(0);
    insta::assert_snapshot!(finished.stdout(), @"
    metric   tasks  evaluated  average  perfect                saved  change
    char_f1      5          3    0.857        2  0.667 (exact_match)   +0.19
    not evaluated: 1 question that failed, 1 question without a ground truth
    ignored: 1 line that is not an answer

    written to eval/evaluation.json
    ");
    let evaluation = evaluation(&job, "eval");
    // The second has 4 of its 10 characters in common with the right one, and all 4 of that.
    let average = (1.0 + 2.0 * 0.4 / 1.4 + 1.0) / 3.0;
    assert_eq!(evaluation["average_score"], average);
    assert_eq!((&evaluation["metric"], &evaluation["total_tasks"]), (&json!("char_f1"), &json!(5)));
    assert_eq!((&evaluation["evaluated_tasks"], &evaluation["perfect_matches"]), (&json!(3), &json!(2)));
    assert_eq!(evaluation["success_rate"], 0.6);
    let evaluations = evaluation["evaluations"].as_array().unwrap();
    let ids: Vec<_> = evaluations.iter().map(|found| found["task_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["q1", "q2", "q3", "q4", "q5"]);
    assert_eq!(
        evaluations[0],
        json!({"task_id": "q1", "predicted": "巴黎", "ground_truth": "巴黎", "score": 1.0, "metric": "char_f1",
            "details": {"compared_prediction": "巴黎", "compared_ground_truth": "巴黎"}})
    );
    assert_eq!(
        (&evaluations[2]["score"], &evaluations[2]["details"]),
        (&json!(0.0), &json!({"error": "the model went away"}))
    );
    assert_eq!(evaluations[3]["ground_truth"], json!(null));
    assert_eq!((&evaluations[4]["ground_truth"], &evaluations[4]["score"]), (&json!(""), &json!(1.0)));
    assert_eq!(fs::read_to_string(job.root().join("eval/results.jsonl")).unwrap(), RESULTS);
}

#[test]
fn the_average_that_was_saved_comes_out_again() {
    let job = directory();
    let finished = job.rollout(&["score", "eval/results.jsonl", "--metric", "exact_match"]).expect(0);
    let row = finished.stdout().lines().nth(1).unwrap().to_owned();
    insta::assert_snapshot!(row, @"exact_match      5          3    0.667        2  0.667 (exact_match)       0");
}

#[test]
fn a_judge_scores_saved_answers_in_parallel_and_in_order() {
    let judge = ModelServer::scripted(|request| {
        let correct = request.last_text().contains("Rome, Italy");
        // The first answer is judged last.
        let delay = Duration::from_millis(if correct { 0 } else { 200 });
        let reasoning = "as asked, by sk-of-the-judge";
        ModelReply::text(json!({"correct": correct, "reasoning": reasoning}).to_string()).delay(delay)
    })
    .key("sk-of-the-judge");
    let job = directory().env("JUDGE_KEY", "sk-of-the-judge");
    let mut flags = judge_flags(&judge);
    flags.extend(
        ["--evaluator-api-key-var", "JUDGE_KEY", "--evaluator-temperature", "0.5"].map(str::to_owned),
    );
    let finished = score(&job, "eval", &flags).expect(0);
    assert_eq!(judge.served(), 3);
    assert_eq!(judge.requests()[0].body["temperature"], 0.5);
    assert!(!judge.requests().iter().any(|request| request.last_text().contains("And of Italy?")));
    let text = fs::read_to_string(job.root().join("eval/evaluation.json")).unwrap();
    assert!(!(text + &finished.stdout() + &finished.stderr()).contains("sk-of-the-judge"));
    let evaluation = evaluation(&job, "eval");
    let scores: Vec<_> =
        evaluation["evaluations"].as_array().unwrap().iter().map(|found| &found["score"]).collect();
    assert_eq!(scores, [0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(evaluation["evaluations"][1]["details"]["reasoning"], "as asked, by [redacted]");
}

#[test]
fn a_configuration_names_metric_and_judge_and_options_win() {
    let judge = ModelServer::always(ModelReply::text("true"));
    let config = json!({
        "model_name": "small", "base_url": "http://127.0.0.1:9/v1", "evaluation_metric": "llm_judgement",
        "evaluator_model_name": "large", "evaluator_base_url": judge.url(), "evaluator_extra_params": {"seed": 7},
    });
    let job = directory().file("config.json", &config.to_string());
    job.rollout(&["score", "eval", "--config", "config.json", "--include-question"]).expect(0);
    let request = &judge.requests()[0];
    assert_eq!((request.model(), &request.body["seed"]), ("large", &json!(7)));
    assert!(judge.requests().iter().any(|request| request.last_text().contains("And of Italy?")));
    job.rollout(&["score", "eval", "--config", "config.json", "--evaluator-model", "other"]).expect(0);
    assert_eq!(judge.requests().last().unwrap().model(), "other");
    job.rollout(&["score", "eval", "--config", "config.json", "--metric", "similarity"]).expect(0);
    assert_eq!(judge.served(), 6);
    assert_eq!(evaluation(&job, "eval")["metric"], "similarity");
}

#[test]
fn a_judge_that_fails_counts_as_0_and_is_reported() {
    let judge = ModelServer::always(ModelReply::error(400, "out of order"));
    let job = directory();
    let finished = score(&job, "eval", &judge_flags(&judge)).expect(1);
    assert!(
        finished.stdout().contains("the judge failed for 3 answers, scored as 0"),
        "{}",
        finished.stdout()
    );
    let evaluation = evaluation(&job, "eval");
    assert_eq!((&evaluation["evaluated_tasks"], &evaluation["average_score"]), (&json!(3), &json!(0.0)));
    let details = evaluation["evaluations"][0]["details"]["error"].as_str().unwrap();
    assert!(details.contains("out of order"), "{details}");
}

#[test]
fn a_refused_key_writes_nothing() {
    let judge = ModelServer::always(ModelReply::text("true")).key("another");
    let job = directory();
    let finished = score(&job, "eval", &judge_flags(&judge)).expect(1);
    let text = finished.stderr().replace(&judge.root(), "URL");
    insta::assert_snapshot!(text, @"
    error: the server rejected the API key of the judge
    cause: URL/v1/chat/completions requires an API key; set `api_key`: 401 Unauthorized: Incorrect API key provided
    hint: pass the environment variable that contains the API key with --evaluator-api-key-var
    ");
    assert!(!job.root().join("eval/evaluation.json").exists());
}

#[test]
fn mistakes_of_the_command_are_reported_with_what_to_do() {
    let job = directory().file("empty/results.jsonl", "\n# nothing\n").file("nothing/here", "");
    let error_of = |arguments: &[&str]| job.rollout(arguments).expect(2).stderr();
    insta::assert_snapshot!(error_of(&["score", "gone", "--metric", "similarity"]), @"error: gone does not exist; name a file of answers, or the directory of a job");
    insta::assert_snapshot!(error_of(&["score", "nothing", "--metric", "similarity"]), @"error: nothing has neither results.jsonl nor outputs.jsonl; name the directory of a benchmark or of a job with models");
    insta::assert_snapshot!(error_of(&["score", "empty", "--metric", "similarity"]), @"error: empty/results.jsonl has no answers: a line must have `predicted_answer`, or `completion` like the rows of a model's job");
    insta::assert_snapshot!(error_of(&["score", "eval", "--metric", "exact"]), @r#"
    error: invalid value 'exact' for '--metric <METRIC>': unknown metric "exact"; did you mean `exact_match`?

    For more information, try '--help'.
    "#);
    insta::assert_snapshot!(error_of(&["score", "eval", "--metric", "llm_judgement"]), @"
    error: `llm_judgement` requires a judge model
    hint: pass --evaluator-model and --evaluator-base-url, or --config with a benchmark configuration
    ");
    insta::assert_snapshot!(error_of(&["score", "eval", "--metric", "llm_judgement", "--evaluator-model", "j"]), @"
    error: no base URL for the judge
    hint: pass --evaluator-model and --evaluator-base-url, or --config with a benchmark configuration
    ");
    let url = ["--evaluator-model", "j", "--evaluator-base-url", "http://127.0.0.1:9/v1"];
    let arguments =
        [&["score", "eval", "--metric", "llm_judgement", "--evaluator-api-key-var", "GONE"][..], &url]
            .concat();
    insta::assert_snapshot!(error_of(&arguments), @"error: no API key for the judge: the environment variable GONE is not set");
    insta::assert_snapshot!(error_of(&["score", "eval", "--rubric", "gone.yaml"]), @"
    error: rubric file gone.yaml not found
    hint: pass an interaction file, like `interaction:` of a job
    ");
    insta::assert_snapshot!(error_of(&["score", "eval"]), @"
    error: the following required arguments were not provided:
      --metric <METRIC>

    Usage: rollout score --metric <METRIC> <RESULTS|JOB_DIR>

    For more information, try '--help'.
    ");
    assert!(!job.root().join("eval/evaluation.json").exists());
}

/// A job of a model that answers sums, two attempts each.
fn sums(server: &ModelServer) -> TestJob {
    let model = json!({"name": "m", "base_url": server.url(), "max_retries": 0});
    let dataset: Vec<Value> = (0..3)
        .map(|n| json!({"question": format!("What is {n}+1?"), "answer": (n + 1).to_string()}))
        .collect();
    let interaction = json!({"dataset": dataset, "rubric": [{"match": "exact"}]});
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "gpt", "model": model}))
        .set("environment", json!({"type": "docker", "provider_config": {"host": "tcp://127.0.0.1:1"}}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]))
        .set("n_attempts", json!(2))
}

#[test]
fn conversations_of_a_job_are_scored_by_another_rubric() {
    let server = ModelServer::arithmetic();
    // All is there that a program gets when the job itself runs it.
    let together = "
import json, sys
states = json.load(sys.stdin)
print([len(states) if (s['num_turns'], s['model'], s['is_completed']) == (1, 'm', True) else 0 for s in states])
";
    let rubric = "
dataset: not_there_any_more.jsonl
rubric:
  - {name: right, match: numeric}
  - {name: together, weight: 0.5, command: [python3, together.py], group: true}
";
    let job = sums(&server).file("rubrics/other.yaml", rubric).file("rubrics/together.py", together);
    job.run().expect(0);
    let rows = fs::read_to_string(job.dir().join("outputs.jsonl")).unwrap();
    let served = server.served();
    let dir = job.dir();
    let finished = job.rollout(&["score", dir.to_str().unwrap(), "--rubric", "rubrics/other.yaml"]).expect(0);
    let report = finished.stdout();
    insta::assert_snapshot!(report.split("\n\n").next().unwrap(), @"
              rollouts  evaluated  average  saved  change
    reward           6          6        2      1      +1
    right                                1
    together                             2
    ");
    assert_eq!(server.served(), served);
    assert_eq!(fs::read_to_string(dir.join("outputs.jsonl")).unwrap(), rows);
    let evaluation: Value = serde_json::from_slice(&fs::read(dir.join("evaluation.json")).unwrap()).unwrap();
    assert_eq!((&evaluation["total_rollouts"], &evaluation["average_reward"]), (&json!(6), &json!(2.0)));
    let of_rows = |text: &str| -> Vec<(Value, Value)> {
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| (row["example_id"].clone(), row["attempt"].clone())).collect()
    };
    let evaluations = evaluation["evaluations"].as_array().unwrap();
    let ids: Vec<_> =
        evaluations.iter().map(|found| (found["example_id"].clone(), found["attempt"].clone())).collect();
    assert_eq!(ids, of_rows(&rows));
    assert_eq!(evaluations[0]["metrics"], json!({"right": 1.0, "together": 2.0}));
    assert_eq!(evaluations[0]["advantage"], 0.0);
}

#[test]
fn answers_of_a_models_job_are_scored_by_a_metric() {
    let server = ModelServer::arithmetic();
    let job = sums(&server);
    job.run().expect(0);
    let dir = job.dir();
    job.rollout(&["score", dir.to_str().unwrap(), "--metric", "math_equal"]).expect(0);
    let evaluation: Value = serde_json::from_slice(&fs::read(dir.join("evaluation.json")).unwrap()).unwrap();
    assert_eq!((&evaluation["evaluated_tasks"], &evaluation["average_score"]), (&json!(6), &json!(1.0)));
}

#[test]
fn conversations_of_a_benchmark_are_scored_by_a_rubric() {
    let rubric = "rubric: [{match: contains, weight: 2}]";
    let job = directory().file("contains.yaml", rubric);
    let finished = job.rollout(&["score", "eval", "--rubric", "contains.yaml"]).expect(0);
    insta::assert_snapshot!(finished.stdout(), @"
              rollouts  evaluated  average  saved  change
    reward           5          1        2      0      +2
    contains                             1
    not evaluated: 4 rollouts that failed or were saved without a conversation
    ignored: 1 line that is not an answer

    written to eval/evaluation.json
    ");
    let evaluation = evaluation(&job, "eval");
    assert_eq!(
        evaluation["evaluations"],
        json!([{"task_id": "q2", "reward": 2.0, "advantage": 0.0, "metrics": {"contains": 1.0}}])
    );
}

#[test]
fn a_rubric_that_fails_in_part_is_reported() {
    let rubric = "
dataset: [{question: q}]
rubric:
  - match: contains
  - {name: checked, command: [sh, -c, 'echo no scorer here >&2; exit 3']}
";
    let job = directory().file("partly.yaml", rubric);
    let finished = job.rollout(&["score", "eval", "--rubric", "partly.yaml"]).expect(1);
    assert!(finished.stdout().contains("`checked` of the rubric failed"), "{}", finished.stdout());
    let evaluation = evaluation(&job, "eval");
    assert_eq!(evaluation["evaluations"][0]["metrics"], json!({"contains": 1.0, "checked": 0.0}));
}

#[test]
fn problems_of_a_rubric_are_shown_with_their_lines() {
    let job = directory().file("bad.yaml", "dataset: [{question: q}]\nrubric:\n  - match: excat\n");
    let stderr = job.rollout(&["score", "eval", "--rubric", "bad.yaml"]).expect(2).stderr();
    assert!(stderr.contains("bad.yaml:3") && stderr.contains("exact"), "{stderr}");
}

#[test]
fn a_benchmark_that_is_scored_again_gets_what_it_had() {
    let server = ModelServer::scripted(|request| match request.last_text().as_str() {
        "broken?" => ModelReply::error(400, "no such thing"),
        question => ModelReply::text(format!("Well.\nThe answer is {}.", question.trim_end_matches('?'))),
    });
    let questions = [
        json!({"id": "a", "question": "巴黎?", "answer": "巴黎"}),
        json!({"id": "b", "question": "Rome?", "answer": "Paris"}),
        json!({"id": "c", "question": "broken?", "answer": "x"}),
        json!({"id": "d", "question": "open?"}),
        json!({"id": "e", "question": "empty?", "answer": ""}),
    ];
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "out", "model_name": "m", "base_url": server.url(),
        "max_retries": 0, "evaluation_metric": "similarity",
    });
    let lines: Vec<_> = questions.iter().map(Value::to_string).collect();
    let job = directory().file("questions.jsonl", &lines.join("\n")).file("config.json", &config.to_string());
    job.rollout(&["eval", "config.json"]).expect(1);
    let first = evaluation(&job, "out");
    assert_eq!((&first["evaluated_tasks"], &first["total_tasks"]), (&json!(3), &json!(5)));
    let served = server.served();
    let finished = job.rollout(&["score", "out", "--metric", "similarity"]).expect(0);
    insta::assert_snapshot!(finished.stdout(), @"
    metric      tasks  evaluated  average  perfect               saved  change
    similarity      5          3    0.375        1  0.375 (similarity)       0
    not evaluated: 1 question that failed, 1 question without a ground truth

    written to out/evaluation.json
    ");
    assert_eq!(evaluation(&job, "out"), first);
    job.rollout(&["score", "out", "--metric", "exact_match"]).expect(0);
    let scores = evaluation(&job, "out")["evaluations"].clone();
    let scores: Vec<_> =
        scores.as_array().unwrap().iter().map(|found| found["score"].as_f64().unwrap()).collect();
    assert_eq!(scores, [1.0, 0.0, 0.0, 0.0, 0.0]);
    let rubric = "{dataset: [{question: q}], rubric: [{match: contains}]}";
    let job = job.file("contains.yaml", rubric);
    job.rollout(&["score", "out", "--rubric", "contains.yaml"]).expect(0);
    let evaluation = evaluation(&job, "out");
    assert_eq!((&evaluation["evaluated_rollouts"], &evaluation["total_rollouts"]), (&json!(4), &json!(5)));
    assert_eq!(server.served(), served);
}

#[test]
fn every_agent_and_dataset_of_a_job_is_scored() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("job/b/sums/results.jsonl", RESULTS)
        .file("job/a/sums/results.jsonl", RESULTS)
        .file("job/a/journal.jsonl", "");
    let finished = job.rollout(&["score", "job", "--metric", "similarity"]).expect(0);
    let written: Vec<_> = finished
        .stdout()
        .lines()
        .filter_map(|line| line.strip_prefix("written to ").map(str::to_owned))
        .collect();
    assert_eq!(written, ["job/a/sums/evaluation.json", "job/b/sums/evaluation.json"]);
    assert_eq!(evaluation(&job, "job/a/sums"), evaluation(&job, "job/b/sums"));
}
