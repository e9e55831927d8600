//! What the tool server hears, and what models are told of its answers.

use rollout::benchmark::{EvalError, SetupError, ToolServerError, load_tasks};
use rollout_testkit::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::support::{Bench, Tools};

fn question() -> Vec<Value> {
    vec![json!({"id": "q", "question": "Well?", "answer": "42"})]
}

fn bench(server: &ModelServer, url: &str, questions: &[Value]) -> Bench {
    Bench::new(server, questions).with(|config| {
        config.available_tools = vec!["web:search".to_owned(), "doc:*".to_owned()];
        config.sandbox_server_url = url.to_owned();
    })
}

/// What the model was told by tools, in the order of the messages of its last request.
fn told(server: &ModelServer) -> Vec<String> {
    let last = server.requests().pop().unwrap();
    let tools = last.messages().iter().filter(|message| message["role"] == "tool");
    tools.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_call_of_a_turn_is_done_in_order_and_put_on_record() {
    let (tools, url) = Tools::start(|tool, params| {
        json!({"code": 0, "message": "success", "data": {"result": format!("{tool}: {}", params["query"])}})
    })
    .await;
    let both =
        Reply::tool_call("web-search", &json!({"query": "巴黎"})).call("doc-read", &json!({"query": "b"}));
    let server = ModelServer::turns([both, Reply::text("42")]);
    let bench = bench(&server, &url, &question());
    assert_eq!(bench.run().await.unwrap().average_score, Some(1.0));
    assert!(server.refusals().is_empty(), "every call was answered: {:?}", server.refusals());
    assert_eq!(told(&server), ["web:search: \"巴黎\"", "doc:read: \"b\""]);
    let shown = server.requests()[0].body["tools"].clone();
    let names: Vec<_> =
        shown.as_array().unwrap().iter().map(|tool| tool["function"]["name"].clone()).collect();
    assert_eq!(names, ["web-search", "doc-read"]);
    assert_eq!(shown[0]["function"]["parameters"]["required"], json!(["query"]));
    let mut trajectory = bench.rows()[0]["trajectory"].clone();
    for call in trajectory["tool_calls"].as_array_mut().unwrap() {
        assert!(call["execution_time_ms"].is_u64());
        call["execution_time_ms"] = 0.into();
    }
    assert_eq!(
        trajectory["tool_calls"][0],
        json!({
            "tool_name": "web:search", "parameters": {"query": "巴黎"}, "result": {"result": "web:search: \"巴黎\""},
            "success": true, "error": null, "execution_time_ms": 0,
        })
    );
    assert_eq!(trajectory["total_turns"], 2);
    let roles: Vec<_> =
        trajectory["messages"].as_array().unwrap().iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "assistant"]);
    assert_eq!(trajectory["messages"][2]["tool_calls"][0]["function"]["name"], "web-search");
    assert_eq!(tools.paths(), ["tools", "execute", "execute", "worker/disconnect"]);
}

#[tokio::test]
async fn parameters_of_the_question_go_over_those_of_the_model() {
    let (tools, url) = Tools::willing().await;
    let call = Reply::tool_call("doc-read", &json!({"query": "a", "seed_path": "/etc"}));
    let server = ModelServer::turns([call, Reply::text("42")]);
    let asked =
        json!({"id": "q", "question": "Well?", "answer": "42", "kwargs": {"seed_path": "/data/a.pdf"}});
    let bench = bench(&server, &url, &[asked]);
    bench.run().await.unwrap();
    assert_eq!(tools.calls(), [json!(["doc:read", {"query": "a", "seed_path": "/data/a.pdf"}])]);
    let recorded = &bench.rows()[0]["trajectory"]["tool_calls"][0]["parameters"];
    assert_eq!(*recorded, json!({"query": "a", "seed_path": "/etc"}));
    assert_eq!(
        load_tasks(bench.config.data_path.as_ref().unwrap()).unwrap()[0].kwargs["seed_path"],
        "/data/a.pdf"
    );
}

