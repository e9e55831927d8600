//! What the model calls of an agent say about its end: failed calls, no calls, and limits that are used up.

use rollout_testkit::{Finished, ModelReply, ModelServer, TestJob, TestTask, TokenCounts};
use serde_json::{Value, json};

/// An agent whose function `ask` asks the model, and prints the status of the answer.
const ASKING: &str = r#"
name: asking
untested: true
dialects: [chat]
execute: |
  ask() {
    exec 3<> "/dev/tcp/127.0.0.1/${ROLLOUT_MODEL_URL##*:}"
    body='{"model": "'$ROLLOUT_MODEL'", "messages": [{"role": "user", "content": "'$1'"}]'$2'}'
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\n' "$ROLLOUT_MODEL_TOKEN" >&3
    printf 'Content-Type: application/json\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' "${#body}" "$body" >&3
    read -r _ status _ <&3
    echo "$status"
    cat <&3 > /dev/null
    exec 3>&-
  }
  tools=', "tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]'
"#;

/// A server whose calls have a cost. It fails for what contains `fail`, rejects what contains `reject`, and what contains
/// `long` is too long for it.
fn server() -> ModelServer {
    let counts = TokenCounts { prompt: 100, completion: 10, ..TokenCounts::default() };
    ModelServer::scripted(move |request| match request.last_text().as_str() {
        text if text.contains("fail") => ModelReply::error(500, "out of order"),
        text if text.contains("reject") => ModelReply::error(400, "no such role"),
        text if text.contains("long") => ModelReply::overlong(),
        "" => ModelReply::error(400, "no messages"),
        _ => ModelReply::text("hello").usage(counts),
    })
}

/// A job of the agent with these commands, its settings, and those of the gateway.
fn job(server: &ModelServer, commands: &str, limits: Value, mut gateway: Value) -> TestJob {
    let commands: String = commands.lines().map(|line| format!("  {}\n", line.trim())).collect();
    let model = json!({"name": "m", "base_url": server.url(), "prices": {"input": 1, "output": 10}});
    gateway["max_retries"] = json!(0);
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("asking.yaml", &format!("{ASKING}{commands}"))
        .task(TestTask::new("task"))
        .agent(json!({"preset": "./asking.yaml", "model": model, "limits": limits}))
        .set("retry", json!({"max_attempts": 1}))
        .set("gateway", gateway)
}

fn run(commands: &str) -> Finished {
    job(&server(), commands, json!({}), json!({})).run()
}

const TRIAL: &str = "asking/set/task__1";

