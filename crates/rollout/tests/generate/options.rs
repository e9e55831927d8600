//! What a caller can choose of a run, and what it finds then.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use rollout::model::{
    Error, Interaction, Limits, Message, Messages, Response, RolloutError, Rollouts, Rubric, RunOptions,
    Sample, State,
};
use serde_json::json as value;

use crate::support::{Scripted, Shared, examples, json, lines, model, response, right, rollouts, rubric};

/// Asks again and again, and keeps a board of what was said.
struct Game;

#[async_trait]
impl Interaction for Game {
    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        state.set("game_board", value!([]));
        Ok(())
    }

    async fn env_response(&self, _: &[Arc<Message>], _: &mut State) -> Result<Messages, Error> {
        Ok(vec![Arc::new(Message::user("and now?"))])
    }

    async fn get_model_response(&self, state: &mut State, _: &[Arc<Message>]) -> Result<Response, Error> {
        let turn = state.trajectory.len();
        let mut board = state.get("game_board").unwrap();
        board.as_array_mut().unwrap().push(turn.into());
        state.set("game_board", board);
        Ok(response(&turn.to_string()))
    }
}

#[tokio::test]
async fn limits_hold_in_a_run_and_fields_of_the_state_are_saved_as_columns() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { max_turns: Some(3), ..Limits::default() };
    let kinds = Rollouts::new(Game, rubric()).dataset(examples(1)).limits(limits);
    let options = RunOptions::new(model()).save_to(dir.path()).state_columns(["game_board", "trajectory"]);
    let results = kinds.evaluate(Sample::all().rollouts(2), options).await.unwrap();
    assert_eq!(results.metadata.state_columns, ["game_board", "trajectory"]);
    for row in lines(&dir.path().join("outputs.jsonl")) {
        assert_eq!(row["game_board"], value!([0, 1, 2]));
        assert_eq!(row["stop_condition"], "max_turns_reached");
        let said: Vec<_> =
            row["completion"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
        assert_eq!(said, ["0", "and now?", "1", "and now?", "2"]);
        let steps = row["trajectory"].as_array().unwrap();
        assert_eq!(steps.len(), 3);
        assert!(steps.iter().all(|step| step["trajectory_id"] == steps[0]["trajectory_id"]));
        // The prompt of a turn is all that was said before it.
        let lengths: Vec<_> = steps.iter().map(|step| step["prompt"].as_array().unwrap().len()).collect();
        assert_eq!(lengths, [1, 3, 5]);
        assert_eq!((&steps[2]["reward"], &steps[2]["advantage"]), (&row["reward"], &value!(0.0)));
        assert_eq!(steps[1]["completion"], value!([{"role": "assistant", "content": "1"}]));
        for key in ["response", "tokens", "is_truncated", "extras"] {
            assert!(steps[0].get(key).is_some(), "{key}: {:#}", steps[0]);
        }
    }
}

#[tokio::test]
async fn a_success_is_a_reward_that_reaches_the_threshold() {
    for (threshold, expected) in [(None, 0.5), (Some(0.75), 0.25)] {
        let scripted = Scripted::new(|_, call| Ok(["1", "0.5", "0", "0.25"][call].to_owned()));
        let rubric = Rubric::new().reward("worth", 1.0, |scene| scene.parsed().parse::<f64>());
        let mut kinds = Rollouts::new(Shared(scripted), rubric).dataset(examples(1));
        if let Some(threshold) = threshold {
            kinds = kinds.pass_threshold(threshold);
        }
        let options = RunOptions::new(model()).max_concurrent(1);
        let metadata = kinds.evaluate(Sample::all().rollouts(4), options).await.unwrap().metadata;
        assert_eq!((metadata.pass_threshold, metadata.pass_at_k["1"]), (threshold.unwrap_or(0.5), expected));
    }
}

#[tokio::test]
async fn results_are_saved_below_the_names_of_environment_and_model_unless_told_where() {
    let dir = tempfile::tempdir().unwrap();
    // No other test of this program depends on the current directory.
    std::env::set_current_dir(dir.path()).unwrap();
    let results =
        rollouts(&right(), 1).evaluate(Sample::all(), RunOptions::new(model()).save_results()).await.unwrap();
    let path = results.metadata.path_to_save.unwrap();
    let (parent, name) = (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
    assert!(parent.ends_with("outputs/evals/say--org--scripted-1"), "{}", path.display());
    assert!(name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
    assert_eq!(lines(&dir.path().join(path).join("outputs.jsonl")).len(), 1);
}

#[tokio::test]
async fn one_rollout_alone_is_not_scored_by_functions_over_groups() {
    let rubric = rubric().group_reward("best", 1.0, |scenes| vec![1.0; scenes.len()]);
    let scripted = right();
    let kinds = Rollouts::new(Shared(Arc::clone(&scripted)), rubric);
    let error = kinds.rollout(examples(1).remove(0), model()).await.unwrap_err();
    assert!(matches!(error, RolloutError::Rubric(_)), "{error:?}");
    assert_eq!(scripted.calls(), 0);
}

#[tokio::test]
async fn a_resumed_run_tells_the_rows_of_the_earlier_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let first = RunOptions::new(model()).save_to(dir.path());
    rollouts(&right(), 5).evaluate(Sample::first(3), first).await.unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let second = RunOptions::new(model()).max_concurrent(1).save_to(dir.path()).on_progress(
        move |all, new, metadata| {
            heard.lock().unwrap().push((all.len(), new.len(), metadata.num_examples));
        },
    );
    rollouts(&right(), 5).evaluate(Sample::all(), second).await.unwrap();
    assert_eq!(*told.lock().unwrap(), [(4, 1, 5), (5, 1, 5)]);
}

#[tokio::test]
async fn a_last_row_that_only_lacks_the_end_of_its_line_counts() {
    let dir = tempfile::tempdir().unwrap();
    let options = || RunOptions::new(model()).save_to(dir.path());
    rollouts(&right(), 4).evaluate(Sample::first(2), options()).await.unwrap();
    let path = dir.path().join("outputs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.trim_end()).unwrap();
    let scripted = right();
    rollouts(&scripted, 4).evaluate(Sample::all(), options()).await.unwrap();
    assert_eq!(scripted.calls(), 2);
    assert_eq!(lines(&path).len(), 4);
}

#[tokio::test]
async fn rows_that_are_in_the_file_twice_count_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = || RunOptions::new(model()).save_to(dir.path());
    let first = rollouts(&right(), 2).evaluate(Sample::all().rollouts(2), options()).await.unwrap();
    let path = dir.path().join("outputs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.repeat(2)).unwrap();
    let scripted = right();
    let again = rollouts(&scripted, 2).evaluate(Sample::all().rollouts(2), options()).await.unwrap();
    assert_eq!((scripted.calls(), &again.outputs), (0, &first.outputs));
    assert_eq!(json(&dir.path().join("metadata.json"))["avg_reward"], 1.0);
}
