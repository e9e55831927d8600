//! Requests to the tool server, and its answers to models.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Json, Router, http::HeaderMap, routing::get};
use rollout::{
    benchmark::{EvalError, SetupError, ToolServerError, load_tasks, rollout},
    event::Event,
    job::Cancel,
    record::rows,
};
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::{Value, json};

use super::support::{Bench, Tools};

fn question() -> Vec<Value> {
    vec![json!({"id": "q", "question": "Well?", "answer": "42"})]
}

fn bench(server: &ModelServer, url: &str, questions: &[Value]) -> Bench {
    Bench::new(server, questions).with(|config| {
        config.available_tools = vec!["web:search".to_owned(), "doc:*".to_owned()];
        config.sandbox_server_url = url.to_owned();
    })
}

/// The messages of tools in the model's last request, in order.
fn tool_messages(server: &ModelServer) -> Vec<String> {
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
    let both = ModelReply::tool_call("web-search", &json!({"query": "巴黎"}))
        .call("doc-read", &json!({"query": "b"}));
    let server = ModelServer::turns([both, ModelReply::text("42")]);
    let bench = bench(&server, &url, &question());
    assert_eq!(bench.run().await.unwrap().average_score, Some(1.0));
    assert!(server.refusals().is_empty(), "every call was answered: {:?}", server.refusals());
    assert_eq!(tool_messages(&server), ["web:search: \"巴黎\"", "doc:read: \"b\""]);
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
    let call =
        ModelReply::tool_call("doc-read", &json!({"query": "a", "seed_path": "/etc", "folder": "answers"}));
    let server = ModelServer::turns([call, ModelReply::text("42")]);
    let asked =
        json!({"id": "q", "question": "Well?", "answer": "42", "kwargs": {"seed_path": "/data/a.pdf"}});
    let bench = bench(&server, &url, &[asked]);
    bench.run().await.unwrap();
    assert_eq!(tools.calls(), [json!(["doc:read", {"query": "a", "seed_path": "/data/a.pdf"}])]);
    let recorded = &bench.rows()[0]["trajectory"]["tool_calls"][0]["parameters"];
    assert_eq!(
        *recorded,
        json!({"query": "a", "seed_path": "/etc", "folder": "answers"}),
        "a tool is given only what it offers, and the record has what the model said"
    );
    assert_eq!(
        load_tasks(bench.config.data_path.as_ref().unwrap()).unwrap()[0].kwargs["seed_path"],
        "/data/a.pdf"
    );
}

