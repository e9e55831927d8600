//! Conversations with tools.

use std::sync::Arc;

use rollout::model::{
    DuplicateTool, Error, ErrorKind, Interaction as _, Limits, Message, Role, State, ToolUse,
    tool::{self, Tool, ToolFailure, UnknownArgument},
};
use rollout_testkit::{ModelReply, ModelServer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Notes, chain, run, said, stop_condition, try_run};

#[derive(Deserialize, JsonSchema)]
struct Sum {
    a: i64,
    b: i64,
}

fn add() -> Arc<dyn Tool> {
    tool::function("add", "Adds two numbers.", async |sum: Sum| sum.a + sum.b)
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn fails() -> Arc<dyn Tool> {
    tool::function("fails", "Fails.", |_: Nothing| async {
        Err::<String, _>(ToolFailure::new("ValueError", "bad luck"))
    })
}

/// What the tools said in a rollout whose first turn is this reply, and whose second is an answer.
async fn answers(tools: ToolUse<'static>, reply: ModelReply) -> Vec<String> {
    let server = ModelServer::turns([reply, ModelReply::text("done")]);
    let state = run(&tools, &server).await;
    assert_eq!((stop_condition(&state), server.refusals()), ("no_tools_called", Vec::new()));
    tool_messages(&state).iter().map(|message| message.text().into_owned()).collect()
}

fn tool_messages(state: &State) -> Vec<&Arc<Message>> {
    state.completion.iter().flatten().filter(|message| message.role == Role::Tool).collect()
}

#[tokio::test]
async fn the_model_calls_tools_until_it_answers_without_a_call() {
    let call = ModelReply::tool_call("add", &json!({"a": 2, "b": 3})).call_id("call-1");
    let server = ModelServer::turns([call, ModelReply::text("It is 5.")]);
    let state = run(&ToolUse::new([add()]).unwrap(), &server).await;
    assert_eq!(stop_condition(&state), "no_tools_called");
    assert_eq!(said(state.completion.as_deref().unwrap()), ["assistant: ", "tool: 5", "assistant: It is 5."]);
    assert_eq!(tool_messages(&state)[0].tool_call_id.as_deref(), Some("call-1"));
    insta::assert_json_snapshot!(server.requests()[0].body["tools"], @r#"
    [
      {
        "type": "function",
        "function": {
          "name": "add",
          "description": "Adds two numbers.",
          "parameters": {
            "type": "object",
            "properties": {
              "a": {
                "type": "integer"
              },
              "b": {
                "type": "integer"
              }
            },
            "required": [
              "a",
              "b"
            ],
            "additionalProperties": false
          }
        }
      }
    ]
    "#);
}

#[tokio::test]
async fn calls_of_one_turn_run_in_their_order_one_after_another() {
    #[derive(Deserialize, JsonSchema)]
    struct Name {
        name: String,
    }
    let notes = Notes::default();
    let witness = notes.clone();
    let step = tool::function("step", "?", move |Name { name }: Name| {
        let notes = witness.clone();
        async move {
            notes.add(format!("{name} starts"));
            tokio::task::yield_now().await;
            notes.add(format!("{name} ends"));
            name
        }
    });
    let reply = ModelReply::tool_call("step", &json!({"name": "a"})).call("step", &json!({"name": "b"}));
    assert_eq!(answers(ToolUse::new([step]).unwrap(), reply).await, ["a", "b"]);
    assert_eq!(notes.all(), ["a starts", "a ends", "b starts", "b ends"]);
}

#[tokio::test]
async fn failures_of_a_call_are_reported_to_the_model() {
    let tools = || ToolUse::new([add(), fails()]).unwrap();
    let one = async |name: &str, arguments: Value| {
        let answers = answers(tools(), ModelReply::tool_call(name, &arguments)).await;
        assert_eq!(answers.len(), 1);
        answers[0].clone()
    };
    insta::assert_snapshot!(one("add", json!("{\"a\": 2,")).await, @"the arguments of the call are not JSON: EOF while parsing a value at line 1 column 8");
    insta::assert_snapshot!(one("add", json!("[1, 2]")).await, @"the arguments of a call must be a JSON object, not an array");
    insta::assert_snapshot!(one("add", json!({"a": 2})).await, @"invalid arguments: missing field `b`");
    insta::assert_snapshot!(one("add", json!({"a": "two", "b": 3})).await, @r#"invalid arguments: invalid type: string "two", expected i64"#);
    insta::assert_snapshot!(one("fails", json!({})).await, @"bad luck");
}

#[tokio::test]
async fn a_call_that_fails_does_not_keep_the_next_ones_from_being_made() {
    let calls = ModelReply::tool_call("add", &json!("{")).call_id("x");
    let calls =
        calls.call("fails", &json!({})).call_id("y").call("add", &json!({"a": 1, "b": 2})).call_id("z");
    let server = ModelServer::turns([calls, ModelReply::text("done")]);
    let state = run(&ToolUse::new([add(), fails()]).unwrap(), &server).await;
    let answers: Vec<_> = tool_messages(&state)
        .iter()
        .map(|message| (message.tool_call_id.as_deref().unwrap_or_default(), message.text()))
        .collect();
    assert_eq!(answers[1..], [("y", "bad luck".into()), ("z", "3".into())]);
    assert_eq!((answers.len(), answers[0].0), (3, "x"));
    assert_eq!((stop_condition(&state), server.refusals()), ("no_tools_called", Vec::new()));
}

#[tokio::test]
async fn after_a_failure_that_ends_the_rollout_no_further_call_is_made() {
    let notes = Notes::default();
    let witness = notes.clone();
    let note = tool::function("note", "?", move |_: Nothing| {
        witness.add("called");
        async { "noted" }
    });
    let calls = ModelReply::tool_call("note", &json!({})).call("fails", &json!({})).call("note", &json!({}));
    let tools = ToolUse::new([note, fails()]).unwrap().stop_errors(["ValueError"]);
    let state = run(&tools, &ModelServer::turns([calls, ModelReply::text("done")])).await;
    assert_eq!((stop_condition(&state), notes.all().len()), ("has_error", 1));
}

#[tokio::test]
async fn an_unknown_tool_is_reported_with_the_known_ones() {
    // A strict server would not let the model call it, so the interaction is asked by itself.
    let mut state = run(&ToolUse::new([]).unwrap(), &ModelServer::arithmetic()).await;
    let mut call = Message::assistant("");
    call.tool_calls =
        vec![serde_json::from_value(json!({"id": "1", "name": "frob", "arguments": "{}"})).unwrap()];
    let call = [Arc::new(call)];
    let tools = ToolUse::new([add(), fails()]).unwrap();
    let answer = tools.env_response(&call, &mut state).await.unwrap();
    insta::assert_snapshot!(answer[0].text(), @"unknown tool 'frob'; known tools: add, fails");
    let stopped = tools.stop_errors(["KeyError"]).env_response(&call, &mut state).await;
    assert_eq!(stopped.unwrap_err().chain(), "ToolCallError -> KeyError");
}

#[tokio::test]
async fn arguments_that_a_server_left_out_are_none() {
    let ping = tool::function("ping", "?", |_: Nothing| async { "pong" });
    assert_eq!(
        answers(ToolUse::new([ping]).unwrap(), ModelReply::tool_call("ping", &json!(""))).await,
        ["pong"]
    );
}

#[tokio::test]
async fn failures_can_be_formatted() {
    let tools = ToolUse::new([fails()]).unwrap();
    let tools = tools.error_formatter(|failure| format!("{}! {}", failure.name, failure.message));
    assert_eq!(answers(tools, ModelReply::tool_call("fails", &json!({}))).await, ["ValueError! bad luck"]);
}

#[tokio::test]
async fn stop_errors_match_the_kind_of_a_failure_and_its_name() {
    let parse = || ModelReply::tool_call("add", &json!("{"));
    let call = || ModelReply::tool_call("fails", &json!({}));
    let tools = || ToolUse::new([add(), fails()]).unwrap();
    for (tools, reply, expected) in [
        (tools().stop_errors([ErrorKind::ToolParse]), parse(), Some("ToolParseError -> JSONDecodeError")),
        (tools().stop_errors([ErrorKind::Tool]), parse(), Some("ToolParseError -> JSONDecodeError")),
        (tools().stop_errors(["JSONDecodeError"]), parse(), Some("ToolParseError -> JSONDecodeError")),
        (tools().stop_errors([ErrorKind::ToolCall]), parse(), None),
        (tools().stop_errors([ErrorKind::ToolCall]), call(), Some("ToolCallError -> ValueError")),
        (tools().stop_errors([ErrorKind::Tool]), call(), Some("ToolCallError -> ValueError")),
        (tools().stop_errors(["ToolCallError"]), call(), Some("ToolCallError -> ValueError")),
        (tools().stop_errors(["ValueError"]), call(), Some("ToolCallError -> ValueError")),
        (tools().stop_errors(["KeyError"]), call(), None),
        (tools().stop_errors([ErrorKind::ToolParse]), call(), None),
        (tools(), call(), None),
    ] {
        let server = ModelServer::turns([reply, ModelReply::text("done")]);
        let state = run(&tools, &server).await;
        let stop = if expected.is_some() { "has_error" } else { "no_tools_called" };
        assert_eq!((stop_condition(&state), chain(&state.error).as_str()), (stop, expected.unwrap_or("")));
        assert_eq!(state.trajectory.len(), if expected.is_some() { 1 } else { 2 }, "{tools:?}");
    }
}

#[tokio::test]
async fn infrastructure_failures_of_a_tool_always_end_the_rollout() {
    let lost = tool::function("lost", "?", |_: Nothing| async {
        Err::<String, _>(ToolFailure::new("SandboxError", "the container is gone"))
    });
    let server = ModelServer::always(ModelReply::tool_call("lost", &json!({})));
    let state = run(&ToolUse::new([lost]).unwrap(), &server).await;
    assert_eq!((stop_condition(&state), chain(&state.error).as_str()), ("has_error", "SandboxError"));
    assert!(state.error.unwrap().kind.is_retried());
}

#[tokio::test]
async fn tool_use_ends_after_ten_turns_by_default() {
    let server = ModelServer::always(ModelReply::tool_call("add", &json!({"a": 1, "b": 1})));
    let tools = || ToolUse::new([add()]).unwrap();
    let state = run(&tools(), &server).await;
    assert_eq!((stop_condition(&state), state.trajectory.len()), ("max_turns_reached", 10));
    assert_eq!(run(&tools().max_turns(Some(3)), &server).await.trajectory.len(), 3);
    let limits = Limits { max_turns: Some(12), ..Limits::default() };
    let state = try_run(&tools().max_turns(None), &limits, &server).await.unwrap();
    assert_eq!(state.trajectory.len(), 12);
}

#[tokio::test]
async fn the_last_turn_without_a_call_ends_by_the_number_of_turns() {
    let state = run(&ToolUse::new([add()]).unwrap().max_turns(Some(1)), &ModelServer::arithmetic()).await;
    assert_eq!(stop_condition(&state), "max_turns_reached");
}

#[tokio::test]
async fn parts_of_a_result_reach_the_model_as_parts() {
    let look = tool::function("look", "?", |_: Nothing| async {
        json!([
            {"type": "text", "text": "a cat"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ])
    });
    let server = ModelServer::turns([ModelReply::tool_call("look", &json!({})), ModelReply::text("a cat")]);
    run(&ToolUse::new([look]).unwrap(), &server).await;
    // Whether images of tools are taken is up to the server; this one refuses them, as OpenAI does.
    let requests = server.requests();
    let content = &requests[1].messages().last().unwrap()["content"];
    assert_eq!(content[0]["text"], "a cat");
    assert_eq!(content[1]["image_url"]["url"], "data:image/png;base64,AAAA");
}

const CHEATED: ErrorKind = ErrorKind::model_fault("CheatedError");
const JAMMED: ErrorKind = ErrorKind::infrastructure("JammedError");

#[tokio::test]
async fn a_tool_may_fail_with_a_kind_of_its_own() {
    let fails = |kind: ErrorKind| {
        let tool = tool::stateful("look", "?", async move |_: Nothing, _| {
            Err::<(), _>(Error::new(kind.clone(), "it happened"))?;
            Ok(())
        });
        ToolUse::new([tool]).unwrap()
    };
    let call = || ModelReply::tool_call("look", &json!({}));
    // The model sees what is its own fault, unless that is to end the rollout.
    assert_eq!(answers(fails(CHEATED), call()).await, ["it happened"]);
    for (tools, expected) in [
        (fails(CHEATED).stop_errors([CHEATED]), "CheatedError"),
        (fails(CHEATED).stop_errors(["CheatedError"]), "CheatedError"),
        (fails(JAMMED), "JammedError"),
    ] {
        let state = run(&tools, &ModelServer::always(call())).await;
        assert_eq!((stop_condition(&state), chain(&state.error).as_str()), ("has_error", expected));
        assert_eq!(state.error.unwrap().to_string(), "the tool `look` failed: it happened");
    }
}

#[tokio::test]
async fn a_tool_may_hold_things_of_its_own() {
    let notes = Notes::default();
    let heard = notes.clone();
    let note = tool::function("note", "?", async move |_: Nothing| heard.add("called"));
    let call = ModelReply::tool_call("note", &json!({})).call("note", &json!({}));
    answers(ToolUse::new([note]).unwrap(), call).await;
    assert_eq!(notes.all(), ["called", "called"]);
}

#[tokio::test]
async fn a_tool_can_change_the_state_of_its_rollout() {
    let count = tool::stateful("count", "?", async |_: Nothing, state| {
        let next = state.get("count").and_then(|count| count.as_u64()).unwrap_or(0) + 1;
        state.set("count", next)?;
        Ok(next)
    });
    let call = ModelReply::tool_call("count", &json!({})).call("count", &json!({}));
    let server = ModelServer::turns([call, ModelReply::text("done")]);
    let state = run(&ToolUse::new([count]).unwrap(), &server).await;
    assert_eq!(state.get("count"), Some(json!(2)));
    assert_eq!(tool_messages(&state)[1].text(), "2");
}

#[derive(Deserialize, JsonSchema)]
struct Query {
    session: String,
    sql: String,
}

fn query() -> Arc<dyn Tool> {
    tool::function("query", "?", async |query: Query| format!("{}:{}", query.session, query.sql))
}

#[tokio::test]
async fn hidden_arguments_are_filled_in_behind_the_models_back() {
    let hidden = tool::hide(query(), &["session"], |arguments, state| {
        assert!(!arguments.contains_key("session"), "what the model gives under that name is dropped");
        arguments.insert("session".to_owned(), json!(format!("turn{}", state.trajectory.len())));
        Ok(())
    });
    let hidden = hidden.unwrap();
    assert_eq!(hidden.def().parameters["required"], json!(["sql"]));
    let reply = ModelReply::tool_call("query", &json!({"sql": "select"}));
    assert_eq!(answers(ToolUse::new([Arc::clone(&hidden)]).unwrap(), reply).await, ["turn1:select"]);
    let reply = ModelReply::tool_call("query", &json!({"sql": "select", "session": "admin"}));
    assert_eq!(answers(ToolUse::new([hidden]).unwrap(), reply).await, ["turn1:select"]);
}

#[tokio::test]
async fn hidden_arguments_that_cannot_be_had_fail_the_call() {
    let hidden = tool::hide(query(), &["session"], |_, _| Err(ToolFailure::new("KeyError", "no session")));
    let reply = ModelReply::tool_call("query", &json!({"sql": "select"}));
    assert_eq!(answers(ToolUse::new([hidden.unwrap()]).unwrap(), reply).await, ["no session"]);
}

#[test]
fn invalid_tools_are_rejected() {
    assert_eq!(ToolUse::new([add(), add()]).unwrap_err(), DuplicateTool("add".to_owned()));
    let unknown = tool::hide(query(), &["user"], |_, _| Ok(())).err().unwrap();
    assert_eq!(unknown, UnknownArgument { tool: "query".to_owned(), argument: "user".to_owned() });
    insta::assert_snapshot!(unknown, @"the tool `query` has no argument `user` to hide");
}
