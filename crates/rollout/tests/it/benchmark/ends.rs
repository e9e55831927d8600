//! How questions end: with an answer, at a limit, or in an error.

use rollout::benchmark::EvalError;
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::{Value, json};

use super::support::{Bench, Tools};

fn question() -> Vec<Value> {
    vec![json!({"id": "q", "question": "Well?", "answer": "42"})]
}

#[tokio::test]
async fn the_answer_is_found_in_the_last_words() {
    for (said, answer) in [
        ("42", "42"),
        ("Let me see.\nThe answer is 42.", "42"),
        ("Some words.\n\n  最后一行  \n", "最后一行"),
        ("Final Answer: H2O\nmore", "H2O"),
    ] {
        let server = ModelServer::always(ModelReply::text(said));
        let bench = Bench::new(&server, &question());
        bench.run().await.unwrap();
        assert_eq!(bench.rows()[0]["predicted_answer"], answer, "{said}");
    }
}

#[tokio::test]
async fn an_empty_response_is_an_empty_answer_and_is_not_retried() {
    let server = ModelServer::scripted(|request| match &*request.last_text() {
        "silent" => ModelReply::empty(),
        other => ModelReply::text(other),
    });
    let questions = [
        json!({"id": "a", "question": "42", "answer": "42"}),
        json!({"id": "b", "question": "silent", "answer": "42"}),
    ];
    let bench = Bench::new(&server, &questions);
    let summary = bench.run().await.unwrap();
    assert_eq!((summary.successful_tasks, summary.failed_tasks, summary.average_score), (2, 0, Some(0.5)));
    assert_eq!(server.served(), 2);
    let row = &bench.rows()[1];
    assert_eq!(
        json!([row["predicted_answer"], row["success"], row["score"], row.get("error")]),
        json!(["", true, 0.0, null])
    );
    assert_eq!(row["trajectory"]["total_turns"], 1);
}

#[tokio::test]
async fn at_the_last_turn_the_last_words_are_the_answer() {
    let (tools, url) = Tools::willing().await;
    let call = |words: Option<&str>| {
        let reply = words.map_or_else(ModelReply::empty, ModelReply::text);
        reply.call("web-search", &json!({"query": "x"}))
    };
    for (replies, answer) in [
        (vec![call(Some("The answer is 42, I think")), call(None)], "42, I think"),
        (vec![call(None)], "Max turns reached without answer"),
    ] {
        let server = ModelServer::turns(replies);
        let bench = Bench::new(&server, &question()).with(|config| {
            config.max_turns = 3.try_into().unwrap();
            config.available_tools = vec!["web:search".to_owned()];
            config.sandbox_server_url.clone_from(&url);
        });
        let before = tools.calls().len();
        let summary = bench.run().await.unwrap();
        assert_eq!((summary.successful_tasks, server.served()), (1, 3));
        assert_eq!(tools.calls().len() - before, 3, "the calls of the last turn are done too");
        let row = &bench.rows()[0];
        assert_eq!(row["predicted_answer"], answer);
        assert_eq!(row["trajectory"]["total_turns"], 3);
        assert_eq!(row["stop_condition"], "max_turns_reached");
        assert_eq!(row["trajectory"]["tool_calls"].as_array().unwrap().len(), 3);
        let messages = row["trajectory"]["messages"].as_array().unwrap();
        assert_eq!((messages.len(), &messages[7]["role"]), (8, &json!("tool")), "no call is left unanswered");
    }
}

#[tokio::test]
async fn requests_that_fail_for_the_moment_are_sent_again_as_often_as_configured() {
    for (retries, successful) in [(2, 1), (1, 0)] {
        let server = ModelServer::sequence([
            ModelReply::rate_limited(Some("0")),
            ModelReply::rate_limited(Some("0")),
            ModelReply::text("42"),
        ]);
        let bench = Bench::new(&server, &question()).with(|config| config.max_retries = retries);
        let summary = bench.run().await.unwrap();
        assert_eq!(summary.successful_tasks, successful, "{retries} retries");
        assert_eq!(server.served(), retries as usize + 1);
    }
}