#[tokio::test]
async fn failures_of_tools_are_reported_to_the_model_which_continues() {
    let (tools, url) = Tools::start(|tool, _| match tool {
        "doc:read" => json!({"code": 5006, "message": "it took longer than 1 s", "data": null}),
        _ => json!({"code": 0, "message": "success", "data": "x".repeat(5000)}),
    })
    .await;
    let calls = ModelReply::tool_call("doc-read", &json!({"query": 1}))
        .call("web_search", &json!("not { json"))
        .call("no-such-tool", &json!({}));
    let server = ModelServer::turns([calls, ModelReply::text("42")]);
    let bench = bench(&server, &url, &question());
    assert_eq!(bench.run().await.unwrap().successful_tasks, 1);
    let messages = tool_messages(&server);
    assert_eq!(messages[0], "it took longer than 1 s");
    assert_eq!(messages[1], format!("{}\n... (truncated, total 5000 chars)", "x".repeat(4000)));
    assert_eq!(messages[2], "unknown tool 'no-such-tool'; known tools: web-search, doc-read");
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
        true => ModelReply::error(400, "no"),
        false => ModelReply::text("42"),
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
async fn a_rejected_session_fails_its_question() {
    let (tools, url) =
        Tools::start(|_, _| json!({"code": 4007, "message": "there is nothing at /data", "data": null}))
            .await;
    let server = ModelServer::always(ModelReply::text("42"));
    let bench =
        bench(&server, &url, &question()).with(|config| config.resource_types = vec!["doc".to_owned()]);
    assert_eq!(bench.run().await.unwrap().failed_tasks, 1);
    let error = bench.rows()[0]["error"].clone();
    assert_eq!(error, "cannot open a session for `doc`: there is nothing at /data");
    assert_eq!(tools.paths().last().unwrap(), "worker/disconnect");
    assert_eq!(server.served(), 0);
}

#[tokio::test]
async fn a_tool_server_that_rejects_every_session_stops_the_run_after_five_questions() {
    let (tools, url) =
        Tools::start(|_, _| json!({"code": 4007, "message": "there is nothing at /data", "data": null}))
            .await;
    let server = ModelServer::always(ModelReply::text("42"));
    let questions: Vec<_> =
        (0..20).map(|n| json!({"id": format!("q{n}"), "question": "Well?", "answer": "42"})).collect();
    let bench =
        bench(&server, &url, &questions).with(|config| config.resource_types = vec!["doc".to_owned()]);
    let error = bench.run().await.unwrap_err();
    assert!(matches!(&error, EvalError::Stopped { failures: 5, .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("cannot open a session for `doc`: there is nothing at /data"), "{said}");
    assert!(error.hint().unwrap().contains("--rerun error"), "{error:?}");
    assert_eq!(tools.paths().iter().filter(|path| *path == "session/create").count(), 5);
    assert_eq!((bench.rows().len(), server.served()), (5, 0));
    assert!(!bench.path("out/evaluation.json").exists(), "averages would be those of some questions");
}

#[tokio::test]
async fn without_tools_the_tool_server_gets_no_requests() {
    let server = ModelServer::always(ModelReply::text("42"));
    let bench = Bench::new(&server, &question())
        .with(|config| config.sandbox_server_url = "http://127.0.0.1:9".to_owned());
    assert_eq!(bench.run().await.unwrap().average_score, Some(1.0));
    assert!(server.requests()[0].body.get("tools").is_none());
}

#[tokio::test]
async fn an_unknown_tool_is_reported_before_the_first_question() {
    let (_, url) = Tools::willing().await;
    let server = ModelServer::always(ModelReply::text("42"));
    let bench =
        bench(&server, &url, &question()).with(|config| config.available_tools.push("web:brwse".to_owned()));
    let error = bench.run().await.unwrap_err();
    assert!(error.to_string().contains("did you mean `web:browse`?"), "{error}");
    assert_eq!(server.served(), 0);
    assert!(!bench.path("out").exists());
}

#[tokio::test]
async fn an_unreachable_tool_server_is_reported_with_the_command_that_starts_it() {
    let server = ModelServer::always(ModelReply::text("42"));
    let error = bench(&server, "http://127.0.0.1:9", &question()).run().await.unwrap_err();
    assert!(
        matches!(&error, EvalError::Setup(SetupError::Tools(ToolServerError::Unreachable { .. }))),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("rollout tools serve"));
}

#[tokio::test]
async fn a_server_that_is_not_a_tool_server_is_reported() {
    let server = ModelServer::always(ModelReply::text("42"));
    let error = bench(&server, &server.root(), &question()).run().await.unwrap_err();
    assert!(
        matches!(&error, EvalError::Setup(SetupError::Tools(ToolServerError::Unreadable { .. }))),
        "{error}"
    );
    assert_eq!(server.served(), 0);
}

#[tokio::test]
async fn a_broken_tool_server_fails_the_question_after_a_retry_and_is_not_an_answer() {
    let (tools, url) = Tools::start(|_, _| json!("no envelope")).await;
    let server =
        ModelServer::turns([ModelReply::tool_call("web-search", &json!({})), ModelReply::text("42")]);
    let bench = bench(&server, &url, &question());
    let summary = bench.run().await.unwrap();
    assert_eq!((summary.failed_tasks, summary.average_score), (1, Some(0.0)));
    assert_eq!(tools.calls().len(), 2);
    let row = &bench.rows()[0];
    assert_eq!((&row["predicted_answer"], &row["score"]), (&json!(""), &Value::Null));
    assert!(row["error"].as_str().unwrap().starts_with("cannot call the tool `web:search`"), "{row:#}");
    assert_eq!(bench.json("out/result.json")["results"][0]["error"], "environment_start_failed");
}

#[tokio::test]
async fn a_program_that_starts_no_tool_server_is_reported_with_its_last_output() {
    let server = ModelServer::always(ModelReply::text("42"));
    let bench =
        bench(&server, "http://127.0.0.1:9", &question()).with(|config| config.sandbox_auto_start = true);
    let script = bench.path("program");
    std::fs::write(&script, "#!/bin/sh\necho \"got $*\" >&2\nexit 3\n").unwrap();
    std::process::Command::new("chmod").args(["755".as_ref(), script.as_os_str()]).status().unwrap();
    let error = rollout(bench.eval().program(&script)).await.unwrap_err().to_string();
    assert!(error.contains("exit status: 3") && error.contains("got tools serve"), "{error}");
    let error = rollout(bench.eval().program("/no/such/program")).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    let far = bench.with(|config| config.sandbox_server_url = "http://0.0.0.0:9".to_owned());
    let error = rollout(far.eval().program(&script)).await.unwrap_err();
    assert!(error.hint().unwrap().contains("rollout tools serve"), "{error}");
}

/// A server that reports the process in a file as its own, and keeps the keys of its clients.
async fn impostor(pid: PathBuf) -> (Arc<Mutex<Vec<String>>>, String) {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    let ready = async move |headers: HeaderMap| {
        let key = headers.get("authorization").map(|key| key.to_str().unwrap().to_owned());
        seen.lock().unwrap().extend(key);
        let pid = std::fs::read_to_string(&pid).unwrap();
        Json(json!({"status": "ready", "pid": pid.trim().parse::<u32>().unwrap()}))
    };
    let router = Router::new().route("/ready", get(ready));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, router).await });
    (keys, url)
}

