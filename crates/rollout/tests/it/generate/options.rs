//! What a caller can choose of a run, and what it finds then.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use rollout::model::{
    Error, ErrorKind, Examples, Interaction, Limits, Message, MessageList, Messages, Response, RolloutError,
    Rollouts, Rubric, RunOptions, State, ToolDef,
};
use serde_json::{Map, json as value};

use super::support::{Scripted, Shared, examples, json, lines, model, response, right, rollouts, rubric};

/// Asks again and again, and keeps a board of what was said.
struct Game;

#[async_trait]
impl Interaction for Game {
    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        state.set("game_board", value!([])).unwrap();
        Ok(())
    }

    async fn env_response(&self, _: &MessageList, _: &mut State) -> Result<Messages, Error> {
        Ok(Message::user("and now?").into())
    }

    async fn get_model_response(&self, state: &mut State, _: &MessageList) -> Result<Response, Error> {
        let turn = state.trajectory.len();
        let mut board = state.get("game_board").unwrap();
        board.as_array_mut().unwrap().push(turn.into());
        state.set("game_board", board).unwrap();
        Ok(response(&turn.to_string()))
    }
}

#[tokio::test]
async fn limits_apply_in_a_run_and_fields_of_the_state_are_saved_as_columns() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { max_turns: Some(3), ..Limits::default() };
    let kinds = Rollouts::new(Game, rubric()).dataset(examples(1)).limits(limits);
    let options = RunOptions::new(model()).save_to(dir.path()).state_columns(["game_board", "trajectory"]);
    let results = kinds.evaluate(Examples::all().rollouts(2), options).await.unwrap();
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
        let metadata = kinds.evaluate(Examples::all().rollouts(4), options).await.unwrap().metadata;
        assert_eq!((metadata.pass_threshold, metadata.pass_at_k["1"]), (threshold.unwrap_or(0.5), expected));
    }
}

#[tokio::test]
async fn results_are_saved_below_the_names_of_environment_and_model_by_default() {
    let this = "generate::options::results_are_saved_below_the_names_of_environment_and_model_by_default";
    if !rollout_testkit::in_own_process(this) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    let results = rollouts(&right(), 1)
        .evaluate(Examples::all(), RunOptions::new(model()).save_results())
        .await
        .unwrap();
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
async fn a_resumed_run_returns_the_rows_of_the_earlier_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let first = RunOptions::new(model()).save_to(dir.path());
    rollouts(&right(), 5).evaluate(Examples::first(3), first).await.unwrap();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&reported);
    let second = RunOptions::new(model()).max_concurrent(1).save_to(dir.path()).on_progress(
        async move |all, new, metadata| {
            heard.lock().unwrap().push((all.len(), new.len(), metadata.num_examples));
        },
    );
    rollouts(&right(), 5).evaluate(Examples::all(), second).await.unwrap();
    assert_eq!(*reported.lock().unwrap(), [(4, 1, 5), (5, 1, 5)]);
}