#[test]
fn a_failed_call_beside_the_conversation_is_no_failure_of_an_agent_that_succeeded() {
    let ran = run("ask work \"$tools\"
                   touch /app/done
                   ask fail-a-title")
    .expect(0);
    let result = ran.trial(TRIAL);
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    assert_eq!(result["model_calls"]["errors"], json!({"upstream_failed": 1}));
}

#[test]
fn a_failed_call_beside_the_conversation_explains_why_an_agent_failed() {
    let ran = run("ask work \"$tools\"
                   ask fail-a-title
                   exit 1")
    .expect(1);
    let error = &ran.trial(TRIAL)["error"];
    assert_eq!(error["type"], "model_failed", "{error:#}");
}

#[test]
fn an_agent_that_exits_with_0_after_the_last_call_of_its_conversation_failed_has_no_model() {
    let ran = run("ask work \"$tools\"
                   touch /app/done
                   ask fail-work \"$tools\"
                   ask a-title")
    .expect(1);
    let error = &ran.trial(TRIAL)["error"];
    assert_eq!(error["type"], "model_failed", "{error:#}");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("the agent's last call of its model failed: "), "{message}");
    assert!(message.contains("out of order"), "{message}");
}

/// Sends a request without anything in it.
const EMPTY: &str = "exec 3<> \"/dev/tcp/127.0.0.1/${ROLLOUT_MODEL_URL##*:}\"
    printf 'POST /v1/chat/completions HTTP/1.1\\r\\nHost: gateway\\r\\nAuthorization: Bearer %s\\r\\n' \"$ROLLOUT_MODEL_TOKEN\" >&3
    printf 'Content-Type: application/json\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{}' >&3
    cat <&3 > /dev/null";

#[test]
fn an_agent_whose_requests_are_rejected_at_the_end_is_graded() {
    for (last, kind, note) in [
        ("ask long-work \"$tools\"", "context_length", "the conversation is longer than the context"),
        ("ask reject-work \"$tools\"", "refused", "the last call of the conversation was rejected"),
        // Without tools, every call may be one of the conversation.
        ("ask reject-work", "refused", ""),
        (EMPTY, "refused", ""),
    ] {
        for (work, exit) in [("touch /app/done", 0), ("touch /app/done", 1), ("", 0)] {
            let commands = format!("ask work \"$tools\"\n{work}\n{last}\nexit {exit}");
            let ran = run(&commands);
            let result = ran.trial(TRIAL);
            let shown = format!("{commands}\n{result:#}");
            assert_eq!(result["model_calls"]["errors"], json!({kind: 1}), "{shown}");
            let excluded = &ran.result()["headline"]["excluded"]["failed_by_infrastructure"];
            assert!(excluded.is_null() || *excluded == 0, "{shown}");
            if note.is_empty() && exit == 1 {
                assert_eq!(result["error"]["type"], "agent_execution_failed", "{shown}");
                continue;
            }
            assert_eq!(result["error"], Value::Null, "{shown}");
            assert_eq!(result["reward"], if work.is_empty() { 0.0 } else { 1.0 }, "{shown}");
            assert!(result["notes"].to_string().contains(note), "{shown}");
        }
    }
}

#[test]
fn an_agent_whose_every_request_is_rejected_has_no_model() {
    for commands in ["ask reject-work \"$tools\"", "ask a-title\nask reject-work \"$tools\"", "ask long-work"]
    {
        let ran = run(commands).expect(1);
        let error = &ran.trial(TRIAL)["error"];
        assert_eq!(error["type"], "model_failed", "{commands}: {error:#}");
    }
}

#[test]
fn agents_with_models_of_the_same_name_have_their_own_prices() {
    let servers = [server(), server()];
    let agent = |name: &str, server: &ModelServer, prices: Value| {
        let mut model = json!({"name": "m", "base_url": server.url()});
        if !prices.is_null() {
            model["prices"] = prices;
        }
        json!({"name": name, "preset": "./asking.yaml", "model": model})
    };
    let job = job(&servers[0], "ask work\ntouch /app/done", json!({}), json!({}));
    let cheap = json!({"input": 1, "output": 10});
    let dear = json!({"input": 10, "output": 100});
    let agents = json!([
        agent("cheap", &servers[0], cheap),
        agent("dear", &servers[0], dear),
        agent("unknown", &servers[1], Value::Null),
    ]);
    let ran = job.set("agents", agents).run().expect(0);
    let cost = |name: &str| ran.trial(&format!("{name}/set/task__1"))["usage"]["cost_usd"].clone();
    assert_eq!((cost("cheap"), cost("dear"), cost("unknown")), (json!(0.0002), json!(0.002), Value::Null));
}

#[test]
fn a_prompt_that_is_rejected_for_its_content_does_not_stop_the_job() {
    let flagged =
        json!({"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"]}}});
    let flagged = flagged.to_string();
    let server = ModelServer::always(ModelReply::raw(403, flagged));
    let ran = job(&server, "ask work", json!({}), json!({})).run().expect(1);
    let result = ran.trial(TRIAL);
    assert_eq!(result["error"]["type"], "model_failed", "{result:#}");
    assert_eq!(result["model_calls"]["errors"], json!({"refused": 1}), "{result:#}");
}

#[test]
fn an_agent_that_never_calls_its_model_fails() {
    let error = run("touch /app/done").expect(1).trial(TRIAL)["error"].clone();
    assert_eq!(error["type"], "agent_execution_failed", "{error:#}");
    assert!(error["message"].as_str().unwrap().starts_with("the agent never called its model"), "{error:#}");
}