#[tokio::test]
async fn a_server_that_is_not_the_started_process_is_rejected_and_the_token_is_secret() {
    let server = ModelServer::always(ModelReply::text("42"));
    let bench =
        bench(&server, "http://127.0.0.1:9", &question()).with(|config| config.sandbox_auto_start = true);
    let (keys, url) = impostor(bench.path("pid")).await;
    let script = bench.path("program");
    let run = async |pid: &str| {
        let dir = bench.path("").display().to_string();
        let program = format!(
            "#!/bin/sh\ncd {dir}\nread -r settings\necho \"$settings\" > settings\n\
             tr '\\0' '\\n' < /proc/$$/cmdline > arguments\nenv > variables\necho {pid} > pid\n\
             echo \"tools at {url}\"\nexec cat\n"
        );
        std::fs::write(&script, program).unwrap();
        std::process::Command::new("chmod").args(["755".as_ref(), script.as_os_str()]).status().unwrap();
        rollout(bench.eval().program(&script)).await.unwrap_err().to_string()
    };
    let error = run("1").await;
    assert_eq!(error, format!("the server at {url} is not the tool server that was started for this run"));

    let text = |name: &str| std::fs::read_to_string(bench.path(name)).unwrap();
    let settings: Value = serde_json::from_str(&text("settings")).unwrap();
    let token = settings["token"].as_str().unwrap();
    assert!(token.len() == 64 && token.chars().all(|char| char.is_ascii_hexdigit()), "{token}");
    assert_eq!(*keys.lock().unwrap(), [format!("Bearer {token}")]);
    assert!(text("arguments").contains("--settings-from-stdin"), "{}", text("arguments"));
    assert!(!text("arguments").contains(token), "other users see arguments");
    assert!(!text("variables").contains(token), "its own child processes see variables");

    // With its own identity, it is asked for its tools, of which it has none.
    let error = run("$$").await;
    assert!(!error.contains("is not the tool server that was started"), "{error}");
    let again: Value = serde_json::from_str(&text("settings")).unwrap();
    assert_ne!(again["token"], settings["token"], "each run has a token of its own");
    assert_eq!(server.served(), 0);
}

#[tokio::test]
async fn pictures_are_shown_to_the_model_after_the_answers_of_all_tools() {
    let (_, url) = Tools::start(|tool, _| match tool {
        "web:search" => {
            json!({"code": 0, "data": {"image": "iVBORw0=", "format": "png", "result": "1280x720"}})
        }
        _ => json!({"code": 0, "data": "words"}),
    })
    .await;
    let calls = ModelReply::tool_call("web-search", &json!({})).call("doc-read", &json!({}));
    let server = ModelServer::turns([calls, ModelReply::text("42")]);
    let bench = bench(&server, &url, &question());
    assert_eq!(bench.run().await.unwrap().average_score, Some(1.0));
    assert!(server.refusals().is_empty(), "{:?}", server.refusals());
    assert_eq!(tool_messages(&server), ["1280x720", "words"]);
    let shown = server.requests()[1].messages().last().unwrap().clone();
    assert_eq!(shown["role"], "user");
    assert_eq!(shown["content"][1]["image_url"]["url"], "data:image/png;base64,iVBORw0=");
    let recorded = &bench.rows()[0]["trajectory"]["tool_calls"][0]["result"];
    assert_eq!(recorded["image"], "shown in the next message");
}

#[tokio::test]
async fn unknown_kinds_of_tools_are_reported_before_the_first_question() {
    let (_, url) = Tools::willing().await;
    let server = ModelServer::always(ModelReply::text("42"));
    let bench = bench(&server, &url, &question())
        .with(|config| config.resource_types = vec!["doc".to_owned(), "coffee".to_owned()]);
    let error = bench.run().await.unwrap_err();
    assert!(
        matches!(&error, EvalError::Setup(SetupError::Tools(ToolServerError::NoSuchKind { kind, .. })) if kind == "coffee"),
        "{error}"
    );
    let said = error.to_string();
    assert!(said.contains("has doc, web; its message: no resource is called 'coffee'"), "{said}");
    assert_eq!(server.served(), 0);
    assert!(!bench.path("out").exists());
}

