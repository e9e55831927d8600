//! Conversations that interaction files describe: what ends them, who the user is, and the process of their functions.

use std::fs;

use rollout_testkit::{ModelReply, ModelServer, TestJob, TokenCounts};
use serde_json::{Value, json};

/// A job with one model and this interaction, which is tried once.
fn job(server: &ModelServer, interaction: &Value) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "gpt", "model": {"name": "m", "base_url": server.url(), "max_retries": 0}}))
        .set("retry", json!({"max_attempts": 1}))
        .set("datasets", json!([{"name": "talk", "interaction": interaction}]))
}

/// An interaction with one example, and these settings.
fn interaction(settings: &Value) -> Value {
    let mut interaction = json!({
        "dataset": [{"question": "What is it?", "answer": "4", "info": {"who": "Ann"}}],
        "rubric": [{"match": "exact"}],
    });
    for (key, value) in settings.as_object().unwrap() {
        interaction[key] = value.clone();
    }
    interaction
}

fn rows_in(job: &TestJob, dir: &str) -> Vec<Value> {
    let text = fs::read_to_string(job.dir().join(dir).join("outputs.jsonl")).expect("the job has outputs");
    text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

/// The only rollout of a job that ends with this code.
#[track_caller]
fn only_row(job: &TestJob, code: i32) -> Value {
    job.run().expect(code);
    rows_in(job, "").remove(0)
}

/// What ended the rollout, and after how many turns.
fn end(row: &Value) -> String {
    let turns = row["metrics"]["num_turns"].as_f64().unwrap();
    format!("{} after {turns}", row["stop_condition"].as_str().unwrap())
}

/// Who said what after the prompt.
fn said(row: &Value) -> Vec<String> {
    row["completion"].as_array().unwrap().iter().map(line).collect()
}

fn line(message: &Value) -> String {
    format!("{}: {}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap_or(""))
}

/// A model that counts its turns.
fn counting() -> ModelServer {
    ModelServer::scripted(|request| ModelReply::text(format!("turn {}", request.turns() + 1)))
}

fn counts(prompt: u64, completion: u64) -> TokenCounts {
    TokenCounts { prompt, completion, ..TokenCounts::default() }
}

const FUNCTIONS: &str = "
def third(messages, completion, response, info):
    assert messages[0]['content'] == 'What is it?' and completion[-1]['content'] == response
    assert info == {'who': 'Ann'}
    return response == 'turn 3'

def broken(response):
    return int(response)

def nothing(response):
    pass

def speaks(messages, answer):
    turns = sum(message['role'] == 'assistant' for message in messages)
    return f'{turns} of {answer}' if turns < 3 else None

def fails(messages):
    raise RuntimeError('no user is there')
";

#[test]
fn a_stop_condition_ends_the_rollout_under_its_name() {
    for (stop, expected) in [
        (json!({"contains": "turn 2"}), "contains after 2"),
        (json!({"name": "done", "matches": "(?i)TURN [3-9]$"}), "done after 3"),
        (json!({"python": "functions.py:third"}), "third after 3"),
        (json!({"contains": "TURN"}), "max_turns_reached after 5"),
    ] {
        let server = counting();
        let settings = json!({"type": "multi_turn", "max_turns": 5, "stop": [stop]});
        let job = job(&server, &interaction(&settings)).file("functions.py", FUNCTIONS);
        assert_eq!(end(&only_row(&job, 0)), expected, "{stop}");
    }
}

#[test]
fn stop_conditions_are_asked_in_their_order_and_before_limits() {
    let server = counting();
    let stops = json!([{"name": "z", "contains": "turn 2"}, {"name": "a", "matches": "turn \\d"}]);
    let settings = json!({"type": "multi_turn", "max_turns": 2, "stop": stops});
    assert_eq!(end(&only_row(&job(&server, &interaction(&settings)), 0)), "a after 1");
    let stops = json!([{"name": "z", "contains": "turn 2"}, {"name": "a", "contains": "turn 2"}]);
    let settings = json!({"type": "multi_turn", "max_turns": 2, "stop": stops});
    assert_eq!(end(&only_row(&job(&server, &interaction(&settings)), 0)), "z after 2");
}

#[test]
fn a_call_of_a_tool_can_end_the_rollout_before_the_tool_runs() {
    let server = ModelServer::turns([
        ModelReply::tool_call("look", &json!({})),
        ModelReply::tool_call("submit", &json!({"answer": 4})),
    ]);
    let tool = |name: &str, script: &str| json!({"command": ["sh", "-c", script], "name": name, "description": "Any."});
    let settings = json!({
        "tools": [tool("look", "echo here"), tool("submit", "touch ran")],
        "stop": [{"name": "submitted", "called": "submit"}],
    });
    let job = job(&server, &interaction(&settings));
    let row = only_row(&job, 0);
    assert_eq!(end(&row), "submitted after 2");
    assert_eq!(row["completion"].as_array().unwrap().len(), 3, "{row:#}");
    assert!(!job.root().join("ran").exists());
}

#[test]
fn a_stop_condition_that_fails_is_an_error_with_its_name_and_its_function() {
    for (function, expected) in [
        ("broken", "`functions.py:broken` raised ValueError: invalid literal for int()"),
        ("nothing", "`functions.py:nothing` raised TypeError: it returned NoneType, not a boolean"),
    ] {
        let server = counting();
        let stop = json!([{"name": "done", "python": format!("functions.py:{function}")}]);
        let settings = json!({"type": "multi_turn", "max_turns": 5, "stop": stop});
        let job = job(&server, &interaction(&settings)).file("functions.py", FUNCTIONS);
        let row = only_row(&job, 1);
        assert_eq!((end(&row).as_str(), &row["error"]["error"]), ("has_error after 1", &json!("InfraError")));
        let text = row["error"].to_string();
        assert!(text.contains("cannot evaluate the stop condition `done`"), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn functions_and_tools_of_stop_conditions_that_are_missing_are_reported_before_anything_runs() {
    let tools = "
def named(function):
    def wrapper(word: str):
        return function(word)
    return wrapper

@named
def lookup(word):
    return word
";
    for (settings, expected) in [
        (
            json!({"type": "multi_turn", "max_turns": 2, "stop": [{"python": "tools.py:none"}]}),
            "cannot call `tools.py:none`: there is no function `none` in ",
        ),
        (
            json!({"user": {"python": "tools.py:none"}}),
            "cannot call `tools.py:none`: there is no function `none` in ",
        ),
        (
            json!({"tools": [{"python": "tools.py:lookup"}], "stop": [{"name": "found", "called": "lookup"}]}),
            "the stop condition `found` names the unknown tool `lookup`",
        ),
    ] {
        let server = counting();
        let text = job(&server, &interaction(&settings)).file("tools.py", tools).run().expect(2).stderr();
        assert!(text.contains(expected), "{text}");
        assert_eq!(server.served(), 0);
    }
}

#[test]
fn errors_of_tools_end_the_rollout_if_they_are_stop_errors() {
    let tools = json!([
        {"command": ["sh", "-c", "exit 3"], "name": "fail", "description": "Fails."},
        {"python": "tools.py:buy"},
    ]);
    let functions = "
class OutOfStock(Exception):
    pass

def buy(item: str):
    raise OutOfStock(item)
";
    let fail = || ModelReply::tool_call("fail", &json!({}));
    let buy = || ModelReply::tool_call("buy", &json!({"item": "pears"}));
    for (call, errors, expected) in [
        (fail(), json!([]), "no_tools_called after 2: null"),
        (fail(), json!(["CommandError"]), "has_error after 1: \"ToolCallError -> CommandError\""),
        (fail(), json!(["ToolError"]), "has_error after 1: \"ToolCallError -> CommandError\""),
        (fail(), json!(["OutOfStock", "ToolParseError"]), "no_tools_called after 2: null"),
        (buy(), json!(["OutOfStock"]), "has_error after 1: \"ToolCallError -> OutOfStock\""),
        (buy(), json!(["ToolParseError"]), "no_tools_called after 2: null"),
    ] {
        let server = ModelServer::turns([call, ModelReply::text("4")]);
        let job = job(&server, &interaction(&json!({"tools": tools, "stop_errors": errors})))
            .file("tools.py", functions);
        let failed = expected.starts_with("has_error");
        let row = only_row(&job, i32::from(failed));
        let chain = &row["error"]["error_chain_str"];
        assert_eq!(format!("{}: {chain}", end(&row)), expected, "{errors}");
    }
}

#[test]
fn arguments_that_cannot_be_read_end_the_rollout_if_that_is_a_stop_error() {
    let server =
        ModelServer::turns([ModelReply::tool_call("add", &json!("{not json")), ModelReply::text("4")]);
    let tools = json!([{"command": ["cat"], "name": "add", "description": "Adds."}]);
    let settings = json!({"tools": tools, "stop_errors": ["ToolParseError"]});
    let row = only_row(&job(&server, &interaction(&settings)), 0);
    assert_eq!(end(&row), "has_error after 1");
    assert_eq!(row["error"]["error"], "ToolParseError");
}

#[test]
fn a_command_plays_the_user_until_it_ends_the_conversation() {
    let user = "
import json, sys
rollout = json.load(sys.stdin)
turns = len(rollout['completion']) // 2 + 1
assert rollout['messages'][-1]['content'] == f'turn {turns}', rollout
print(rollout['info']['who'], turns, '###STOP### never said' if turns == 3 else '')
";
    let server = counting();
    let settings = json!({"user": {"command": ["python3", "user.py"]}});
    let row = only_row(&job(&server, &interaction(&settings)).file("user.py", user), 0);
    assert_eq!(end(&row), "has_final_env_response after 3");
    assert_eq!(
        said(&row),
        [
            "assistant: turn 1",
            "user: Ann 1 ",
            "assistant: turn 2",
            "user: Ann 2 ",
            "assistant: turn 3",
            "user: Ann 3"
        ]
    );
    // Nothing is said at the end if there is nothing to say, and the mark can be another.
    let settings = json!({"user": {"command": ["echo", "BYE"], "end": "BYE"}});
    assert_eq!(said(&only_row(&job(&server, &interaction(&settings)), 0)), ["assistant: turn 1"]);
}

#[test]
fn a_python_function_plays_the_user_until_it_returns_none() {
    let server = counting();
    let settings = json!({"user": {"python": "functions.py:speaks"}});
    let job = job(&server, &interaction(&settings)).file("functions.py", FUNCTIONS);
    let row = only_row(&job, 0);
    assert_eq!(end(&row), "has_final_env_response after 3");
    assert_eq!(
        said(&row),
        ["assistant: turn 1", "user: 1 of 4", "assistant: turn 2", "user: 2 of 4", "assistant: turn 3"]
    );
}

#[test]
fn a_model_plays_the_user_with_the_roles_exchanged_and_is_paid_apart() {
    let server = ModelServer::scripted(|request| {
        ModelReply::text(format!("<think>hm</think>turn {}", request.turns() + 1)).usage(counts(10, 5))
    });
    let customer = ModelServer::scripted(|request| match request.turns() {
        // The question of the example counts as its own.
        1 => ModelReply::text("my key is sk-of-the-customer").usage(counts(100, 7)),
        _ => ModelReply::text("Thanks. ###STOP###").usage(counts(200, 8)),
    })
    .key("sk-of-the-customer");
    let model = json!({
        "name": "c", "base_url": customer.url(), "api_key": "${CUSTOMER_KEY}",
        "prices": {"input": 10000, "output": 0},
    });
    let settings = json!({
        "system_prompt": "Be helpful.",
        "user": {"model": model, "prompt": "You are {info.who}. {answer} of \"{question}\" is {secret}."},
        "state_columns": ["user_usage"],
    });
    let job = job(&server, &interaction(&settings)).env("CUSTOMER_KEY", "sk-of-the-customer");
    let finished = job.run().expect(0);
    let row = rows_in(&job, "").remove(0);
    assert_eq!(end(&row), "has_final_env_response after 2");
    assert_eq!(said(&row).last().unwrap(), "user: Thanks.");
    assert_eq!(
        (&row["token_usage"]["input_tokens"], &row["token_usage"]["output_tokens"]),
        (&json!(20.0), &json!(10.0))
    );
    assert_eq!(row["user_usage"], json!({"input_tokens": 300, "output_tokens": 15, "cost": 3.0}));
    let asked = customer.requests();
    let lines: Vec<String> = asked.last().unwrap().messages().iter().map(line).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    system: You are Ann. 4 of "What is it?" is {secret}.

    To end the conversation, write ###STOP###.
    user: Begin the conversation.
    assistant: What is it?
    user: turn 1
    assistant: my key is sk-of-the-customer
    user: turn 2
    "#);
    let mut shown = finished.stdout() + &finished.stderr();
    for entry in fs::read_dir(job.dir()).unwrap() {
        shown += &String::from_utf8_lossy(&fs::read(entry.unwrap().path()).unwrap());
    }
    assert!(!shown.contains("sk-of-the-customer"), "{shown}");
    assert!(shown.contains("${CUSTOMER_KEY}"));
}

#[test]
fn a_user_that_fails_is_an_infrastructure_error_that_names_it() {
    let broken = ModelServer::always(ModelReply::error(500, "out of order"));
    let model = json!({"name": "c", "base_url": broken.url(), "max_retries": 0});
    for (user, chain, expected) in [
        (
            json!({"command": ["sh", "-c", "echo gone home >&2; exit 3"]}),
            "InfraError -> CommandError",
            "`sh` failed: exit status: 3; stderr: gone home",
        ),
        (json!({"command": ["/nowhere/user"]}), "InfraError -> OSError", "cannot start `/nowhere/user`"),
        (
            json!({"python": "functions.py:fails"}),
            "InfraError -> PythonError",
            "`functions.py:fails` raised RuntimeError: no user is there",
        ),
        (
            json!({"model": model, "prompt": "Ask."}),
            "InfraError -> ModelError -> InternalServerError",
            "out of order",
        ),
        (
            json!({"model": model, "prompt": "You are {info.name}."}),
            "InfraError -> KeyError",
            "the example has no `info.name`, which the prompt uses",
        ),
    ] {
        let server = counting();
        let job = job(&server, &interaction(&json!({"user": user}))).file("functions.py", FUNCTIONS);
        let finished = job.run().expect(1);
        let row = rows_in(&job, "").remove(0);
        assert_eq!(
            (end(&row).as_str(), &row["error"]["error_chain_str"]),
            ("has_error after 1", &json!(chain))
        );
        let text = finished.stdout() + &finished.stderr();
        assert!(text.contains("`user` failed to reply"), "{text}");
        let error = row["error"].to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_conversation_with_a_user_ends_after_50_turns_unless_it_says_otherwise() {
    let endless = "def user():\n    return 'go on'\n";
    for (limits, expected) in
        [(json!({}), "max_turns_reached after 50"), (json!({"max_turns": 60}), "max_turns_reached after 60")]
    {
        let server = counting();
        let settings = json!({"user": {"python": "user.py:user"}, "limits": limits});
        let job = job(&server, &interaction(&settings)).file("user.py", endless);
        assert_eq!(end(&only_row(&job, 0)), expected);
    }
}

#[test]
fn all_interactions_of_a_job_share_one_python_process_and_each_finds_its_own_modules() {
    let functions = "
import os
from helper import NAME
from package import part

def process(response):
    import helper, package.part
    assert helper.NAME == NAME == package.part.NAME == part.NAME
    return os.getpid()

def lookup():
    return f'{NAME} in {os.getcwd()}'
";
    let server = ModelServer::turns([ModelReply::tool_call("lookup", &json!({})), ModelReply::text("4")]);
    let settings = json!({
        "tools": [{"python": "functions.py:lookup"}],
        "rubric": [{"python": "functions.py:process", "weight": 0}, {"match": "exact"}],
    });
    let mut job = job(&server, &json!(null)).set(
        "datasets",
        json!(["a", "b", "c"].map(|name| { json!({"interaction": format!("{name}/{name}.yaml")}) })),
    );
    for name in ["a", "b", "c"] {
        let module = format!("NAME = '{name}'\n");
        job = job
            .file(&format!("{name}/{name}.yaml"), &interaction(&settings).to_string())
            .file(&format!("{name}/functions.py"), functions)
            .file(&format!("{name}/helper.py"), &module)
            .file(&format!("{name}/package/__init__.py"), "")
            .file(&format!("{name}/package/part.py"), "from helper import NAME\n")
            // A directory is no module in the place of a library.
            .file(&format!("{name}/os/data.txt"), "");
    }
    job.run().expect(0);
    let mut processes = Vec::new();
    for name in ["a", "b", "c"] {
        let row = rows_in(&job, &format!("gpt/{name}")).remove(0);
        processes.push(row["metrics"]["process"].as_f64().unwrap());
        let found = said(&row).into_iter().find(|said| said.starts_with("tool: ")).unwrap();
        let root = job.root().canonicalize().unwrap();
        assert_eq!(found, format!("tool: {name} in {}", root.display()));
    }
    assert!(processes[0] > 0.0 && processes.iter().all(|id| *id == processes[0]), "{processes:?}");
}

#[test]
fn a_tool_function_that_ends_the_process_is_an_infrastructure_error_and_later_calls_go_on() {
    let functions = "
import os

def crash():
    os._exit(7)

def fine(response):
    return 1
";
    let server = ModelServer::always(ModelReply::tool_call("crash", &json!({})));
    let rubric = json!([{"python": "functions.py:fine"}]);
    let settings = json!({"tools": [{"python": "functions.py:crash"}], "rubric": rubric});
    let row = only_row(&job(&server, &interaction(&settings)).file("functions.py", functions), 1);
    assert_eq!((end(&row).as_str(), &row["error"]["error"]), ("has_error after 1", &json!("InfraError")));
    let error = row["error"].to_string();
    assert!(
        error.contains("the tool `crash` failed: `functions.py:crash` ended the Python process"),
        "{error}"
    );
    assert_eq!(row["metrics"]["fine"], 1.0);
}
