//! Eval logs with the names of cube-harness.

use rollout_testkit::{ModelReply, ModelServer, Python, TestJob, TestTask};
use serde_json::{Value, json};

use super::{episode, experiment, job, json_file, model};

const CHECK: &str = "
import json, pathlib, sys
import jsonschema
asked = json.loads(sys.stdin.read())
seen = {}
def check(kind, record):
    schema = dict(asked['schema'], **{'$ref': '#/$defs/' + kind})
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(record)
    seen[kind] = seen.get(kind, 0) + 1
for out in map(pathlib.Path, asked['logs']):
    for path in out.rglob('experiment_record.json'):
        check('experiment', json.loads(path.read_text()))
    for path in out.rglob('episode_record.json'):
        check('episode', json.loads(path.read_text()))
    for path in out.rglob('episodes.jsonl'):
        for line in path.read_text().splitlines():
            check('episode', json.loads(line))
print(seen['experiment'], seen['episode'])
";

fn export(job: &TestJob) -> String {
    let arguments = ["export", "eval-log", "jobs/job", "-o", "out", "--dialect", "cube-harness", "--jsonl"];
    job.rollout(&arguments).expect(0).stdout()
}

fn benchmark(server: &ModelServer) -> TestJob {
    let config = json!({"data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m"});
    let questions = [
        json!({"id": "right", "question": "What is 2+2?", "answer": "4"}),
        json!({"id": "open", "question": "What is 2+2?"}),
    ];
    let job = job()
        .file("questions.jsonl", &questions.map(|question| format!("{question}\n")).concat())
        .file("config.json", &config.to_string());
    job.rollout(&["eval", "config.json"]).expect(0);
    job
}

#[test]
fn records_with_findings_keep_to_the_schema_of_cube_harness() {
    let whole = json!({
        "difficulty": "easy", "feasible": true, "failure_root_cause": "The agent made no file.", "analysis": "It did nothing.",
        "evidence": [{"step": 1, "quote": "I did my best"}], "summary": "No file was made.", "outcome": "failure",
        "primary_blame": "model_capability", "primary_blame_confidence": 4, "other_blames": ["task_unclear"],
        "hypothesis": "A better model.", "hypothesis_confidence": 2,
    });
    let short = json!({"difficulty": null, "feasible": null, "failure_root_cause": "It gave up."});
    let (first, second) = (whole.to_string(), short.to_string());
    let sage = ModelServer::scripted(move |request| match request.last_text().contains("best of one") {
        true => ModelReply::text(&first),
        false => ModelReply::text(&second),
    });
    let words = ModelServer::always(ModelReply::text("I can only talk."));
    let tests = "echo 0 > /logs/verifier/reward.txt";
    let tasks = job()
        .task(TestTask::new("one").tests(tests))
        .task(TestTask::new("good"))
        .script("echo 'my best of one'; touch /app/done")
        .agent(model(&words));
    tasks.run().expect(0);
    let url = sage.url();
    tasks.rollout(&["investigate", "jobs/job", "--model", "sage", "--base-url", &url]).expect(0);
    export(&tasks);
    let out = tasks.root().join("out");
    let record = episode(&out, "agent/set/one__1");
    let findings = &record["findings"];
    assert_eq!(
        (&findings["outcome"], &findings["primary_blame"]),
        (&json!("failure"), &json!("model_capability"))
    );
    assert_eq!(findings["evidence"][0]["_type"], "cube_harness.eval_log.EvidenceItem");
    assert_eq!(record["investigation_metadata"]["model"], "sage");
    let brief = &episode(&out, "model/set/one__1")["findings"];
    assert_eq!((&brief["analysis"], &brief["primary_blame_confidence"]), (&json!("It gave up."), &json!(0)));
    assert_eq!(experiment(&out, "agent/set")["investigator_llm_config"]["model"], "sage");

    let arithmetic = ModelServer::arithmetic();
    let questions = benchmark(&arithmetic);
    let shown = export(&questions);
    assert!(shown.contains("1 episode that was not scored"), "{shown}");
    let schema: Value = serde_json::from_str(include_str!("cube_harness.schema.json")).unwrap();
    let logs = [&out, &questions.root().join("out")];
    let asked = json!({"schema": schema, "logs": logs}).to_string();
    assert_eq!(Python::new().run(CHECK, &asked), "3 10\n");
}

#[test]
fn episodes_without_a_score_are_left_out_and_do_not_come_back() {
    let server = ModelServer::arithmetic();
    let job = benchmark(&server);
    let arguments = ["export", "eval-log", "jobs/job", "-o", "out"];
    job.rollout(&arguments).expect(0);
    let out = job.root().join("out/m/questions");
    assert_eq!(json_file(out.join("episodes/open__1/episode_record.json"))["reward"], Value::Null);
    export(&job);
    assert!(!out.join("episodes/open__1/episode_record.json").exists());
    let line = json_file(out.join("episodes.jsonl"));
    assert_eq!((&line["sample_id"], &line["is_correct"]), (&json!("right"), &json!(true)));
    // The first name of this dialect.
    let older = ["export", "eval-log", "jobs/job", "-o", "older", "--dialect", "eee-aligned"];
    job.rollout(&older).expect(0);
    assert_eq!(episode(&job.root().join("older"), "m/questions/right__1"), line);
}