#[tokio::test]
async fn a_last_row_that_only_lacks_the_end_of_its_line_counts() {
    let dir = tempfile::tempdir().unwrap();
    let options = || RunOptions::new(model()).save_to(dir.path());
    rollouts(&right(), 4).evaluate(Examples::first(2), options()).await.unwrap();
    let path = dir.path().join("outputs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.trim_end()).unwrap();
    let scripted = right();
    rollouts(&scripted, 4).evaluate(Examples::all(), options()).await.unwrap();
    assert_eq!(scripted.calls(), 2);
    assert_eq!(lines(&path).len(), 4);
}

#[tokio::test]
async fn rows_that_are_in_the_file_twice_count_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = || RunOptions::new(model()).save_to(dir.path());
    let first = rollouts(&right(), 2).evaluate(Examples::all().rollouts(2), options()).await.unwrap();
    let path = dir.path().join("outputs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.repeat(2)).unwrap();
    let scripted = right();
    let again = rollouts(&scripted, 2).evaluate(Examples::all().rollouts(2), options()).await.unwrap();
    assert_eq!((scripted.calls(), &again.outputs), (0, &first.outputs));
    assert_eq!(json(&dir.path().join("metadata.json"))["avg_reward"], 1.0);
}

/// Answers in the first turn, and never after it.
struct Stuck;

#[async_trait]
impl Interaction for Stuck {
    async fn env_response(&self, _: &MessageList, _: &mut State) -> Result<Messages, Error> {
        Ok(Message::user("sure?").into())
    }

    async fn get_model_response(&self, state: &mut State, _: &MessageList) -> Result<Response, Error> {
        match state.trajectory.len() {
            0 => Ok(response("0")),
            _ => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_times_out_is_scored_by_its_messages_until_then() {
    let limits = Limits { timeout: Some(Duration::from_secs(60)), ..Limits::default() };
    let kinds = Rollouts::new(Stuck, rubric()).dataset(examples(1)).limits(limits);
    let options = RunOptions::new(model()).state_columns(["timed_out"]);
    let row = kinds.evaluate(Examples::all(), options).await.unwrap().outputs.remove(0);
    assert_eq!((row.stop_condition.as_deref(), row.reward), (Some("timeout_reached"), 1.0));
    assert_eq!((row.is_completed, row.error, &row.columns["timed_out"]), (true, None, &value!(true)));
    assert_eq!(row.completion.unwrap().len(), 1);
}

/// Spoils its input, and writes down what it was.
struct Spoils(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Interaction for Spoils {
    fn max_turns(&self) -> Option<u32> {
        Some(1)
    }

    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        self.0.lock().unwrap().push(format!("{} {:?}", state.input.prompt[0].text(), state.input.answer));
        state.set("prompt", value!([{"role": "user", "content": "spoilt"}])).unwrap();
        state.set("answer", "spoilt").unwrap();
        Ok(())
    }

    async fn get_model_response(&self, _: &mut State, _: &MessageList) -> Result<Response, Error> {
        Ok(response("0"))
    }
}

#[tokio::test]
async fn changes_of_a_rollout_to_its_input_do_not_affect_the_next_one() {
    let seen = Arc::default();
    let kinds = Rollouts::new(Spoils(Arc::clone(&seen)), rubric()).dataset(examples(1));
    let options = RunOptions::new(model()).max_concurrent(1);
    kinds.evaluate(Examples::all().rollouts(3), options).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["say 0 Some(\"0\")"; 3]);
}

#[tokio::test]
async fn unknown_values_of_a_rollout_are_not_in_its_row() {
    let scripted = Scripted::new(|state, _| match state.input.example_id {
        0 => Err(Error::new(ErrorKind::Model, "ill")),
        _ => Ok("1".to_owned()),
    });
    let mut inputs = examples(2);
    (inputs[0].answer, inputs[0].info) = (Some(String::new()), Some(Map::new()));
    inputs[1].info = Some(Map::from_iter([("level".to_owned(), value!(1))]));
    let results = rollouts(&scripted, 0).generate(inputs, RunOptions::new(model())).await.unwrap();
    let [unknown, known] = [0, 1].map(|row| value!(results.outputs[row]));
    for key in ["answer", "info", "token_usage"] {
        assert!(unknown.get(key).is_none() && known.get(key).is_some(), "{key}");
    }
    for key in ["error_chain", "long_error_chain"] {
        assert!(unknown.get(key).is_some() && known.get(key).is_none(), "{key}");
    }
    let used = value!({
        "input_tokens": 10.0, "output_tokens": 1.0, "cost": 0.25,
        "final_input_tokens": 10.0, "final_output_tokens": 1.0,
    });
    assert_eq!(known["token_usage"], used);
}

/// Has a tool that is never called.
struct Equipped;

#[async_trait]
impl Interaction for Equipped {
    fn max_turns(&self) -> Option<u32> {
        Some(1)
    }

    fn tool_defs(&self) -> Vec<ToolDef> {
        vec![serde_json::from_value(tool("own")).unwrap()]
    }

    async fn get_model_response(&self, _: &mut State, _: &MessageList) -> Result<Response, Error> {
        Ok(response("0"))
    }
}

fn tool(name: &str) -> serde_json::Value {
    value!({"name": name, "description": "", "parameters": {}})
}

#[tokio::test]
async fn the_tools_of_a_run_are_recorded_if_all_its_rollouts_have_the_same() {
    let (one, other) = (value!([tool("one")]), value!([tool("other")]));
    for (own, expected) in [
        ([None, None], Some("own")),
        ([None, Some(value!(null))], Some("own")),
        ([Some(one.clone()), Some(one.clone())], Some("one")),
        ([Some(one.clone()), Some(other)], None),
        ([None, Some(one)], None),
        ([Some(value!([])), Some(value!([]))], None),
    ] {
        let mut inputs = examples(2);
        for (input, defs) in inputs.iter_mut().zip(&own) {
            input.info = defs.clone().map(|defs| Map::from_iter([("tool_defs".to_owned(), defs)]));
        }
        let kinds = Rollouts::new(Equipped, rubric());
        let reported = kinds.generate(inputs, RunOptions::new(model())).await.unwrap().metadata.tools;
        let names = reported.map(|tools| tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>());
        assert_eq!(names, expected.map(|name| vec![name.to_owned()]), "{own:?}");
    }
}
