//! `rollout export eee`, validated against the schemas by another program.

use std::{fs, path::Path, process::Command};

use rollout_testkit::{ModelReply, ModelServer, Python, TestJob, TestTask, TokenCounts};
use serde_json::{Value, json};

/// Validates every file below a directory, and that scores and samples belong together. Prints scores and samples.
const VALIDATE: &str = r#"
import glob, hashlib, json, os, sys
from jsonschema import Draft7Validator
reported = json.load(sys.stdin)
def validator(name):
    schema = json.load(open(os.path.join(reported["schemas"], name)))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)
scores, samples = validator("eval.schema.json"), validator("instance_level_eval.schema.json")
found, seen = [], set()
for path in sorted(glob.glob(os.path.join(reported["out"], "data/*/*/*/*.json"))):
    score = json.load(open(path))
    scores.validate(score)
    detailed = score["detailed_evaluation_results"]
    content = open(os.path.join(reported["out"], detailed["file_path"]), "rb").read()
    assert hashlib.sha256(content).hexdigest() == detailed["checksum"]
    lines = [json.loads(line) for line in content.decode().splitlines()]
    assert len(lines) == detailed["total_rows"]
    results = [result["evaluation_result_id"] for result in score["evaluation_results"]]
    assert len(set(results)) == len(results)
    for line in lines:
        samples.validate(line)
        assert line["evaluation_id"] == score["evaluation_id"] and line["evaluation_result_id"] in results
        assert line["model_id"] == score["model_info"]["id"]
        text = line["input"]["raw"] + "".join(line["input"]["reference"])
        assert line["sample_hash"] == hashlib.sha256(text.encode()).hexdigest()
    counted = [line["evaluation"]["score"] for line in lines]
    mean = score["evaluation_results"][0]["score_details"]
    assert abs(mean["score"] - sum(counted) / len(counted)) < 1e-12
    assert mean["uncertainty"]["num_samples"] == len(counted)
    seen |= {path, os.path.join(reported["out"], detailed["file_path"])}
    found.append({"path": os.path.relpath(path, reported["out"]), "score": score, "samples": lines})
files = {os.path.join(at, name) for at, _, names in os.walk(reported["out"]) for name in names}
assert files == seen, files ^ seen
print(json.dumps(found))
"#;

/// What was exported, once it is validated: path, scores and samples of each agent on each dataset.
#[track_caller]
fn validated(job: &TestJob) -> Vec<Value> {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/publishing/schemas");
    let reported = json!({"schemas": schemas, "out": job.root().join("out")});
    serde_json::from_str(&Python::new().run(VALIDATE, &reported.to_string())).unwrap()
}

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// The end of a path is an identifier.
fn place(found: &Value) -> &str {
    found["path"].as_str().unwrap().rsplit_once('/').unwrap().0
}

