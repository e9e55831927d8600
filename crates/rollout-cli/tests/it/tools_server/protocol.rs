//! Every path of the protocol, and what it answers.

use serde_json::{Value, json};

use super::server::{Server, place, reported};
use crate::http;

/// The parts of an answer that do not change from run to run.
fn gist((status, answer): (u16, Value)) -> Value {
    json!([status, answer["code"], answer["message"]])
}

#[test]
fn a_server_reports_its_health_and_its_resources() {
    let server = Server::with(
        &json!({"resources": {"web": false, "doc": false, "rag": false, "sql": false, "vm": false}}),
    );
    let (status, health) = server.get("/health");
    assert_eq!((status, &health["status"]), (200, &json!("healthy")));
    assert!(health["timestamp"].as_str().unwrap().starts_with("20"));
    assert_eq!(health["server"], "rollout");
    let (status, mut ready) = server.get("/ready");
    assert!(ready.as_object_mut().unwrap().remove("pid").is_some_and(|pid| pid.is_u64()));
    let expected = json!({"status": "ready", "tools_count": 2, "active_workers": 0, "total_sessions": 0});
    assert_eq!((status, ready), (200, expected));

    let (status, tools) = server.get("/api/v1/tools?include_hidden=true");
    assert_eq!((status, &tools["count"]), (200, &json!(2)));
    let names: Vec<&Value> = tools["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["code:python", "code:shell"]);
    let (status, schema) = server.get("/api/v1/tools/code-python/schema");
    assert_eq!((status, &schema), (200, &tools["tools"][0]));
    assert_eq!(schema["resource_type"], "code");
    assert_eq!(schema["input_schema"]["required"], json!(["code"]));
    assert_eq!(schema["parameters"][0]["name"], "code");
    let missing =
        json!({"status": "error", "message": "unknown tool `code:pyton`; did you mean code:python?"});
    assert_eq!(server.get("/api/v1/tools/code:pyton/schema"), (404, missing));

    let (status, warmed) = server.post("/api/v1/warmup", &json!({"backends": ["code", "coffee"]}));
    assert_eq!((status, &warmed["status"]), (200, &json!("partial_error")));
    assert_eq!(warmed["results"], json!({"code": true, "coffee": false}));
    assert_eq!(warmed["code"], 5010);
    assert!(warmed["message"].as_str().unwrap().starts_with("coffee: unknown resource type"), "{warmed}");
    assert_eq!(warmed["summary"], json!({"total": 2, "success": 1, "failed": 1}));
    assert_eq!(server.get("/api/v1/warmup/status").1["backends"], json!({"code": {"status": "warm"}}));
    assert_eq!(server.post("/api/v1/warmup", &json!({})).1["status"], "success");
    server.stop();
}

#[test]
fn a_client_can_ask_beforehand_whether_its_calls_would_work() {
    let job = place(&json!({"resources": {"vm": false, "code": false, "doc": {"roots": ["papers"]}}}));
    let server = Server::in_place(job.file("papers/a.txt", "a"), &[]);
    let check = |body: Value| {
        let (status, answer) = server.post("/api/v1/check", &body);
        (status, answer["code"].as_i64().unwrap(), answer["data"]["warnings"].clone())
    };
    assert_eq!(check(json!({"resource_type": "doc", "paths": ["a.txt"]})), (200, 0, json!([])));
    assert_eq!(check(json!({"resource_type": "doc", "paths": ["/etc/passwd"]})).1, 4001);
    assert_eq!(check(json!({"resource_type": "doc", "session_config": {"seed_path": "b.txt"}})).1, 4006);
    let misspelt = check(json!({"resource_type": "doc", "session_config": {"seedpath": "a.txt"}}));
    assert_eq!(misspelt, (200, 0, json!(["sessions have no setting `seedpath`; did you mean `seed_path`?"])));
    assert_eq!(check(json!({"resource_type": "web", "tools": ["browse"]})), (200, 0, json!([])));
    assert_eq!(check(json!({"resource_type": "web", "tools": ["search"]})).1, 5012);
    assert_eq!(server.get("/api/v1/warmup/status").1["backends"]["web"]["status"], "failed");
    assert_eq!(server.get("/ready").1["total_sessions"], 0);
    server.stop();
}

#[test]
fn a_list_is_no_request() {
    let server = Server::start();
    let list = json!(["w", "code:python", {"code": "print(1)"}]);
    let (status, answer) = server.post("/api/v1/execute", &list);
    assert_eq!((status, &answer["code"]), (400, &json!(4002)), "{answer}");
    server.stop();
}

#[test]
fn a_session_is_opened_used_listed_refreshed_and_closed() {
    let server = Server::start();
    let worker = json!({"worker_id": "w 1/é"});
    let session = json!({"worker_id": "w 1/é", "resource_type": "code", "custom_name": "mine"});
    let (status, created) = server.post("/api/v1/session/create", &session);
    assert_eq!((status, &created["code"], &created["message"]), (200, &json!(0), &json!("success")));
    let data = &created["data"];
    assert_eq!(data["session_name"], "code_w-1--_001_mine");
    let id = data["session_id"].as_str().unwrap();
    let (name, hex) = id.rsplit_once('_').unwrap();
    assert_eq!((name, hex.len()), (data["session_name"].as_str().unwrap(), 8));
    assert_eq!((&data["resource_type"], &data["session_status"]), (&json!("code"), &json!("active")));

    let again = server.post("/api/v1/session/create", &session).1;
    let exists = json!({
        "status": "exists", "session_id": id, "session_name": data["session_name"], "resource_type": "code",
    });
    assert_eq!(again["data"], exists);

    let listed = server.post("/api/v1/session/list", &worker).1;
    assert_eq!((&listed["data"]["count"], &listed["data"]["worker_id"]), (&json!(1), &worker["worker_id"]));
    let one = &listed["data"]["sessions"][0];
    assert_eq!(
        (&one["session_id"], &one["status"], &one["auto_created"]),
        (&json!(id), &json!("active"), &json!(false))
    );
    for time in ["created_at", "last_activity", "expires_at"] {
        assert!(one[time].as_str().is_some_and(|time| time.ends_with('Z')), "{one}");
    }

    let refreshed = server.post("/api/v1/session/refresh", &session).1;
    assert_eq!(
        (&refreshed["data"]["session_id"], &refreshed["data"]["resource_type"]),
        (&json!(id), &json!("code"))
    );
    assert!(refreshed["data"]["expires_at"].as_str() >= one["expires_at"].as_str());
    assert_eq!(server.post("/api/v1/session/refresh", &worker).1["data"]["refreshed_count"], 1);
    let beat = server.post("/api/v1/lifecycle/heartbeat", &worker).1;
    assert_eq!(beat["data"]["active_sessions"], json!(["code"]));
    let status = server.post("/api/v1/lifecycle/status", &worker).1;
    assert_eq!(status["data"]["active_resources"], json!(["code"]));
    assert_eq!(status["data"]["sessions"]["code"]["session_id"], id);
    assert_eq!(status["data"]["tools_available"], server.get("/ready").1["tools_count"]);

    let body = json!({
        "worker_id": "w 1/é", "action": "code_python", "params": {"code": "print('你好')"}, "trace_id": "t-1",
    });
    let (status, called) = server.post("/api/v1/execute", &body);
    assert_eq!((status, &called["data"]["result"]), (200, &json!("你好\n")));
    let meta = &called["meta"];
    assert_eq!(
        (&meta["tool"], &meta["resource_type"], &meta["session_id"], &meta["trace_id"]),
        (&json!("code:python"), &json!("code"), &json!(id), &json!("t-1"))
    );
    assert!(meta["execution_time_ms"].as_f64().is_some_and(|time| time > 0.0));
    assert_eq!(meta.get("temporary_session"), None);

    let closed = server.post("/api/v1/session/destroy", &session).1;
    assert_eq!(
        (&closed["data"]["session_id"], &closed["data"]["resource_type"]),
        (&json!(id), &json!("code"))
    );
    let gone = json!([404, 4007, "the worker has no session of `code`"]);
    assert_eq!(gist(server.post("/api/v1/session/destroy", &session)), gone);
    assert_eq!(gist(server.post("/api/v1/session/refresh", &session)), gone);
    assert_eq!(server.post("/api/v1/session/list", &worker).1["data"]["count"], 0);
    server.stop();
}

#[test]
fn a_call_without_a_session_has_one_of_its_own() {
    let server = Server::start();
    let called = server.execute("w", "code:shell", &json!({"command": "pwd"}));
    assert_eq!(
        (&called["data"]["result"], &called["meta"]["temporary_session"]),
        (&json!("/workspace\n"), &json!(true))
    );
    server.until_sessions(0);
    let cleaned = server.post("/api/v1/worker/disconnect", &json!({"worker_id": "w"})).1;
    assert_eq!(cleaned["data"], json!({"worker_id": "w", "sessions_cleaned": 0}));
    server.open("w", "code");
    server.open("w", "sql");
    let cleaned = server.post("/api/v1/worker/disconnect", &json!({"worker_id": "w"})).1;
    assert_eq!(cleaned["data"]["sessions_cleaned"], 2);
    assert_eq!(server.sessions(), 0);
    server.stop();
}

#[test]
fn a_batch_continues_or_stops_after_an_error_and_counts_successes() {
    let server = Server::start();
    server.open("w", "code");
    let call = |command: &str| json!({"action": "code:shell", "params": {"command": command}});
    let unknown = json!({"action": "code:nothing", "params": {}});
    let batch = |body: Value| {
        let mut all = json!({"worker_id": "w"});
        all.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let (status, answer) = server.post("/api/v1/execute/batch", &all);
        let data = &answer["data"];
        (json!([status, answer["code"], data["total"], data["executed"], data["success_count"]]), answer)
    };
    let (gist, answer) = batch(json!({"actions": [call("echo one > f"), call("cat f")]}));
    assert_eq!(gist, json!([200, 0, 2, 2, 2]));
    assert_eq!(answer["data"]["results"][1]["data"]["result"], "one\n");
    let (gist, answer) = batch(json!({"actions": [call("true"), unknown, call("true")]}));
    assert_eq!(gist, json!([207, 5010, 3, 2, 1]));
    assert_eq!(answer["data"]["results"][1]["code"], 4002);
    let (gist, _) = batch(json!({"actions": [unknown, call("true")], "stop_on_error": false}));
    assert_eq!(gist, json!([207, 5010, 2, 2, 1]));
    let (gist, _) = batch(json!({"actions": [unknown, call("true")]}));
    assert_eq!(gist, json!([500, 5009, 2, 1, 0]));
    // Each waits for what the other writes, so both have to run.
    let (gist, _) = batch(json!({
        "parallel": true,
        "actions": [
            call("touch a; until [ -e b ]; do sleep 0.01; done"),
            call("touch b; until [ -e a ]; do sleep 0.01; done"),
        ],
    }));
    assert_eq!(gist, json!([200, 0, 2, 2, 2]));
    server.stop();
}

#[test]
fn resources_are_initialised_one_by_one_together_or_from_a_file() {
    let job = place(&json!({"server": {"config_dir": "configs"}}))
        .file("configs/good.yaml", "resources:\n  code: {content: {}}\n  sql: {}\n")
        .file("configs/bad.yaml", "code: [\n")
        .file("secret.yaml", "code: {}\n");
    let server = Server::in_place(job, &[]);
    let one = json!({"worker_id": "a", "resource_type": "code", "init_config": {"content": {}}});
    let (status, answer) = server.post("/api/v1/init/resource", &one);
    assert_eq!((status, &answer["data"]["session_status"]), (200, &json!("active")));

    let batch = |configs: Value| {
        let body = json!({"worker_id": "b", "resource_configs": configs});
        let (status, answer) = server.post("/api/v1/init/batch", &body);
        (json!([status, answer["code"], answer["data"]["total"], answer["data"]["success_count"]]), answer)
    };
    let (gist, answer) = batch(json!({"code": {"content": {}}, "sql": {}}));
    assert_eq!(gist, json!([200, 0, 2, 2]));
    assert_eq!(answer["data"]["results"]["code"]["status"], "success");
    assert!(answer["data"]["results"]["sql"]["session_id"].is_string());
    let (gist, answer) = batch(json!({"code": {}, "tea": {}}));
    assert_eq!(gist, json!([207, 5010, 2, 1]));
    assert_eq!(answer["data"]["results"]["tea"]["status"], "error");
    assert_eq!(batch(json!({"tea": {}})).0, json!([500, 5009, 1, 0]));
    for wrong in [json!(3), json!({"content": "x"})] {
        let (gist, answer) = batch(json!({"sql": wrong}));
        assert_eq!(
            (gist, &answer["data"]["results"]["sql"]["code"]),
            (json!([500, 5009, 1, 0]), &json!(4002))
        );
    }

    let from = |path: &str| {
        let body =
            json!({"worker_id": "c", "config_path": path, "override_params": {"code": {"image": "host"}}});
        server.post("/api/v1/init/from-config", &body)
    };
    let (status, answer) = from("good.yaml");
    assert_eq!((status, &answer["data"]["success_count"]), (200, &json!(2)), "{answer}");
    let (status, answer) = from("bad.yaml");
    assert_eq!((status, &answer["code"]), (400, &json!(4000)));
    for outside in ["../secret.yaml", "missing.yaml", "/etc/passwd", ".", "\0"] {
        let (status, answer) = from(outside);
        assert_eq!((status, &answer["code"]), (400, &json!(4001)), "{outside:?}: {answer}");
    }
    server.stop();
}

#[test]
fn no_file_is_read_for_clients_unless_the_operator_names_a_directory() {
    let server = Server::start();
    let body = json!({"worker_id": "w", "config_path": "tools.json"});
    let answer = server.post("/api/v1/init/from-config", &body);
    assert_eq!((answer.0, &answer.1["code"]), (400, &json!(4001)));
    server.stop();
}

#[test]
fn what_is_wrong_with_a_request_is_said_with_a_code() {
    let server = Server::start();
    let execute = |body: Value| gist(server.post("/api/v1/execute", &body));
    assert_eq!(
        execute(json!({"worker_id": "w", "action": "code:pyton"})),
        json!([400, 4002, "unknown tool `code:pyton`; did you mean code:python?"])
    );
    let (status, ambiguous) =
        server.post("/api/v1/execute", &json!({"worker_id": "w", "action": "search", "params": {}}));
    assert_eq!((status, &ambiguous["code"]), (400, &json!(4002)));
    assert!(ambiguous["data"]["candidates"].as_array().is_some_and(|all| all.contains(&json!("web:search"))));
    let form = "invalid request: ";
    let missing = execute(json!({"action": "code:shell"}));
    assert_eq!((&missing[0], &missing[1]), (&json!(400), &json!(4002)));
    assert!(
        missing[2].as_str().unwrap().starts_with(&format!("{form}missing field `worker_id`")),
        "{missing}"
    );
    assert_eq!(
        execute(json!({"worker_id": "w", "action": "code:shell"})),
        json!([400, 4003, "`command` is missing"])
    );
    let wrong = json!({"worker_id": "w", "action": "code:shell", "params": {"command": 1}});
    assert_eq!(execute(wrong), json!([400, 4004, "`command` must be a string"]));
    let slow =
        json!({"worker_id": "w", "action": "code:shell", "params": {"command": "sleep 100"}, "timeout": 0.3});
    assert_eq!(execute(slow), json!([500, 5006, "the call did not end within 0.3 seconds"]));

    let create = |body: Value| gist(server.post("/api/v1/session/create", &body));
    let tea = create(json!({"worker_id": "w", "resource_type": "tea"}));
    assert_eq!((&tea[0], &tea[1]), (&json!(400), &json!(4002)));
    let refused = json!({"worker_id": "w", "resource_type": "code", "session_config": {"seed_path": "/etc"}});
    let (status, refused) = server.post("/api/v1/session/create", &refused);
    assert_eq!((status, &refused["code"]), (500, &json!(4007)), "{refused}");
    assert!(refused["data"]["error"].as_str().unwrap().contains("is not below"), "{refused}");
    assert_eq!(create(json!({"worker_id": "w"}))[1], 4002);
    assert_eq!(gist(server.post("/api/v1/session/destroy", &json!({"worker_id": "w"})))[1], 4002);

    let nothing = json!([404, 4002, "unknown path"]);
    assert_eq!(gist(server.get("/api/v2/execute")), nothing);
    assert_eq!(gist(server.post("/", &json!({}))), nothing);
    assert_eq!(
        gist(server.get("/api/v1/execute")),
        json!([405, 4002, "this path does not support the method"])
    );
    server.until_sessions(0);
    server.stop();
}

#[test]
fn a_client_can_end_the_server_and_with_it_all_sessions() {
    let server = Server::start();
    server.open("a", "code");
    server.shell("a", "sleep 1000 & echo started");
    server.open("b", "code");
    let (status, answer) = server.post("/api/v1/server/shutdown", &json!({"force": false}));
    assert_eq!((status, &answer["status"], &answer["sessions_cleaned"]), (200, &json!("success"), &json!(2)));
    server.finish().expect(0);
}

#[test]
fn beyond_loopback_only_a_token_lets_clients_in() {
    let token = "0123456789abcdef0123456789abcdef";
    let job = place(&json!({})).file("token", token);
    let server = Server::in_place(job, &["--host", "0.0.0.0", "--token-file", "token"]);
    assert_eq!(server.get("/health").0, 200);
    let (status, refused) = server.get("/ready");
    assert_eq!((status, &refused["code"]), (401, &json!(4001)));
    let execute = json!({"worker_id": "w", "action": "code:shell", "params": {"command": "echo in"}});
    let with = |value: &str| {
        reported(http::post_with(server.address, "/api/v1/execute", &[("Authorization", value)], &execute))
    };
    assert_eq!(with("Bearer wrong-wrong-wrong-wrong").0, 401);
    assert_eq!(with(&format!("Bearer {token}")).1["data"]["result"], "in\n");
    assert_eq!(server.post("/api/v1/server/shutdown", &json!({})).0, 401);
    server.stop();
}