#[test]
fn every_limit_of_calls_tokens_and_dollars_refuses_further_calls_and_what_was_done_is_graded() {
    // Each call reads 100 tokens and writes 10, for $0.0002.
    for (limits, gateway) in [
        (json!({"max_turns": 1}), json!({})),
        (json!({"max_total_tokens": 110}), json!({})),
        (json!({"max_cost": 0.0002}), json!({})),
        (json!({}), json!({"max_calls": 1})),
        (json!({}), json!({"max_total_tokens": 110})),
        (json!({}), json!({"max_cost": 0.0002})),
    ] {
        let shown = format!("{limits} {gateway}");
        let commands = "ask one
                        touch /app/done
                        ask two
                        exit 1";
        let ran = job(&server(), commands, limits, gateway).run().expect(0);
        let result = ran.trial(TRIAL);
        assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{shown} {result:#}");
        assert_eq!(ran.file(&format!("{TRIAL}/command/stdout.txt")), "200\n401\n", "{shown}");
        assert_eq!(result["model_calls"]["errors"], json!({"budget_exhausted": 1}), "{shown}");
        assert!(result["notes"].to_string().contains("the agent reached its limit"), "{shown} {result:#}");
    }
}

#[test]
fn an_agent_that_goes_on_after_its_limit_is_killed_with_what_it_started() {
    let commands = "setsid bash -c 'while sleep 0.1; do date +%s%N > /logs/agent/alive; done' &
                    until [ -s /logs/agent/alive ]; do sleep 0.1; done
                    ask one
                    touch /app/done
                    while true; do ask more; sleep 0.5; done";
    let task = TestTask::new("task").tests(
        "before=$(cat /logs/agent/alive); sleep 2\n\
         [ \"$before\" = \"$(cat /logs/agent/alive)\" ] && [ -n \"$before\" ] && [ -e /app/done ] && reward=1\n\
         echo \"${reward:-0}\" > /logs/verifier/reward.txt\n",
    );
    let ran = job(&server(), commands, json!({"max_turns": 1}), json!({})).task(task).run().expect(0);
    let result = ran.trial(TRIAL);
    assert_eq!((&result["reward"], &result["error"]), (&json!(1.0), &Value::Null), "{result:#}");
    assert!(result.get("survivors").is_none(), "{result:#}");
    // It had the time to end by itself, and did not use it: its own timeout would be an error.
    let took = result["durations"]["agent_execution_sec"].as_f64().unwrap();
    assert!(took >= 10.0, "it had {took} seconds");
}

#[test]
fn an_agent_gets_the_models_of_the_list_by_their_names_and_no_others() {
    let server = server();
    let commands = "ask work \"$tools\"
                    touch /app/done
                    ROLLOUT_MODEL=small-1 ask a-title
                    ROLLOUT_MODEL=alias ask a-summary
                    ROLLOUT_MODEL=big ask a-poem";
    let models = json!({"small-*": "cheap", "alias": null});
    let ran = job(&server, commands, json!({}), json!({"models": models})).run().expect(0);
    assert_eq!(ran.file(&format!("{TRIAL}/command/stdout.txt")), "200\n200\n200\n404\n");
    let requests = server.requests();
    let asked: Vec<&str> = requests.iter().map(|request| request.model()).collect();
    assert_eq!(asked, ["m", "cheap", "m"]);
    let calls = &ran.trial(TRIAL)["model_calls"];
    assert_eq!(calls["models"], json!(["cheap", "m"]));
    assert_eq!(calls["errors"], json!({"model_not_allowed": 1}), "{calls:#}");
}

#[test]
fn every_name_that_an_agent_asks_for_is_its_own_model_without_a_list() {
    let server = server();
    let commands = "ROLLOUT_MODEL=big ask work
                    touch /app/done";
    job(&server, commands, json!({}), json!({})).run().expect(0);
    assert_eq!(server.requests()[0].model(), "m");
}