#[test]
fn tasks_in_containers_are_agentic_samples_with_scores_and_errors() {
    let counts = TokenCounts { prompt: 1000, cached: 600, completion: 50, ..TokenCounts::default() };
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": "touch /app/done"})).usage(counts),
        ModelReply::text("Done.").usage(counts),
    ]);
    let sampling = json!({"temperature": 0.5, "max_tokens": 100, "stop": ["x"]});
    let model = json!({"name": "meta/scripted", "base_url": server.url(), "sampling": sampling});
    let about = "[metadata]\ncategory = \"files\"\ndifficulty = \"easy\"\ntags = [\"a\", \"b\"]\n";
    let job = job()
        .task(TestTask::new("a").config(about))
        .task(TestTask::new("b"))
        .task(TestTask::new("c").tests("echo 0.25 > /logs/verifier/reward.txt\n"))
        .agent(json!({"name": "script", "execute": "touch /app/done"}))
        .agent(json!({"name": "broken", "execute": "exit 3"}))
        .agent(json!({"name": "model", "model": model}))
        .set("n_concurrent_trials", json!(1));
    let finished = job.run().expect(1);
    let exported = job
        .rollout(&[
            "export",
            "eee",
            "jobs/job",
            "-o",
            "out",
            "--organization",
            "Us",
            "--relationship",
            "third_party",
        ])
        .expect(0);
    let found = validated(&job);
    assert_eq!(found.len(), 3, "{}", exported.stdout());
    assert!(exported.stdout().ends_with("9 trials\n"), "{}", exported.stdout());
    // An agent that crashes in every trial has a score, and it is 0.
    let broken = found.iter().find(|found| place(found) == "data/set/unknown/broken").unwrap();
    assert_eq!(broken["score"]["evaluation_results"][1]["score_details"]["score"], 0.0);
    let model = found.iter().find(|found| place(found) == "data/set/meta/scripted").unwrap();
    let script = found.iter().find(|found| place(found) == "data/set/unknown/script").unwrap();

    let score = &model["score"];
    assert_eq!(score["source_metadata"]["source_organization_name"], "Us");
    assert_eq!(score["source_metadata"]["evaluator_relationship"], "third_party");
    assert_eq!(score["model_info"]["id"], "meta/scripted");
    assert_eq!(score["model_info"]["additional_details"]["deployment_type"], "self_deployed");
    let (mean, pass) = (&score["evaluation_results"][0], &score["evaluation_results"][1]);
    let figures = &finished.result()["statistics"]["agents"]["model"]["datasets"]["set"]["headline"];
    assert_eq!(mean["score_details"]["score"], figures["mean_reward"]["mean"], "{figures:#}");
    let uncertainty = &mean["score_details"]["uncertainty"];
    assert_eq!(uncertainty["standard_error"]["value"], figures["mean_reward"]["clustered"]["standard_error"]);
    assert_eq!(pass["score_details"]["score"], figures["pass_rate"]["rate"]);
    let wilson = &pass["score_details"]["uncertainty"]["confidence_interval"];
    assert_eq!(wilson["lower"], figures["pass_rate"]["interval"]["low"]);
    let generation = &mean["generation_config"];
    assert_eq!(generation["generation_args"]["temperature"], 0.5);
    assert_eq!(generation["generation_args"]["max_tokens"], 100);
    assert_eq!(generation["generation_args"]["sandbox"]["type"], "native");
    assert_eq!(generation["generation_args"]["agentic_eval_config"]["available_tools"][0]["name"], "bash");
    assert_eq!(generation["additional_details"]["sampling.stop"], "[\"x\"]");

    let sample = &model["samples"][0];
    assert_eq!((&sample["sample_id"], &sample["interaction_type"]), (&json!("a"), &json!("agentic")));
    assert_eq!(sample["input"]["raw"], "Create the file /app/done.\n");
    assert_eq!(sample["messages"][2]["tool_calls"][0]["arguments"], json!({"command": "touch /app/done"}));
    assert_eq!(sample["messages"][3]["tool_call_id"], json!([sample["messages"][2]["tool_calls"][0]["id"]]));
    assert_eq!(
        sample["evaluation"],
        json!({"score": 1.0, "is_correct": true, "num_turns": 2, "tool_calls_count": 1})
    );
    assert_eq!(sample["token_usage"]["total_tokens"], 2100);
    assert_eq!(sample["token_usage"]["input_tokens_cache_read"], 1200);
    let metadata = &sample["metadata"];
    assert_eq!((&metadata["category"], &metadata["tags"]), (&json!("files"), &json!("a, b")));

    let sample = &script["samples"][2];
    assert_eq!(sample["evaluation"]["score"], 0.25);
    assert_eq!(sample["evaluation"]["is_correct"], false);
    assert_eq!(
        sample["messages"],
        json!([{"turn_idx": 0, "role": "user", "content": "Create the file /app/done.\n"}])
    );
}

#[test]
fn a_trial_that_the_tests_failed_has_a_line_with_its_error_and_counts_as_zero() {
    let job = job()
        .task(TestTask::new("good"))
        .task(TestTask::new("bad").tests("exit 4\n"))
        .oracle()
        .set("retry", json!({"max_attempts": 1}));
    job.run().expect(1);
    job.rollout(&["export", "eee", "jobs/job", "-o", "out"]).expect(0);
    let found = validated(&job);
    let (bad, good) = (&found[0]["samples"][0], &found[0]["samples"][1]);
    assert!(bad["error"].as_str().unwrap().starts_with("verifier_failed: "), "{bad:#}");
    assert_eq!((&bad["evaluation"]["score"], &bad["evaluation"]["is_correct"]), (&json!(0.0), &json!(false)));
    assert_eq!((&good["error"], &good["evaluation"]["is_correct"]), (&Value::Null, &json!(true)));
    let details = &found[0]["score"]["evaluation_results"][0]["score_details"];
    assert_eq!(details["score"], 0.5);
    assert_eq!(details["details"]["score_over_completed_trials"], "1");
    assert_eq!(details["details"]["failed_trials_counted_as_zero"], "1");
}

