//! What the records of a benchmark's questions hold.

use std::{fs, path::PathBuf};

use rollout_testkit::{ModelReply, ModelServer, TestJob, TokenCounts};
use serde_json::{Value, json};

use super::{episode, experiment, job};

/// A benchmark of questions, run with this configuration and exported. Returns the export.
fn exported(job: &TestJob, server: &ModelServer, config: Value, args: &[&str]) -> PathBuf {
    let mut all = json!({
        "data_path": "questions.jsonl", "base_url": server.url(), "model_name": "m", "max_retries": 0,
    });
    all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let number = fs::read_dir(job.root()).unwrap().count();
    let [results, out] = [format!("jobs/job-{number}"), format!("out-{number}")];
    fs::write(job.root().join("config.json"), all.to_string()).unwrap();
    let eval = ["eval", "config.json", "--output-dir", &results];
    job.rollout(&[&eval[..], args].concat()).expect(0);
    job.rollout(&["export", "eval-log", &results, "-o", &out]).expect(0);
    job.root().join(out)
}

fn questions(lines: &[Value]) -> TestJob {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    job().file("questions.jsonl", &lines)
}

#[test]
fn the_version_of_a_question_is_that_of_the_question_and_its_tools_alone() {
    let server = ModelServer::arithmetic();
    let question = json!({
        "id": "q", "question": "What is 2+2?", "answer": "4", "kwargs": {"seed_path": "notes.txt", "depth": 1},
    });
    let job = questions(std::slice::from_ref(&question)).file("notes.txt", "one");
    let version = |config: Value| {
        let out = exported(&job, &server, config, &[]);
        let hash = episode(&out, "m/questions/q__1")["task_version_hash"].clone();
        assert_eq!(hash.as_str().map(str::len), Some(64), "{hash}");
        hash
    };
    let first = version(json!({}));
    for same in [
        json!({"system_prompt": "Be short."}),
        json!({"save_trajectories": false}),
        json!({"trajectory_only": true}),
        json!({"max_turns": 3, "evaluation_metric": "f1_score"}),
    ] {
        assert_eq!(version(same.clone()), first, "{same}");
    }
    let write = |change: &dyn Fn(&mut Value)| {
        let mut changed = question.clone();
        change(&mut changed);
        fs::write(job.root().join("questions.jsonl"), changed.to_string()).unwrap();
        version(json!({}))
    };
    assert_eq!(write(&|question| question["level"] = json!("easy")), first);
    assert_ne!(write(&|question| question["question"] = json!("What is 2 + 2?")), first);
    assert_ne!(write(&|question| question["answer"] = json!("four")), first);
    assert_ne!(write(&|question| question["kwargs"]["depth"] = json!(2)), first);
    assert_ne!(write(&|question| question["kwargs"]["seed_path"] = json!("other.txt")), first);
    let moved = job.root().join("elsewhere");
    fs::create_dir(&moved).unwrap();
    fs::copy(job.root().join("notes.txt"), moved.join("notes.txt")).unwrap();
    assert_eq!(write(&|question| question["kwargs"]["seed_path"] = json!(moved.join("notes.txt"))), first);
    fs::write(job.root().join("notes.txt"), "two").unwrap();
    assert_ne!(write(&|_| {}), first);
}

#[test]
fn what_was_not_scored_has_no_reward() {
    let server = ModelServer::arithmetic();
    let job = questions(&[
        json!({"id": "right", "question": "What is 2+2?", "answer": "4"}),
        json!({"id": "wrong", "question": "What is 2+2?", "answer": "5"}),
        json!({"id": "open", "question": "What is 2+2?"}),
    ]);
    let out = exported(&job, &server, json!({}), &[]);
    let outcome = |out: &PathBuf, id: &str| {
        let episode = episode(out, &format!("m/questions/{id}__1"));
        json!([episode["reward"], episode["success"], episode["error_type"]])
    };
    assert_eq!(outcome(&out, "right"), json!([1.0, true, null]));
    assert_eq!(outcome(&out, "wrong"), json!([0.0, false, null]));
    assert_eq!(outcome(&out, "open"), json!([null, null, null]));
    let out = exported(&job, &server, json!({"trajectory_only": true}), &[]);
    assert_eq!(outcome(&out, "right"), json!([null, null, null]));
}

