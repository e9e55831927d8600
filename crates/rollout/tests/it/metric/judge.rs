//! `llm_judgement`, and metrics as rubrics.

use std::sync::Arc;

use rollout::{
    config::{EnvValue, RolloutConfig},
    model::{
        Client, ErrorKind, Message, Messages, Model, RolloutInput, State,
        client::ClientConfig,
        metric::{JudgeMissing, LlmJudge, Metric, PREDICTED_ANSWER, SCORE_DETAILS, Scorer},
    },
};
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::{Map, Value, json};

fn model(url: &str) -> Arc<Model> {
    let client = Client::new(ClientConfig { max_retries: 0, ..ClientConfig::new(url) }).unwrap();
    Arc::new(Model { client, name: "judging".to_owned(), sampling: Map::new(), max_seq_len: None })
}

fn judge(server: &ModelServer) -> LlmJudge {
    LlmJudge::new(model(&server.url()))
}

/// A rollout in which a model answered "The answer is 4." to "What is 2+2?".
fn finished(answer: Option<&str>) -> State {
    let messages = |message: Message| -> Messages { vec![Arc::new(message)] };
    let input = RolloutInput {
        prompt: messages(Message::user("What is 2+2?")),
        answer: answer.map(str::to_owned),
        ..RolloutInput::default()
    };
    let mut state = State::new(input, model("http://127.0.0.1:9/v1"), Arc::default());
    state.completion = Some(messages(Message::assistant("The answer is 4.")));
    state
}

async fn scored(scorer: Scorer, mut state: State) -> State {
    scorer.rubric().score_rollout(&mut state).await.unwrap();
    state
}

#[tokio::test]
async fn a_judge_decides_whether_an_answer_is_correct_and_why() {
    let server = ModelServer::always(ModelReply::text(r#"{"correct": true, "reasoning": "The same city."}"#));
    let scorer = Scorer::new(Metric::LlmJudgement, Some(judge(&server))).unwrap();
    let score = scorer.score("Capital of France?", "It is Paris", "Paris", "q1").await.unwrap();
    assert_eq!(score.value, 1.0);
    assert_eq!(score.details["reasoning"], "The same city.");
    let prompt = server.requests()[0].last_text();
    assert!(prompt.contains("Correct answer:\n```\nParis\n```"), "{prompt}");
    assert!(prompt.contains("Graded answer:\n```\nIt is Paris\n```"), "{prompt}");
    assert!(!prompt.contains("Capital of France?"), "{prompt}");
}

#[tokio::test]
async fn a_configuration_names_the_judge_or_else_the_model_itself_judges() {
    let server = ModelServer::always(ModelReply::text("true")).key("sk-judge");
    let key = |value: &str| Some(EnvValue { value: value.to_owned(), secret: true });
    let config = RolloutConfig {
        model_name: "small".to_owned(),
        api_key: key("sk-judge"),
        base_url: server.url(),
        evaluator_temperature: 0.25,
        evaluator_include_question: true,
        ..RolloutConfig::default()
    };
    let of_its_own = RolloutConfig {
        api_key: key("sk-model"),
        base_url: "http://127.0.0.1:9/v1".to_owned(),
        evaluator_model_name: Some("large".to_owned()),
        evaluator_api_key: key("sk-judge"),
        evaluator_base_url: Some(server.url()),
        evaluator_extra_params: Map::from_iter([("max_tokens".to_owned(), json!(7))]),
        ..config.clone()
    };
    for config in [&config, &of_its_own] {
        let judge = rollout::benchmark::judge(config).unwrap();
        assert!(judge.judge("Why?", "p", "t", "q").await.unwrap().correct);
    }
    let requests = server.requests();
    assert_eq!(requests.iter().map(|request| request.model()).collect::<Vec<_>>(), ["small", "large"]);
    assert_eq!(
        (&requests[1].body["temperature"], &requests[0].body["temperature"]),
        (&json!(0.25), &json!(0.25))
    );
    assert_eq!(requests[1].body["max_completion_tokens"], 7);
    assert!(requests[0].last_text().contains("Question:\n```\nWhy?\n```"));
}

#[tokio::test]
async fn a_malformed_response_is_retried() {
    let server = ModelServer::sequence([ModelReply::malformed(), ModelReply::text("true")]);
    assert!(judge(&server).max_retries(1).judge("q", "p", "t", "s").await.unwrap().correct);
    let server = ModelServer::always(ModelReply::malformed());
    let error = judge(&server).max_retries(1).judge("q", "p", "t", "s").await.unwrap_err();
    assert_eq!((error.kind, server.served()), (ErrorKind::InvalidModelResponse, 2));
}

#[tokio::test]
async fn a_judge_that_fails_gives_0_with_its_reason() {
    let server = ModelServer::always(ModelReply::error(500, "out of order"));
    let scorer = Scorer::new(Metric::LlmJudgement, Some(judge(&server))).unwrap();
    let state = scored(scorer, finished(Some("4"))).await;
    assert_eq!(state.reward, Some(0.0));
    let details = &state.fields[SCORE_DETAILS];
    assert!(details["error"].as_str().unwrap().contains("out of order"), "{details}");
    assert_eq!(state.scoring_errors.len(), 1);
}

#[tokio::test]
async fn a_rejected_key_is_not_a_score() {
    let server = ModelServer::always(ModelReply::unauthorized());
    let judge = judge(&server).max_retries(5);
    let error = judge.judge("q", "p", "t", "s").await.unwrap_err();
    assert_eq!((error.kind, server.served()), (ErrorKind::Unauthorized, 1));
    let scorer = Scorer::new(Metric::LlmJudgement, Some(judge)).unwrap();
    let state = scored(scorer, finished(Some("4"))).await;
    assert_eq!(state.scoring_errors[0].kind, ErrorKind::Unauthorized);
}

#[tokio::test]
async fn a_rubric_scores_the_answer_that_was_extracted() {
    let exact = Scorer::new(Metric::ExactMatch, None).unwrap();
    let state = scored(exact.clone(), finished(Some("4"))).await;
    assert_eq!(state.metrics.as_ref().unwrap()["exact_match"], 1.0);
    assert!(!state.fields.contains_key(SCORE_DETAILS));
    let mut other = finished(Some("four"));
    other.set(PREDICTED_ANSWER, "Four.").unwrap();
    assert_eq!(scored(exact.clone(), other).await.reward, Some(1.0));
    let mut empty = finished(Some(""));
    empty.set(PREDICTED_ANSWER, "").unwrap();
    assert_eq!(scored(exact.clone(), empty).await.reward, Some(1.0));
    let without = scored(exact, finished(None)).await;
    assert_eq!((without.reward, without.scoring_errors.len()), (Some(0.0), 1));
}

#[tokio::test]
async fn the_judgement_is_in_the_state() {
    let server = ModelServer::always(ModelReply::text(r#"{"correct": false, "reasoning": "5 is not 4"}"#));
    let judge = judge(&server).include_question(true);
    let scorer = Scorer::new(Metric::LlmJudgement, Some(judge)).unwrap();
    let state = scored(scorer, finished(Some("5"))).await;
    assert_eq!(state.metrics.as_ref().unwrap()["llm_judgement"], 0.0);
    let details: Value = state.fields[SCORE_DETAILS].clone();
    assert_eq!((&details["correct"], &details["reasoning"]), (&json!(false), &json!("5 is not 4")));
    assert!(server.requests()[0].last_text().contains("What is 2+2?"));
}

#[test]
fn a_judgement_needs_a_judge() {
    assert_eq!(Scorer::new(Metric::LlmJudgement, None).unwrap_err(), JudgeMissing);
}
