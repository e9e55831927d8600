//! What is written, and with which numbers.

use std::{fs, num::NonZeroUsize, os::unix::ffi::OsStrExt as _};

use rollout::{
    benchmark::{EvalError, TaskResult, load_config, load_tasks, rollout, score},
    event::Event,
    job::JobError,
    model::metric::{Metric, Scorer},
    record::rows,
};
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::{Value, json};

use super::support::Bench;

fn questions() -> Vec<Value> {
    vec![
        json!({"id": "task_001", "question": "What is 2+2?", "answer": "4"}),
        json!({"id": "task_002", "question": "What is 3+4?", "answer": "8"}),
        json!({"id": "task_003", "question": "What is 5*3?", "answer": "15", "level": "easy"}),
    ]
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_run_writes_the_documented_files_with_the_documented_fields() {
    let server = ModelServer::arithmetic();
    let bench =
        Bench::new(&server, &questions()).with(|config| config.benchmark_name = Some("sums_v1".to_owned()));
    let summary = bench.run().await.unwrap();
    assert_eq!(
        bench.files(),
        [
            "config.json",
            "evaluation.json",
            "journal.jsonl",
            "result.json",
            "results.jsonl",
            "summary_sums_v1_<time>.json",
            "tasks.jsonl"
        ]
    );
    let rows = bench.rows();
    assert_eq!(
        keys(&rows[0]),
        [
            "task_id",
            "question",
            "predicted_answer",
            "success",
            "ground_truth",
            "score",
            "metric",
            "trajectory",
            "example_id",
            "attempt",
            "timing",
            "token_usage",
            "stop_condition"
        ]
    );
    assert_eq!(
        keys(&rows[0]["trajectory"]),
        [
            "task_id",
            "question",
            "messages",
            "tool_calls",
            "final_answer",
            "total_turns",
            "success",
            "start_time",
            "end_time",
            "execution_time_ms"
        ]
    );
    let rows_in_order: Vec<_> = rows
        .iter()
        .map(|row| {
            assert_eq!(row["trajectory"]["final_answer"], row["predicted_answer"]);
            json!([
                row["task_id"],
                row["predicted_answer"],
                row["success"],
                row["ground_truth"],
                row["score"]
            ])
        })
        .collect();
    assert_eq!(
        rows_in_order,
        [
            json!(["task_001", "4", true, "4", 1.0]),
            json!(["task_002", "7", true, "8", 0.0]),
            json!(["task_003", "15", true, "15", 1.0]),
        ]
    );
    let file = summary.summary_file.clone().unwrap();
    let mut written: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["results_file"], json!(bench.path("out/results.jsonl")));
    assert_eq!(written["evaluation_file"], json!(bench.path("out/evaluation.json")));
    assert!(written["total_time_seconds"].as_f64().unwrap() > 0.0);
    let stamp = written["timestamp"].as_str().unwrap().replace(['-', ':'], "");
    assert!(file.to_string_lossy().contains(&format!("summary_sums_v1_{stamp}")), "{}", file.display());
    for varying in ["results_file", "evaluation_file", "total_time_seconds", "timestamp"] {
        written[varying] = "…".into();
    }
    written["provenance"]["config_hash"] = "…".into();
    insta::assert_json_snapshot!(written, @r#"
    {
      "benchmark_name": "sums_v1",
      "total_tasks": 3,
      "successful_tasks": 3,
      "failed_tasks": 0,
      "average_score": 0.6666666666666666,
      "metric": "exact_match",
      "total_time_seconds": "…",
      "results_file": "…",
      "evaluation_file": "…",
      "timestamp": "…",
      "provenance": {
        "rollout_version": "0.1.0",
        "config_hash": "…",
        "git": null,
        "command": null,
        "provider": "none",
        "seeds": null
      }
    }
    "#);
    assert_eq!(bench.json("out/result.json")["mean_reward"], 2.0 / 3.0);
}

#[tokio::test]
async fn failures_and_questions_without_answers_are_left_out_of_the_mean_and_empty_answers_are_not() {
    let server = ModelServer::scripted(|request| match &*request.last_text() {
        "broken" => ModelReply::error(400, "no"),
        "silent" => ModelReply::text(" \n"),
        other => ModelReply::text(other),
    });
    let bench = Bench::new(
        &server,
        &[
            json!({"id": "right", "question": "巴黎", "answer": "巴黎"}),
            json!({"id": "failed", "question": "broken", "answer": "x"}),
            json!({"id": "open", "question": "anything", "answer": null}),
            json!({"id": "missing", "question": "anything"}),
            json!({"id": "empty", "question": "silent", "answer": ""}),
            json!({"id": "not empty", "question": "something", "answer": ""}),
        ],
    );
    let summary = bench.run().await.unwrap();
    assert_eq!((summary.successful_tasks, summary.failed_tasks), (5, 1));
    assert_eq!(summary.average_score, Some(2.0 / 3.0));
    let rows = bench.rows();
    let scores: Vec<_> = rows.iter().map(|row| row["score"].clone()).collect();
    assert_eq!(scores, [json!(1.0), json!(null), json!(null), json!(null), json!(1.0), json!(0.0)]);
    assert_eq!(rows[1]["success"], false);
    assert_eq!(rows[1]["predicted_answer"], "");
    assert!(rows[1]["error"].as_str().unwrap().contains("400"), "{}", rows[1]["error"]);
    assert_eq!(rows[2]["ground_truth"], Value::Null);
    assert!(rows.iter().enumerate().all(|(place, row)| row.get("error").is_some() == (place == 1)));
    let result = bench.json("out/result.json");
    assert_eq!(result["results"][1]["error"], "model_failed");
    assert_eq!(result["results"][2]["reward"], Value::Null);
    assert_eq!((&result["completed_trials"], &result["failed_trials"]), (&json!(5), &json!(1)));

    let evaluation = bench.json("out/evaluation.json");
    let numbers = ["total_tasks", "evaluated_tasks", "average_score", "perfect_matches", "success_rate"];
    assert_eq!(
        json!(numbers.map(|name| &evaluation[name])),
        json!([6, 3, 2.0 / 3.0, 2, 0.5]),
        "{evaluation:#}"
    );
    assert_eq!(
        keys(&evaluation["evaluations"][0]),
        ["task_id", "predicted", "ground_truth", "score", "metric", "details"]
    );
    assert_eq!(evaluation["evaluations"][1]["score"], 0.0);
    assert!(evaluation["evaluations"][1]["details"]["error"].as_str().unwrap().contains("400"));
}

#[tokio::test]
async fn files_that_are_turned_off_are_not_written() {
    let server = ModelServer::arithmetic();
    let run = async |change: fn(&mut rollout::config::RolloutConfig)| {
        let bench = Bench::new(&server, &questions()).with(change);
        let summary = rollout(bench.eval().evaluate(!bench.config.trajectory_only)).await.unwrap();
        (bench, summary)
    };

    let (bench, _) = run(|config| config.save_trajectories = false).await;
    assert!(bench.rows().iter().all(|row| row.get("trajectory").is_none() && row["score"].is_number()));

    let (bench, summary) = run(|config| config.trajectory_only = true).await;
    let row = &bench.rows()[0];
    assert_eq!(
        keys(row),
        [
            "task_id",
            "success",
            "trajectory",
            "example_id",
            "attempt",
            "timing",
            "token_usage",
            "stop_condition"
        ]
    );
    assert_eq!((summary.metric, summary.average_score, summary.evaluation_file), (None, None, None));
    assert!(!bench.path("out/evaluation.json").exists());

    let (bench, summary) = run(|config| config.save_results = false).await;
    assert_eq!(bench.files(), ["summary_questions_<time>.json"]);
    assert_eq!(summary.average_score, Some(2.0 / 3.0));
    assert_eq!((summary.results_file, summary.evaluation_file), (None, None));

    let (bench, summary) = run(|config| config.save_summary = false).await;
    assert_eq!(summary.summary_file, None);
    assert!(!bench.files().iter().any(|name| name.starts_with("summary")));
}

#[tokio::test]
async fn options_of_the_call_override_the_configuration() {
    let server = ModelServer::arithmetic();
    let bench = Bench::new(&server, &questions());
    let other = bench.path("other.jsonl");
    let lines: String = (0..5)
        .map(|n| format!("{{\"id\": \"n{n}\", \"question\": \"What is {n}+1?\", \"answer\": \"a b\"}}\n"))
        .collect();
    fs::write(&other, lines).unwrap();
    let config = json!({
        "data_path": bench.config.data_path, "output_dir": bench.path("out"), "base_url": server.url(),
        "model_name": "m1", "evaluate_results": false, "number_of_tasks": 1, "system_prompt": "Be brief.",
    });
    let path = bench.path("config.json");
    fs::write(&path, config.to_string()).unwrap();
    assert_eq!(load_config(&path, &|_| None).unwrap().model_name, "m1");
    assert_eq!(load_tasks(&other).unwrap().len(), 5);

    let eval = rollout::benchmark::Eval::new(&path)
        .data_path(&other)
        .output_dir(bench.path("elsewhere"))
        .model_name("m2")
        .task_ids(["n1", "n3", "n4"])
        .max_tasks(2)
        .metric(Metric::F1Score);
    let summary = rollout(eval).await.unwrap();
    assert_eq!((summary.total_tasks, summary.metric.as_deref()), (2, Some("f1_score")));
    assert!(bench.path("elsewhere/results.jsonl").exists() && !bench.path("out").exists());
    let asked: Vec<_> = server.requests().iter().map(|request| request.body.clone()).collect();
    assert!(asked.iter().all(|body| body["model"] == "m2"));
    assert_eq!(asked[0]["messages"][0], json!({"role": "system", "content": "Be brief."}));
    let mut questions: Vec<_> = asked.iter().map(|body| body["messages"][1]["content"].clone()).collect();
    questions.sort_by_key(Value::to_string);
    assert_eq!(questions, [json!("What is 1+1?"), json!("What is 3+1?")]);
    // Neither a temperature nor a token limit is sent by default.
    assert_eq!(keys(&asked[0]), ["model", "messages"]);

    // The call scores by default, whatever the file says.
    let unscored = rollout::benchmark::Eval::new(&path).evaluate(false);
    assert_eq!(rollout(unscored).await.unwrap().average_score, None);
}

#[tokio::test]
async fn a_directory_with_a_job_is_rejected_and_any_other_is_used() {
    let server = ModelServer::arithmetic();
    let bench = Bench::new(&server, &questions());
    fs::create_dir(bench.path("out")).unwrap();
    fs::write(bench.path("out/notes.txt"), "mine").unwrap();
    fs::write(bench.path("out/config.json"), "{}").unwrap();
    let refused = bench.run().await.unwrap_err();
    assert!(matches!(refused, EvalError::Job(JobError::InTheWay(_))), "{refused}");
    assert_eq!(fs::read_to_string(bench.path("out/config.json")).unwrap(), "{}");

    fs::remove_file(bench.path("out/config.json")).unwrap();
    for name in ["outputs.jsonl", "evaluation.json"] {
        fs::write(bench.path("out").join(name), "mine").unwrap();
        let refused = bench.run().await.unwrap_err();
        assert!(
            matches!(&refused, EvalError::Job(JobError::InTheWay(file)) if file.ends_with(name)),
            "{refused}"
        );
        fs::remove_file(bench.path("out").join(name)).unwrap();
    }
    bench.run().await.unwrap();
    let before = server.served();
    let refused = bench.run().await.unwrap_err();
    let hint = refused.hint().unwrap();
    assert!(hint.contains("rollout resume"), "{hint}");
    assert_eq!(server.served(), before, "nothing was asked");
}

#[tokio::test]
async fn rows_are_read_as_those_of_any_other_job() {
    let server = ModelServer::scripted(|request| match request.messages()[1]["content"] == "broken" {
        true => ModelReply::error(400, "no"),
        false => ModelReply::text("7"),
    });
    let asked = [
        json!({"id": "a", "question": "well", "answer": "7"}),
        json!({"id": "b", "question": "broken", "answer": "7"}),
    ];
    for only in [false, true] {
        let bench = Bench::new(&server, &asked).with(|config| config.trajectory_only = only);
        rollout(bench.eval().evaluate(!only)).await.unwrap();
        let mut outputs = Vec::new();
        let foreign = rows::read(&bench.path("out/results.jsonl"), |_, output| outputs.push(output)).unwrap();
        assert_eq!((foreign, outputs.len()), (0, 2));
        outputs.sort_by_key(|output| output.example_id);
        assert_eq!(
            (outputs[0].reward, outputs[0].is_unscored),
            if only { (0.0, true) } else { (1.0, false) }
        );
        assert_eq!(outputs[0].prompt.as_ref().unwrap().len(), 2);
        assert_eq!(outputs[0].completion.as_ref().unwrap()[0].text(), "7");
        assert_eq!((outputs[0].attempt, outputs[0].columns["task_id"].as_str()), (Some(1), Some("a")));
        assert!(outputs[1].is_unscored && outputs[1].error.as_ref().unwrap().error == "ModelError");
    }
}

#[tokio::test]
async fn the_evaluation_is_in_the_order_of_the_questions_however_they_ended() {
    let server = ModelServer::scripted(|request| {
        let number: u64 = request.last_text().parse().unwrap();
        ModelReply::text(number.to_string()).delay(std::time::Duration::from_millis((number * 7) % 20))
    });
    let questions: Vec<_> =
        (0..40).map(|n| json!({"id": format!("q{n}"), "question": n, "answer": n})).collect();
    let bench = Bench::new(&server, &questions).with(|config| {
        config.parallel = true;
        config.max_workers = 8.try_into().unwrap();
    });
    let summary = bench.run().await.unwrap();
    assert_eq!(summary.average_score, Some(1.0));
    assert!(server.most_at_once() > 1, "questions were asked at the same time");
    let evaluation = bench.json("out/evaluation.json");
    let ids: Vec<_> =
        evaluation["evaluations"].as_array().unwrap().iter().map(|one| one["task_id"].clone()).collect();
    assert_eq!(ids, (0..40).map(|n| json!(format!("q{n}"))).collect::<Vec<_>>());
}

#[tokio::test]
async fn without_parallel_one_question_runs_at_a_time_with_any_number_of_workers() {
    let server = ModelServer::arithmetic();
    let bench = Bench::new(&server, &questions()).with(|config| config.max_workers = 8.try_into().unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    rollout(bench.eval().on_event(move |event| _ = sender.send(event))).await.unwrap();
    assert_eq!(server.most_at_once(), 1);
    let events: Vec<Event> = receiver.iter().collect();
    assert!(matches!(&events[0], Event::JobStarted { concurrency: 1, total_trials: 3, .. }));
    assert!(matches!(events.last(), Some(Event::BenchmarkFinished { summary }) if summary.total_tasks == 3));
}

#[tokio::test]
async fn a_path_that_is_not_utf8_can_be_written_to() {
    let server = ModelServer::arithmetic();
    let bench = Bench::new(&server, &questions());
    let out = bench.path("").join(std::ffi::OsStr::from_bytes(b"o\xfft"));
    let bench = bench.with(|config| config.output_dir = Some(out.clone()));
    let summary = bench.run().await.unwrap();
    assert!(summary.summary_file.unwrap().starts_with(&out) && out.join("results.jsonl").exists());
}

#[tokio::test]
async fn scoring_again_by_the_same_metric_gives_the_same_bytes_whatever_the_order_of_the_lines() {
    let server = ModelServer::scripted(|request| ModelReply::text(request.last_text()));
    let asked: Vec<_> = (0..30)
        .map(
            |n| json!({"id": format!("q{n}"), "question": format!("a b c{n}"), "answer": "a ".repeat(n + 1)}),
        )
        .collect();
    let bench = Bench::new(&server, &asked).with(|config| config.evaluation_metric = Metric::F1Score);
    bench.run().await.unwrap();
    let results = bench.path("out/results.jsonl");
    let evaluation = fs::read_to_string(bench.path("out/evaluation.json")).unwrap();
    let text = fs::read_to_string(&results).unwrap();
    let mut lines: Vec<_> = text.lines().rev().collect();
    // A run that was killed while it asked again has two lines for a question, of which the later one counts.
    let old = lines[0].replace("\"predicted_answer\":\"a b c29\"", "\"predicted_answer\":\"old\"");
    lines.insert(0, &old);
    fs::write(&results, lines.join("\n")).unwrap();
    let scorer = Scorer::new(Metric::F1Score, None).unwrap();
    let scored = score::score(&results, &scorer, NonZeroUsize::MIN, |_| ()).await.unwrap();
    scored.evaluation.save(&bench.path("again.json")).await.unwrap();
    assert_eq!(fs::read_to_string(bench.path("again.json")).unwrap(), evaluation);
}

#[test]
fn a_line_of_the_document_is_read() {
    let line = json!({
        "task_id": "task_001", "question": "What is 2+2?", "predicted_answer": "4", "success": true,
        "ground_truth": "4", "score": 1.0,
        "trajectory": {
            "task_id": "task_001", "messages": [{"role": "user", "content": "What is 2+2?"}],
            "tool_calls": [{"tool_name": "code:python", "parameters": {"code": "2+2"}, "success": true}],
            "final_answer": "4", "start_time": "2025-02-04T10:00:00", "end_time": "2025-02-04T10:00:05.250",
        },
    });
    let read: TaskResult = serde_json::from_value(line).unwrap();
    let trajectory = read.trajectory.unwrap();
    assert_eq!(trajectory.start_time.to_string(), "2025-02-04T10:00:00Z");
    assert_eq!(trajectory.end_time.to_string(), "2025-02-04T10:00:05.25Z");
    assert_eq!((trajectory.tool_calls.len(), trajectory.total_turns, read.example_id), (1, 0, None));
}