#[test]
fn a_trial_that_the_task_failed_has_no_line_and_is_reported() {
    let job = job().task(TestTask::new("good")).task(TestTask::new("bad").without("tests/test.sh")).oracle();
    job.run().expect(1);
    let exported = job.rollout(&["export", "eee", "jobs/job", "-o", "out"]).expect(0).stdout();
    let reported =
        "left out: trials of oracle on set that failed because of the infrastructure or the task (1)";
    assert!(exported.contains(reported), "{exported}");
    assert_eq!(validated(&job)[0]["samples"].as_array().unwrap().len(), 1);
}

/// A job whose only agent is a model, on interactions.
fn rollouts(server: &ModelServer, datasets: Value) -> TestJob {
    let model = json!({"name": "org/team/policy", "base_url": server.url(), "max_retries": 0});
    job()
        .agent(json!({"name": "policy", "model": model}))
        .set("n_attempts", json!(2))
        .set("datasets", datasets)
}

#[test]
fn rollouts_of_a_model_are_samples_of_one_turn_or_of_many() {
    let server = ModelServer::scripted(|request| match request.last_text().as_ref() {
        "look" => ModelReply::tool_call("look", &json!({"at": [1, 2]})),
        "What is 1+1?" => ModelReply::text("2"),
        _ => ModelReply::text("seen"),
    });
    let sums = json!({
        "dataset": [{"question": "What is 1+1?", "answer": "2"}, {"question": "What is 1+2?", "answer": "3"}],
        "rubric": [{"match": "numeric"}],
    });
    let tool = json!({"command": ["true"], "name": "look", "description": "Looks.", "parameters": {"type": "object"}});
    let looks = json!({"dataset": [{"question": "look", "answer": "seen"}], "tools": [tool], "rubric": [{"match": "exact"}]});
    let job = rollouts(
        &server,
        json!([{"name": "sums", "interaction": sums}, {"name": "looks", "interaction": looks}]),
    );
    job.run().expect(0);
    job.rollout(&["export", "eee", "jobs/job", "-o", "out"]).expect(0);
    let found = validated(&job);
    assert_eq!(
        found.iter().map(place).collect::<Vec<_>>(),
        ["data/looks/org/team_policy", "data/sums/org/team_policy"]
    );
    let (looks, sums) = (&found[0]["samples"], &found[1]["samples"]);
    assert_eq!(sums.as_array().unwrap().len(), 4);
    let sample = &sums[0];
    assert_eq!(sample["interaction_type"], "single_turn");
    assert_eq!(sample["model_id"], "org/team/policy");
    assert_eq!(sample["input"], json!({"raw": "What is 1+1?", "reference": ["2"]}));
    assert_eq!((&sample["output"]["raw"], &sample["messages"]), (&json!(["2"]), &Value::Null));
    assert_eq!(sample["answer_attribution"][0]["extracted_value"], "2");
    assert!(sample["performance"]["latency_ms"].as_f64().unwrap() > 0.0);
    let sample = &looks[0];
    assert_eq!((&sample["interaction_type"], &sample["output"]), (&json!("agentic"), &Value::Null));
    assert_eq!(sample["messages"][1]["tool_calls"][0]["arguments"], json!({"at": "[1,2]"}));
    assert_eq!(sample["answer_attribution"][0]["turn_idx"], 3);
    assert_eq!(sample["evaluation"]["is_correct"], true);

    // The same job gives the same files.
    let before: Vec<_> = found.iter().map(|found| found["path"].clone()).collect();
    fs::rename(job.root().join("out"), job.root().join("first")).unwrap();
    job.rollout(&["export", "eee", "jobs/job", "-o", "out"]).expect(0);
    let again = validated(&job);
    assert_eq!(again.iter().map(|found| found["path"].clone()).collect::<Vec<_>>(), before);
    assert_eq!(again, found);
}

