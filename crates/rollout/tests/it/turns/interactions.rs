//! Interactions that are made of others, and what can be counted of all.

use std::sync::Arc;

use rollout::model::{
    Interaction, InteractionGroup, Limits, Message, MultiTurn, RolloutInput, SingleTurn, State, Stop,
    ToolDef, num_turns, rollout, tool_calls, total_tool_calls,
};
use rollout_testkit::{ModelReply, ModelServer, Script};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{chain, input, model, said, stop_condition};

async fn run_input(interaction: &dyn Interaction, input: RolloutInput, server: &ModelServer) -> State {
    rollout(interaction, &Limits::default(), input, model(server), &CancellationToken::new()).await.unwrap()
}

#[tokio::test]
async fn a_game_is_played_until_it_is_won() {
    let game = MultiTurn::new(async |messages, state| {
        let guess: u32 = messages.last().unwrap().text().trim().parse()?;
        state.set("guesses", state.trajectory.len())?;
        if guess == 37 {
            state.final_env_response = Some(Message::user("right").into());
        }
        Ok(Message::user(if guess < 37 { "higher" } else { "lower" }).into())
    });
    let server = ModelServer::start(Script::guess());
    let state = run_input(&game.max_turns(10), input("Guess my number from 1 to 100."), &server).await;
    let said = said(state.completion.as_deref().unwrap());
    assert_eq!(said[said.len() - 2..], ["assistant: 37", "user: right"]);
    assert_eq!(state.get("guesses"), Some(json!(server.served())));
    assert_eq!(stop_condition(&state), "has_final_env_response");
}

#[tokio::test]
async fn changes_of_a_reply_are_seen_by_conditions_after_the_next_response() {
    let quiz = MultiTurn::new(async |_, state| {
        state.set("won", true)?;
        Ok(Message::user("right").into())
    });
    let quiz = quiz.stop(Stop::new("won", |state| state.flag("won")));
    let state = run_input(&quiz, input("?"), &ModelServer::always(ModelReply::text("4"))).await;
    assert_eq!((stop_condition(&state), state.trajectory.len()), ("won", 2));
}

fn group() -> InteractionGroup {
    let twice = MultiTurn::new(async |_, _| Ok(Message::user("go on").into()));
    let inner = InteractionGroup::new([("inner", Arc::new(SingleTurn) as Arc<dyn Interaction>)]);
    InteractionGroup::new([
        ("once", Arc::new(SingleTurn) as Arc<dyn Interaction>),
        ("twice", Arc::new(twice.max_turns(2))),
        ("inner", Arc::new(inner)),
    ])
}

#[tokio::test]
async fn a_group_leads_each_example_by_its_task() {
    let server = ModelServer::always(ModelReply::text("4"));
    for (task, turns) in [("once", 1), ("twice", 2), ("inner", 1)] {
        let input = RolloutInput { task: task.to_owned(), ..input("?") };
        assert_eq!(run_input(&group(), input, &server).await.trajectory.len(), turns);
    }
}

#[tokio::test]
async fn an_example_of_a_task_that_no_member_is_for_fails() {
    let server = ModelServer::arithmetic();
    let state = run_input(&group(), input("?"), &server).await;
    assert_eq!((chain(&state.error).as_str(), server.served()), ("Error", 0));
    insta::assert_snapshot!(
        state.error.unwrap(),
        @"no interaction for the task `test`; known tasks: once, twice, inner"
    );
}

/// Has one tool of its own.
struct Equipped;

impl Interaction for Equipped {
    fn max_turns(&self) -> Option<u32> {
        Some(1)
    }

    fn tool_defs(&self) -> Vec<ToolDef> {
        let parameters = json!({"type": "object", "properties": {}});
        vec![ToolDef { name: "own".to_owned(), description: "?".to_owned(), parameters, strict: None }]
    }
}

/// The names of the model's tools, with this as `info.tool_defs`.
async fn tools_with(tool_defs: Option<Value>) -> (Vec<String>, State) {
    let server = ModelServer::always(ModelReply::text("4"));
    let info = tool_defs.map(|defs| serde_json::Map::from_iter([("tool_defs".to_owned(), defs)]));
    let state = run_input(&Equipped, RolloutInput { info, ..input("?") }, &server).await;
    let requests = server.requests();
    let tools = requests.first().and_then(|request| request.body["tools"].as_array().cloned());
    let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
    (tools.unwrap_or_default().iter().map(name).collect(), state)
}

#[tokio::test]
async fn an_example_can_have_its_own_tools() {
    let other =
        json!({"name": "other", "description": "", "parameters": {"type": "object", "properties": {}}});
    assert_eq!(tools_with(None).await.0, ["own"]);
    assert_eq!(tools_with(Some(Value::Null)).await.0, ["own"]);
    let (names, state) = tools_with(Some(json!([other]))).await;
    assert_eq!((names, state.tool_defs[0].name.as_str()), (vec!["other".to_owned()], "other"));
    assert!(tools_with(Some(json!([]))).await.0.is_empty());
}

#[tokio::test]
async fn tools_in_the_format_of_a_provider_are_rejected() {
    let wrapped = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let (names, state) = tools_with(Some(wrapped)).await;
    assert!(names.is_empty() && state.trajectory.is_empty());
    insta::assert_snapshot!(
        state.error.unwrap(),
        @"`info.tool_defs` is not a list of {name, description, parameters}: missing field `name`"
    );
}

#[tokio::test]
async fn turns_and_tool_calls_can_be_counted() {
    let calls = ModelReply::tool_call("add", &json!({})).call("add", &json!({})).call("unknown", &json!({}));
    let server = ModelServer::turns([calls, ModelReply::text("4")]);
    let twice = MultiTurn::new(async |messages, _| {
        let calls = &messages.last().unwrap().tool_calls;
        Ok(calls.iter().map(|call| Message::tool(&call.id, "4").into()).collect())
    });
    let parameters = json!({"type": "object", "properties": {}});
    let def = |name: &str| json!({"name": name, "description": "", "parameters": parameters});
    let info = json!({"tool_defs": [def("add"), def("unknown")]}).as_object().cloned();
    let state = run_input(&twice.max_turns(2), RolloutInput { info, ..input("?") }, &server).await;
    assert_eq!(
        (num_turns(&state), total_tool_calls(&state)),
        (2, 3),
        "{:?}",
        said(&state.trajectory[0].prompt)
    );
    assert_eq!(
        (tool_calls(&state, "add"), tool_calls(&state, "unknown"), tool_calls(&state, "x")),
        (2, 1, 0)
    );
}