#[tokio::test]
async fn failures_of_tools_are_told_to_the_model_which_goes_on() {
    let (tools, url) = Tools::start(|tool, _| match tool {
        "doc:read" => json!({"code": 5006, "message": "it took longer than 1 s", "data": null}),
        _ => json!({"code": 0, "message": "success", "data": "x".repeat(5000)}),
    })
    .await;
    let calls = Reply::tool_call("doc-read", &json!({"query": 1}))
        .call("web_search", &json!("not { json"))
        .call("no-such-tool", &json!({}));
    let server = ModelServer::turns([calls, Reply::text("42")]);
    let bench = bench(&server, &url, &question());
    assert_eq!(bench.run().await.unwrap().successful_tasks, 1);
    let told = told(&server);
    assert_eq!(told[0], "it took longer than 1 s");
    assert_eq!(told[1], format!("{}\n... (truncated, total 5000 chars)", "x".repeat(4000)));
    assert_eq!(told[2], "no tool is called 'no-such-tool'; there are: web-search, doc-read");
    assert_eq!(tools.calls(), [json!(["doc:read", {"query": 1}]), json!(["web:search", {}])]);
    let recorded = bench.rows()[0]["trajectory"]["tool_calls"].clone();
    assert_eq!(recorded[0]["success"], false);
    assert_eq!(recorded[0]["error"], "it took longer than 1 s");
    assert_eq!(recorded[0]["result"], Value::Null);
    assert_eq!((&recorded[1]["success"], &recorded[1]["parameters"]), (&json!(true), &json!({})));
    assert_eq!(recorded[1]["result"].as_str().unwrap().len(), 5000, "the record has all of it");
}

#[tokio::test]
async fn each_question_has_sessions_of_its_own_which_are_closed_however_it_ends() {
    let (tools, url) = Tools::willing().await;
    let server = ModelServer::scripted(|request| match request.messages()[1]["content"] == "broken" {
        true => Reply::error(400, "no"),
        false => Reply::text("42"),
    });
    let questions = [json!({"id": "a", "question": "well"}), json!({"id": "b", "question": "broken"})];
    let bench = bench(&server, &url, &questions).with(|config| {
        config.resource_types = vec!["web".to_owned(), "doc".to_owned()];
        let content = json!({"content": {"seed_path": "/data"}});
        config.resource_init_configs.insert("doc".to_owned(), content.as_object().unwrap().clone());
    });
    bench.run().await.unwrap();
    let one = ["session/create", "session/create", "worker/disconnect"];
    assert_eq!(tools.paths(), [&["tools", "warmup"][..], &one, &one].concat());
    let heard = tools.heard();
    assert_eq!(heard[1].1, json!({"backends": ["web", "doc"]}));
    let (first, second) = (&heard[2].1, &heard[3].1);
    assert_eq!((&first["resource_type"], &first["session_config"]), (&json!("web"), &json!({})));
    assert_eq!(second["session_config"], json!({"seed_path": "/data"}));
    assert_eq!(heard[4].1["worker_id"], first["worker_id"]);
    assert_ne!(heard[5].1["worker_id"], first["worker_id"], "no two questions share a session");
}

#[tokio::test]
async fn a_session_that_is_refused_fails_its_question() {
    let (tools, url) =
        Tools::start(|_, _| json!({"code": 4007, "message": "there is nothing at /data", "data": null}))
            .await;
    let server = ModelServer::always(Reply::text("42"));
    let bench =
        bench(&server, &url, &question()).with(|config| config.resource_types = vec!["doc".to_owned()]);
    assert_eq!(bench.run().await.unwrap().failed_tasks, 1);
    let error = bench.rows()[0]["error"].clone();
    assert_eq!(error, "no session for `doc` could be opened: there is nothing at /data");
    assert_eq!(tools.paths().last().unwrap(), "worker/disconnect");
    assert_eq!(server.served(), 0);
}

