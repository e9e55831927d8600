//! The game, played with a scripted model.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path, process::Command};

use rollout::model::{Client, Examples, Model, RolloutOutput, RunOptions, client::ClientConfig};
use rollout_example_number_game::rollouts;
use rollout_testkit::{ModelReply, ModelServer, Script};

async fn play(server: &ModelServer, number: i64) -> RolloutOutput {
    let model = Model::new(Client::new(ClientConfig::new(server.url())).unwrap(), "scripted");
    let played = rollouts(&[number]).evaluate(Examples::all(), RunOptions::new(model)).await.unwrap();
    assert_eq!(server.refusals(), [""; 0]);
    played.outputs.into_iter().next().unwrap()
}

fn said(row: &RolloutOutput) -> String {
    let completion = row.completion.as_ref().unwrap();
    completion.iter().map(|message| format!("{}: {}\n", message.role.as_str(), message.text())).collect()
}

#[tokio::test]
async fn a_model_that_goes_by_halves_wins() {
    let row = play(&ModelServer::start(Script::examples()), 62).await;
    insta::assert_snapshot!(said(&row), @"
    assistant: 50
    user: Higher.
    assistant: 75
    user: Lower.
    assistant: 62
    user: Right!
    ");
    assert_eq!(row.stop_condition.as_deref(), Some("has_final_env_response"));
    assert_eq!((row.metrics["won"], row.metrics["quick"]), (1.0, 1.0 / 3.0));
    assert_eq!(row.columns["guesses"].to_string(), "[50,75,62]");
}

#[tokio::test]
async fn a_model_that_repeats_itself_has_seven_turns() {
    let row = play(&ModelServer::always(ModelReply::text("1")), 2).await;
    assert_eq!((row.reward, row.metrics["num_turns"]), (0.0, 7.0));
    assert_eq!(row.stop_condition.as_deref(), Some("max_turns_reached"));
}

#[tokio::test]
async fn a_model_that_replies_something_else_has_lost() {
    let row = play(&ModelServer::always(ModelReply::text("Is it 2?")), 2).await;
    assert_eq!((row.reward, row.metrics["num_turns"]), (0.0, 1.0));
    assert_eq!(row.stop_condition.as_deref(), Some("no_number"));
}

#[test]
fn the_program_prints_what_the_readme_shows_and_plays_nothing_twice() {
    let server = ModelServer::start(Script::examples());
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("-p rollout-example-number-game\n").unwrap();
    let (promised, _) = rest.split_once("```").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rollout-example-number-game"));
        program.current_dir(&dir).env("MODEL_URL", server.url()).env_remove("MODEL_KEY");
        String::from_utf8(program.output().unwrap().stdout).unwrap()
    };
    assert_eq!(program(), promised);
    let served = server.served();
    assert_eq!((program().as_str(), server.served()), (promised, served));
}