#[test]
fn questions_of_a_benchmark_are_samples_with_the_answer_that_was_found() {
    let questions = "{\"id\": \"q1\", \"question\": \"What is 2+2?\", \"answer\": \"4\"}\n\
                     {\"id\": \"q2\", \"question\": \"What is 3+4?\", \"answer\": \"8\"}\n\
                     {\"id\": \"q3\", \"question\": \"What is 1+1?\"}\n";
    let server = ModelServer::arithmetic();
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m",
        "benchmark_name": "sums", "max_retries": 0,
    });
    let job = job().file("questions.jsonl", questions).file("config.json", &config.to_string());
    job.rollout(&["eval", "config.json"]).expect(0);
    let exported =
        job.rollout(&["export", "eee", "jobs/job", "-o", "out", "--developer", "Us & Co"]).expect(0);
    assert!(
        exported.stdout().ends_with("2 trials\nleft out: unscored trials of m on sums (1)\n"),
        "{}",
        exported.stdout()
    );
    let found = validated(&job);
    assert_eq!(place(&found[0]), "data/sums/Us___Co/m");
    let metric = &found[0]["score"]["evaluation_results"][0]["metric_config"];
    assert_eq!((&metric["metric_id"], &metric["max_score"]), (&json!("exact_match"), &json!(1)));
    let sample = &found[0]["samples"][1];
    assert_eq!((&sample["sample_id"], &sample["input"]["reference"]), (&json!("q2"), &json!(["8"])));
    assert_eq!(sample["answer_attribution"][0]["extracted_value"], "7");
    assert_eq!(sample["answer_attribution"][0]["extraction_method"], "exact_match");
    assert_eq!(sample["evaluation"]["is_correct"], false);
}

#[test]
fn the_files_of_one_dataset_are_closed_before_the_next() {
    let rows = json!([{"question": "What is 1+1?", "answer": "2"}]);
    let interaction = json!({"dataset": rows, "rubric": [{"match": "numeric"}]});
    let dataset = |number: u32| json!({"name": format!("d{number}"), "interaction": interaction});
    let server = ModelServer::always(ModelReply::text("2"));
    let job = rollouts(&server, (0..40).map(dataset).collect());
    job.run().expect(0);
    let export = [env!("CARGO_BIN_EXE_rollout"), "export", "eee", "jobs/job", "-o", "out"];
    // Enough for reading the rows of each dataset, and not for writing as many at once.
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""]).args(export).current_dir(job.root());
    let output = few.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(validated(&job).len(), 40);
}

#[test]
fn the_command_of_a_run_can_be_given_to_a_shell() {
    let rows = json!([{"question": "What is 1+1?", "answer": "2"}]);
    let interaction = json!({"dataset": rows, "rubric": [{"match": "numeric"}]});
    let server = ModelServer::always(ModelReply::text("2"));
    let job = rollouts(&server, json!([{"name": "sums", "interaction": interaction}]));
    let words = ["run", "job.yaml", "--set", "retry={max_attempts: 1}"];
    job.rollout(&words).expect(0);
    job.rollout(&["export", "eee", "jobs/job", "-o", "out"]).expect(0);
    let found = validated(&job);
    let args = &found[0]["score"]["evaluation_results"][0]["generation_config"]["generation_args"];
    let line = args["execution_command"].as_str().unwrap();
    let read = Command::new("sh").args(["-c", &format!("printf '%s\\n' {line}")]).output().unwrap();
    let read = String::from_utf8(read.stdout).unwrap();
    assert!(read.lines().skip(1).eq(words), "{line}");
}

#[test]
fn a_job_without_scores_has_nothing_to_export() {
    let job = job().task(TestTask::new("task")).oracle().set("verifier", json!({"disable": true}));
    job.run().expect(0);
    let refused = job.rollout(&["export", "eee", "jobs/job", "-o", "out"]).expect(2);
    insta::assert_snapshot!(refused.stderr(), @"error: jobs/job has nothing to export: no scores, only unscored trials of oracle on set (1)");
    assert!(!job.root().join("out/data").exists());
}