#[tokio::test]
async fn without_tools_the_tool_server_is_never_asked() {
    let server = ModelServer::always(Reply::text("42"));
    let bench = Bench::new(&server, &question())
        .with(|config| config.sandbox_server_url = "http://127.0.0.1:9".to_owned());
    assert_eq!(bench.run().await.unwrap().average_score, Some(1.0));
    assert!(server.requests()[0].body.get("tools").is_none());
}

#[tokio::test]
async fn a_tool_that_the_server_does_not_have_is_told_before_anything_is_asked() {
    let (_, url) = Tools::willing().await;
    let server = ModelServer::always(Reply::text("42"));
    let bench =
        bench(&server, &url, &question()).with(|config| config.available_tools.push("web:brwse".to_owned()));
    let error = bench.run().await.unwrap_err();
    assert!(error.to_string().contains("did you mean `web:browse`?"), "{error}");
    assert_eq!(server.served(), 0);
    assert!(!bench.path("out").exists());
}

#[tokio::test]
async fn a_tool_server_that_is_not_there_is_told_with_what_starts_it() {
    let server = ModelServer::always(Reply::text("42"));
    let error = bench(&server, "http://127.0.0.1:9", &question()).run().await.unwrap_err();
    assert!(
        matches!(&error, EvalError::Setup(SetupError::Tools(ToolServerError::Unreachable { .. }))),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("rollout tools serve"));
}

#[tokio::test]
async fn what_answers_and_is_no_tool_server_is_told() {
    let server = ModelServer::always(Reply::text("42"));
    let error = bench(&server, &server.root(), &question()).run().await.unwrap_err();
    assert!(
        matches!(&error, EvalError::Setup(SetupError::Tools(ToolServerError::Unreadable { .. }))),
        "{error}"
    );
    assert_eq!(server.served(), 0);
}

#[tokio::test]
async fn a_tool_server_that_breaks_fails_the_question_after_a_second_try_and_is_not_taken_for_an_answer() {
    let (tools, url) = Tools::start(|_, _| json!("no envelope")).await;
    let server = ModelServer::turns([Reply::tool_call("web-search", &json!({})), Reply::text("42")]);
    let bench = bench(&server, &url, &question());
    let summary = bench.run().await.unwrap();
    assert_eq!((summary.failed_tasks, summary.average_score), (1, Some(0.0)));
    assert_eq!(tools.calls().len(), 2);
    let row = &bench.rows()[0];
    assert_eq!((&row["predicted_answer"], &row["score"]), (&json!(""), &Value::Null));
    assert!(
        row["error"].as_str().unwrap().starts_with("the tool `web:search` could not be called"),
        "{row:#}"
    );
    assert_eq!(bench.json("out/result.json")["results"][0]["error"], "environment_start_failed");
}

#[tokio::test]
async fn a_program_that_starts_no_tool_server_is_told_with_its_last_words() {
    let server = ModelServer::always(Reply::text("42"));
    let bench =
        bench(&server, "http://127.0.0.1:9", &question()).with(|config| config.sandbox_auto_start = true);
    let script = bench.path("program");
    std::fs::write(&script, "#!/bin/sh\necho \"got $*\" >&2\nexit 3\n").unwrap();
    std::process::Command::new("chmod").args(["755".as_ref(), script.as_os_str()]).status().unwrap();
    let error = rollout::benchmark::rollout(bench.eval().program(&script)).await.unwrap_err().to_string();
    assert!(error.contains("exit status: 3") && error.contains("got tools serve"), "{error}");
    let error = rollout::benchmark::rollout(bench.eval().program("/no/such/program")).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    let far = bench.with(|config| config.sandbox_server_url = "http://0.0.0.0:9".to_owned());
    let error = rollout::benchmark::rollout(far.eval().program(&script)).await.unwrap_err();
    assert!(error.hint().unwrap().contains("rollout tools serve"), "{error}");
}