#[tokio::test]
async fn a_failing_question_does_not_stop_the_others() {
    let server = ModelServer::scripted(|request| match request.last_text().contains('2') {
        true => ModelReply::error(400, "not this one"),
        false => ModelReply::text("42"),
    });
    let questions: Vec<_> = (1..4).map(|n| json!({"id": n, "question": n, "answer": "42"})).collect();
    let bench = Bench::new(&server, &questions);
    let summary = bench.run().await.unwrap();
    assert_eq!((summary.successful_tasks, summary.failed_tasks, summary.average_score), (2, 1, Some(1.0)));
}

#[tokio::test]
async fn a_question_that_is_too_long_for_the_model_has_failed() {
    let server = ModelServer::always(ModelReply::overlong());
    let bench = Bench::new(&server, &question());
    assert_eq!(bench.run().await.unwrap().failed_tasks, 1);
    assert_eq!(bench.rows()[0]["error"], "the question is longer than the context of the model");
}

#[tokio::test]
async fn a_rejected_key_ends_the_run() {
    let server = ModelServer::always(ModelReply::unauthorized());
    let questions: Vec<_> = (1..9).map(|n| json!({"id": n, "question": n, "answer": "42"})).collect();
    let error = Bench::new(&server, &questions).run().await.unwrap_err();
    assert!(matches!(error, EvalError::Job(rollout::job::JobError::Unauthorized { .. })), "{error}");
    assert_eq!(server.served(), 1);
    assert!(error.hint().unwrap().contains("api_key"));
}

#[tokio::test]
async fn a_judge_scores_with_its_own_model_and_its_words_are_kept() {
    let server = ModelServer::always(ModelReply::text("forty-two"));
    let judge = ModelServer::always(ModelReply::text(r#"{"correct": true, "reasoning": "the same number"}"#));
    let bench = Bench::new(&server, &question()).with(|config| {
        config.evaluation_metric = rollout::model::metric::Metric::LlmJudgement;
        config.evaluator_model_name = Some("judge".to_owned());
        config.evaluator_base_url = Some(judge.url());
    });
    let summary = bench.run().await.unwrap();
    assert_eq!((summary.average_score, summary.metric.as_deref()), (Some(1.0), Some("llm_judgement")));
    assert_eq!(judge.requests()[0].model(), "judge");
    assert_eq!(bench.rows()[0]["details"]["reasoning"], "the same number");
    let evaluation = bench.json("out/evaluation.json");
    assert_eq!(evaluation["evaluations"][0]["details"]["correct"], true);
}

#[tokio::test]
async fn answers_whose_judge_failed_are_counted_with_and_without_files() {
    let server = ModelServer::always(ModelReply::text("42"));
    let judge = ModelServer::always(ModelReply::error(400, "no"));
    for save in [true, false] {
        let bench = Bench::new(&server, &question()).with(|config| {
            config.evaluation_metric = rollout::model::metric::Metric::LlmJudgement;
            config.evaluator_base_url = Some(judge.url());
            config.evaluator_max_retries = 0;
            config.save_results = save;
        });
        let summary = bench.run().await.unwrap();
        assert_eq!((summary.judge_failures, summary.average_score), (1, Some(0.0)), "saved: {save}");
        if save {
            let evaluation = bench.json("out/evaluation.json");
            assert!(evaluation["evaluations"][0]["details"]["error"].is_string(), "{evaluation:#}");
        }
    }
}

#[tokio::test]
async fn a_rejected_key_of_the_judge_ends_the_run_and_names_the_judge() {
    let server = ModelServer::always(ModelReply::text("42"));
    let judge = ModelServer::always(ModelReply::unauthorized());
    let bench = Bench::new(&server, &question()).with(|config| {
        config.evaluation_metric = rollout::model::metric::Metric::LlmJudgement;
        config.evaluator_base_url = Some(judge.url());
    });
    let error = bench.run().await.unwrap_err();
    assert!(error.to_string().contains("the API key of the judge"), "{error}");
    assert!(error.hint().unwrap().contains("evaluator_api_key"));
}
