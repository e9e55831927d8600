//! Rollouts of a model whose results are pushed.

use std::fs;

use rollout::model::{
    Client, Examples, GenerateError, Message, Model, RolloutInput, Rollouts, Rubric, RunOptions, SingleTurn,
    client::ClientConfig,
};
use rollout_testkit::{HubServer, ModelServer};

use super::hub;

fn rollouts() -> Rollouts {
    let sum = |example_id: u64| RolloutInput {
        prompt: Message::user(format!("What is {example_id}+1?")).into(),
        example_id,
        answer: Some((example_id + 1).to_string()),
        ..RolloutInput::default()
    };
    let rubric = Rubric::new().reward("right", 1.0, |scene| scene.parsed() == scene.answer);
    Rollouts::new(SingleTurn, rubric).dataset(vec![sum(0), sum(1)]).env_id("sums")
}

fn options(server: &ModelServer) -> RunOptions {
    RunOptions::new(Model {
        client: Client::new(ClientConfig::new(server.url())).unwrap(),
        name: "org/arithmetic".to_owned(),
        sampling: serde_json::Map::new(),
        max_seq_len: None,
    })
}

#[tokio::test]
async fn rows_and_averages_are_pushed_in_the_end() {
    let (server, model, dir) = (HubServer::start(), ModelServer::arithmetic(), tempfile::tempdir().unwrap());
    let options = options(&model)
        .save_to(dir.path().join("run"))
        .push_to_hf_hub(hub(&server))
        .hf_hub_dataset_name("team/experiment-results".parse().unwrap());
    let outputs = rollouts().evaluate(Examples::all(), options).await.unwrap();
    let pushed = outputs.pushed.unwrap();
    assert_eq!(pushed.url, format!("{}/datasets/team/experiment-results", server.url()));
    let there = server.files("team/experiment-results");
    for name in ["outputs.jsonl", "metadata.json"] {
        assert_eq!(there[name], fs::read(dir.path().join("run").join(name)).unwrap(), "{name}");
    }
    assert_eq!(there.len(), 2 + 2, "and the card, and what every dataset has");
}

#[tokio::test]
async fn a_dataset_has_a_name_where_none_is_given() {
    let (server, model, dir) = (HubServer::start(), ModelServer::arithmetic(), tempfile::tempdir().unwrap());
    let options = options(&model).save_to(dir.path().join("run")).push_to_hf_hub(hub(&server));
    rollouts().evaluate(Examples::all().rollouts(2), options).await.unwrap();
    assert!(server.is_private("tester/sums_org_arithmetic_n2_r2").is_some());
}

#[tokio::test]
async fn unsaved_results_cannot_be_pushed_and_no_model_is_asked() {
    let (server, model) = (HubServer::start(), ModelServer::arithmetic());
    let error =
        rollouts().evaluate(Examples::all(), options(&model).push_to_hf_hub(hub(&server))).await.unwrap_err();
    assert!(matches!(error, GenerateError::Unsaved), "{error}");
    assert_eq!((model.served(), server.requests().len()), (0, 0));
}

#[tokio::test]
async fn results_that_could_not_be_pushed_are_saved() {
    let (model, dir) = (ModelServer::arithmetic(), tempfile::tempdir().unwrap());
    let server = HubServer::start();
    let stranger = rollout::hub::Hub::new(server.url(), "hf_wrong").unwrap();
    let options = options(&model).save_to(dir.path().join("run")).push_to_hf_hub(stranger);
    let error = rollouts().evaluate(Examples::all(), options).await.unwrap_err();
    assert!(matches!(error, GenerateError::Push { .. }), "{error}");
    assert!(dir.path().join("run/outputs.jsonl").exists());
}