#[test]
fn a_question_that_failed_has_a_reward_of_0_and_its_error() {
    let server = ModelServer::always(ModelReply::error(400, "no"));
    let job = questions(&[json!({"id": "q", "question": "Well?", "answer": "4"})]).file(
        "config.json",
        &json!({"data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m"})
            .to_string(),
    );
    job.rollout(&["eval", "config.json"]).expect(1);
    job.rollout(&["export", "eval-log", "jobs/job", "-o", "out"]).expect(0);
    let episode = episode(&job.root().join("out"), "m/questions/q__1");
    assert_eq!((&episode["reward"], &episode["success"]), (&json!(0.0), &json!(false)));
    assert!(episode["error_type"].is_string(), "{episode}");
}

#[test]
fn a_part_of_the_questions_is_known_for_one_and_ids_and_splits_are_kept() {
    let counts = TokenCounts { prompt: 100, completion: 7, ..TokenCounts::default() };
    let server = ModelServer::always(ModelReply::text("4").usage(counts));
    let question = |id: &str| json!({"id": id, "question": "What is 2+2?", "answer": "4", "split": "test", "level": "easy"});
    let job = questions(&["dev/12", "dev/13", "dev/14"].map(question));
    let out = exported(&job, &server, json!({"save_trajectories": false}), &["--max-tasks", "2"]);
    let subset = &experiment(&out, "m/questions")["benchmark_subset"];
    assert_eq!(*subset, json!({"name": "questions[limit=2]", "n_tasks": 2, "filter": null}));
    let names = fs::read_dir(out.join("m/questions/episodes")).unwrap();
    let mut names: Vec<_> = names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let first = episode(&out, &format!("m/questions/{}", names[0]));
    assert_eq!((&first["task_id"], &first["split"]), (&json!("dev/12"), &json!("test")));
    assert_eq!((&first["usage"]["total_tokens"], &first["usage"]["n_llm_calls"]), (&json!(107), &json!(1)));
    assert_eq!(first["n_agent_steps"], 1);
    let rows = fs::read_dir(job.root().join("jobs")).unwrap().next().unwrap().unwrap().path();
    let rows = fs::read_to_string(rows.join("results.jsonl")).unwrap();
    let row: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert_eq!(row["metadata"], json!({"split": "test", "level": "easy"}));

    let out = exported(&job, &server, json!({}), &["--task-ids", "dev/13"]);
    let subset = &experiment(&out, "m/questions")["benchmark_subset"];
    assert_eq!(*subset, json!({"name": "questions[dev/13]", "n_tasks": 1, "filter": "dev/13"}));
    let out = exported(&job, &server, json!({}), &[]);
    let subset = &experiment(&out, "m/questions")["benchmark_subset"];
    assert_eq!(*subset, json!({"name": "questions", "n_tasks": 3, "filter": null}));
}

#[test]
fn the_tools_of_a_question_are_those_that_its_model_had_and_not_patterns() {
    let server = ModelServer::arithmetic();
    let job = questions(&[json!({"id": "q", "question": "What is 2+2?", "answer": "4"})]);
    let config = json!({"available_tools": ["code:*"], "sandbox_auto_start": true});
    let out = exported(&job, &server, config, &[]);
    let shown = &server.requests()[0].body["tools"];
    let shown: Vec<_> = shown.as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(json!(shown), json!(["code-python", "code-shell"]));
    assert_eq!(episode(&out, "m/questions/q__1")["tool_names"], json!(shown));

    // Rows of older versions have no names.
    let dir = fs::read_dir(job.root().join("jobs")).unwrap().next().unwrap().unwrap().path();
    let mut row: Value =
        serde_json::from_str(&fs::read_to_string(dir.join("results.jsonl")).unwrap()).unwrap();
    assert!(row.as_object_mut().unwrap().remove("tool_names").is_some());
    fs::write(dir.join("results.jsonl"), format!("{row}\n")).unwrap();
    job.rollout(&["export", "eval-log", dir.to_str().unwrap(), "-o", "old"]).expect(0);
    assert_eq!(episode(&job.root().join("old"), "m/questions/q__1")["tool_names"], json!([]));
}
