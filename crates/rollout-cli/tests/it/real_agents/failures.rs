//! What becomes of a trial whose model fails, while a real agent asks it.

use std::sync::atomic::{AtomicUsize, Ordering};

use rollout_testkit::Cut;

use super::*;

/// codex on the first task, with retries of the gateway and of the trial as given.
fn codex(server: &ModelServer, retries: u32) -> TestJob {
    native("codex", &served_by(server, "responses"))
        .task(HELLO.task("test"))
        .set("retry", json!({"max_attempts": 1}))
        .set("gateway", json!({"max_retries": retries}))
}

/// A server that answers the first request like this, and all others as it should.
fn fails_once(failure: ModelReply) -> ModelServer {
    let served = AtomicUsize::new(0);
    let script = move |request: &ModelRequest| match served.fetch_add(1, Ordering::Relaxed) {
        0 => failure.clone(),
        _ => reply(request).usage(COUNTS),
    };
    ModelServer::scripted(script).key(KEY)
}

#[test]
fn a_server_that_is_busy_for_a_moment_is_asked_again() {
    let server = fails_once(ModelReply::error(429, "slow down").header("retry-after", "0"));
    let ran = codex(&server, 2).run().expect(0);
    let result = ran.trial("codex/set/hello__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(result["error"], Value::Null);
    assert_eq!(result["model_calls"]["turns"], 2, "the agent did not notice: {result:#}");
    assert_eq!(server.served(), 3);
}

#[test]
fn a_busy_server_that_the_gateway_does_not_ask_again_is_asked_again_by_the_agent() {
    let server = fails_once(ModelReply::error(429, "slow down").header("retry-after", "0"));
    let ran = native("claude-code", &served_by(&server, "messages"))
        .task(HELLO.task("test"))
        .set("gateway", json!({"max_retries": 0}))
        .run()
        .expect(0);
    let result = ran.trial("claude-code/set/hello__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(result["error"], Value::Null);
    assert_eq!(result["model_calls"]["errors"], json!({"rate_limited": 1}), "{result:#}");
    assert_eq!(result["model_calls"]["calls"], 3);
}

#[test]
fn a_server_that_always_fails_is_no_failure_of_the_agent() {
    let server = ModelServer::always(ModelReply::error(500, "out of order"));
    let ran = codex(&server, 0).run().expect(1);
    let result = ran.trial("codex/set/hello__1");
    assert_eq!(result["error"]["type"], "model_failed", "{result:#}");
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("every call of the model failed: "), "{message}");
    assert!(message.contains("out of order") && message.contains("agent/calls.jsonl"), "{message}");
    assert_eq!(result["reward"], Value::Null);
    assert!(result["model_calls"]["errors"]["upstream_failed"].as_u64().unwrap() >= 1);
    assert_eq!(ran.result()["headline"]["excluded"]["failed_by_infrastructure"], 1);
}

#[test]
fn a_stream_that_is_always_cut_fails_the_trial() {
    let server = ModelServer::scripted(|request| reply(request).usage(COUNTS).cut(Cut::Midway));
    let ran = codex(&server, 0).run().expect(1);
    let result = ran.trial("codex/set/hello__1");
    assert_eq!(result["error"]["type"], "model_failed", "{result:#}");
    assert!(result["model_calls"]["errors"]["cut"].as_u64().unwrap() >= 1, "{result:#}");
}

#[test]
fn a_stream_that_is_cut_once_is_asked_for_again_by_the_agent() {
    let served = AtomicUsize::new(0);
    let server = ModelServer::scripted(move |request| {
        let reply = reply(request).usage(COUNTS);
        if served.fetch_add(1, Ordering::Relaxed) == 0 { reply.cut(Cut::Midway) } else { reply }
    });
    let ran = codex(&server, 0).run().expect(0);
    let result = ran.trial("codex/set/hello__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(result["model_calls"]["errors"], json!({"cut": 1}), "{result:#}");
}

#[test]
#[ignore = "part of ./test --full"]
fn an_agent_that_exits_with_0_after_every_call_failed_has_no_model() {
    let server = ModelServer::always(ModelReply::error(400, "no such thing"));
    let job = native("aider", &served_by(&server, "chat")).task(HELLO.task("test"));
    let ran = job.run().expect(1);
    let result = ran.trial("aider/set/hello__1");
    assert_eq!(result["error"]["type"], "model_failed", "{result:#}");
    assert!(result["error"]["message"].as_str().unwrap().contains("no such thing"), "{result:#}");
}

#[test]
fn a_refused_key_stops_the_job() {
    let server = model();
    let job = codex(&server, 0).env("REAL_KEY", "sk-wrong-key-0123456789");
    let ran = job.run().expect(1);
    let stderr = ran.stderr();
    assert!(stderr.contains("the server rejected the API key of model codex"), "{stderr}");
    assert!(!stderr.contains("sk-wrong-key"), "{stderr}");
    assert!(!job.dir().join("codex/set/hello__1/result.json").exists(), "no trial has a result");
}

#[test]
fn an_agent_that_uses_up_its_limit_is_ended_and_graded() {
    let server = ModelServer::scripted(|request| {
        shell_call(request, HELLO.command).unwrap_or_else(|| ModelReply::text("done"))
    });
    let mut model = served_by(&server, "responses");
    model["api_key"] = Value::Null;
    let agent = json!({"preset": "codex", "model": model, "limits": {"max_turns": 3}});
    let job = native("codex", &model).task(HELLO.task("test")).set("agents", json!([agent]));
    let ran = job.run();
    let result = ran.trial("codex/set/hello__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(result["model_calls"]["turns"], 3);
    assert!(result["notes"].to_string().contains("the agent reached its limit"), "{result:#}");
}