#[tokio::test]
async fn tools_that_are_not_ready_are_reported() {
    let (_, url) = Tools::start(|tool, params| match tool {
        "warmup" if params == "doc" => json!({"not ready": "pdf reader is missing"}),
        _ => json!({"code": 0}),
    })
    .await;
    let server = ModelServer::always(ModelReply::text("42"));
    let bench = bench(&server, &url, &question())
        .with(|config| config.resource_types = vec!["web".to_owned(), "doc".to_owned()]);
    let (sender, receiver) = std::sync::mpsc::channel();
    rollout(bench.eval().on_event(move |event| _ = sender.send(event))).await.unwrap();
    let warnings: Vec<_> = receiver
        .iter()
        .filter_map(|event| match event {
            Event::Warning { message } => Some(message),
            _ => None,
        })
        .collect();
    assert_eq!(warnings, ["the tool server failed to prepare `doc`: pdf reader is missing"]);
}

#[tokio::test]
async fn sessions_are_closed_though_the_run_is_cancelled_while_they_are_opened() {
    let (tools, url) = Tools::start(|tool, params| match tool {
        "session" if params["hangs"] == true => json!("hang"),
        _ => json!({"code": 0}),
    })
    .await;
    let server = ModelServer::always(ModelReply::text("42"));
    let bench = bench(&server, &url, &question()).with(|config| {
        config.resource_types = vec!["web".to_owned(), "doc".to_owned()];
        let hangs = json!({"hangs": true});
        config.resource_init_configs.insert("doc".to_owned(), hangs.as_object().unwrap().clone());
    });
    let cancel = Cancel::default();
    let running = tokio::spawn(rollout(bench.eval().cancel(cancel.clone())));
    while tools.paths().iter().filter(|path| *path == "session/create").count() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cancel.graceful.cancel();
    assert!(matches!(running.await.unwrap(), Err(EvalError::Cancelled(_))));
    let (path, body) = tools.heard().pop().unwrap();
    assert_eq!(path, "worker/disconnect");
    assert!(body["worker_id"].as_str().is_some_and(|worker| !worker.is_empty()));
}

#[tokio::test]
async fn a_row_is_read_again_however_deep_the_arguments_and_the_results_are() {
    let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let (_, url) = Tools::start(move |_, _| json!({"code": 0, "message": "ok", "data": nested(120)})).await;
    let server = ModelServer::turns([
        ModelReply::tool_call("doc-read", &json!({"query": nested(120)})),
        ModelReply::text("42"),
    ]);
    let bench = bench(&server, &url, &question());
    bench.run().await.unwrap();
    let mut read = 0;
    let foreign = rows::read(&bench.path("out/results.jsonl"), |_, _| read += 1).unwrap();
    assert_eq!((read, foreign), (1, 0));
}

#[tokio::test]
async fn of_a_flood_of_calls_only_so_many_are_done_and_all_are_answered() {
    let (tools, url) = Tools::willing().await;
    let flood = (0..200).fold(ModelReply::empty(), |reply, n| reply.call("doc-read", &json!({"query": n})));
    let server = ModelServer::turns([flood, ModelReply::text("42")]);
    bench(&server, &url, &question()).run().await.unwrap();
    assert!(server.refusals().is_empty(), "{:?}", server.refusals());
    assert_eq!((tools.calls().len(), tool_messages(&server).len()), (128, 200));
    assert_eq!(tool_messages(&server)[128], "not executed: a turn has at most 128 calls");
}

#[tokio::test]
async fn the_password_in_the_url_of_a_tool_server_is_not_shown() {
    const PASSWORD: &str = "hunter22hunter";
    let server = ModelServer::always(ModelReply::text("42"));
    for address in ["127.0.0.1:9", "127.0.0.1:9/", "LOCALHOST:9", "0.0.0.0:80"] {
        let url = format!("http://u:{PASSWORD}@{address}");
        for auto_start in [false, true] {
            let bench =
                bench(&server, &url, &question()).with(|config| config.sandbox_auto_start = auto_start);
            let error = rollout(bench.eval().program("/no/such/program")).await.unwrap_err();
            let said = format!("{error} {error:?}");
            assert!(!said.contains(PASSWORD), "{said}");
        }
    }
}
