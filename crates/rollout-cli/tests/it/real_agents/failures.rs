//! What becomes of a trial whose model fails, while a real agent asks it.

use std::sync::atomic::{AtomicUsize, Ordering};

use rollout_testkit::Cut;

use super::*;

/// Tests of agents whose model server fails, some only in the full form. Each line has the environment, the name and the
/// dialect; in the full form, also the image.
macro_rules! agents {
    ($check:ident quick { $($quick:ident: $in_quick:ident, $agent:literal, $dialect:literal;)* }
                  full { $($full:ident: $in_full:ident, $other:literal, $other_dialect:literal, $base:expr;)* }) => {
        mod $check {
            use super::*;

            $(#[test]
            fn $quick() {
                super::$check($in_quick, $agent, $dialect, "test");
            })*

            $(#[test]
            #[ignore = "part of ./test --full"]
            fn $full() {
                super::$check($in_full, $other, $other_dialect, $base);
            })*
        }
    };
}

/// Makes a job of an agent with a model.
type MakeJob = fn(&str, &Value) -> TestJob;

/// A job of one trial. After a second call, the agent is refused: some would try a failed call again for minutes.
fn two_calls(job: TestJob, agent: &str, model: &Value, base: &str) -> TestJob {
    job.set("agents", json!([{"preset": agent, "model": model, "limits": {"max_turns": 2}}]))
        .task(HELLO.task(base))
        .set("retry", json!({"max_attempts": 1}))
        .set("gateway", json!({"max_retries": 0}))
}

/// The only trial of a job had no model.
#[track_caller]
fn had_no_model(job: TestJob, agent: &str, kind: &str) -> Value {
    let ran = job.run().expect(1);
    let result = ran.trial(&format!("{agent}/set/hello__1"));
    assert_eq!(result["error"]["type"], "model_failed", "{result:#}");
    assert_eq!(result["reward"], Value::Null, "{result:#}");
    assert!(result["model_calls"]["errors"][kind].as_u64().unwrap() >= 1, "{result:#}");
    assert_eq!(ran.result()["headline"]["excluded"]["failed_by_infrastructure"], 1);
    result
}

fn busy_once(make: MakeJob, agent: &str, dialect: &str, base: &str) {
    let server = fails_once(ModelReply::error(429, "slow down").header("retry-after", "0"));
    let job = make(agent, &served_by(&server, dialect)).task(HELLO.task(base));
    let ran = job.set("gateway", json!({"max_retries": 0})).run().expect(0);
    let result = ran.trial(&format!("{agent}/set/hello__1"));
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(result["error"], Value::Null);
    assert_eq!(result["model_calls"]["errors"], json!({"rate_limited": 1}), "{result:#}");
}

fn always_failing(make: MakeJob, agent: &str, dialect: &str, base: &str) {
    let server = ModelServer::always(ModelReply::error(500, "out of order"));
    let model = served_by(&server, dialect);
    had_no_model(two_calls(make(agent, &model), agent, &model, base), agent, "upstream_failed");
}

fn always_cut(make: MakeJob, agent: &str, dialect: &str, base: &str) {
    let server = ModelServer::scripted(|request| reply(request).usage(COUNTS).cut(Cut::Midway));
    let model = served_by(&server, dialect);
    had_no_model(two_calls(make(agent, &model), agent, &model, base), agent, "cut");
}

fn refused_key(make: MakeJob, agent: &str, dialect: &str, base: &str) {
    let server = refusing(dialect);
    refuses_the_key(make(agent, &served_by(&server, dialect)), agent, base);
}

// A server that is busy once, without retries of the gateway: the agent itself asks again.
agents! { busy_once
    quick {
        claude_code: native, "claude-code", "messages";
        codex: native, "codex", "responses";
        gemini_cli: native, "gemini-cli", "gemini";
        codex_in_a_container: docker, "codex", "responses";
    }
    full {
        // Loading its libraries takes longer than all others together.
        mini_swe_agent: native, "mini-swe-agent", "chat", "test";
        aider: native, "aider", "chat", "test";
        cline: native, "cline", "chat", "test";
        copilot: native, "copilot", "chat", "test";
        goose: native, "goose", "chat", "test";
        kimi_code: native, "kimi-code", "chat", "test";
        opencode: native, "opencode", "chat", "test";
        openhands: docker, "openhands", "chat", with_newer_python();
        qwen_code: native, "qwen-code", "chat", "test";
    }
}

// A server that always fails is no failure of the agent.
agents! { always_failing
    quick {
        claude_code: native, "claude-code", "messages";
        codex: native, "codex", "responses";
        gemini_cli: native, "gemini-cli", "gemini";
        mini_swe_agent: native, "mini-swe-agent", "chat";
        claude_code_in_a_container: docker, "claude-code", "messages";
        codex_in_a_container: docker, "codex", "responses";
    }
    full {
        aider: native, "aider", "chat", "test";
        cline: native, "cline", "chat", "test";
        copilot: native, "copilot", "chat", "test";
        goose: native, "goose", "chat", "test";
        kimi_code: native, "kimi-code", "chat", "test";
        opencode: native, "opencode", "chat", "test";
        openhands: docker, "openhands", "chat", with_newer_python();
        qwen_code: native, "qwen-code", "chat", "test";
    }
}

// Nor is a stream that is always cut. OpenHands does not ask for streams, and those of aider and goose are tested below:
// half of the frames of their answers contain the end.
agents! { always_cut
    quick {
        claude_code: native, "claude-code", "messages";
        codex: native, "codex", "responses";
        gemini_cli: native, "gemini-cli", "gemini";
        codex_in_a_container: docker, "codex", "responses";
    }
    full {
        mini_swe_agent: native, "mini-swe-agent", "chat", "test";
        cline: native, "cline", "chat", "test";
        copilot: native, "copilot", "chat", "test";
        kimi_code: native, "kimi-code", "chat", "test";
        opencode: native, "opencode", "chat", "test";
        qwen_code: native, "qwen-code", "chat", "test";
    }
}

// A refused key stops the job.
agents! { refused_key
    quick {
        claude_code: native, "claude-code", "messages";
        codex: native, "codex", "responses";
        gemini_cli: native, "gemini-cli", "gemini";
        codex_in_a_container: docker, "codex", "responses";
    }
    full {
        mini_swe_agent: native, "mini-swe-agent", "chat", "test";
        aider: native, "aider", "chat", "test";
        cline: native, "cline", "chat", "test";
        copilot: native, "copilot", "chat", "test";
        goose: native, "goose", "chat", "test";
        kimi_code: native, "kimi-code", "chat", "test";
        opencode: native, "opencode", "chat", "test";
        openhands: docker, "openhands", "chat", with_newer_python();
        qwen_code: native, "qwen-code", "chat", "test";
    }
}

/// Agents that exit with status 0 after every call failed.
mod of_silent_agents {
    use super::*;

    #[track_caller]
    fn fails(make: MakeJob, agent: &str, base: &str, reply: ModelReply, kind: &str) {
        let server = ModelServer::always(reply);
        let model = served_by(&server, "chat");
        let job = make(agent, &model).task(HELLO.task(base)).set("retry", json!({"max_attempts": 1}));
        had_no_model(job.set("gateway", json!({"max_retries": 0})), agent, kind);
    }

    #[track_caller]
    fn is_refused(make: MakeJob, agent: &str, base: &str) {
        fails(make, agent, base, ModelReply::error(400, "no such thing"), "refused");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn a_refused_call_of_aider() {
        is_refused(native, "aider", "test");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn a_refused_call_of_goose() {
        is_refused(native, "goose", "test");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn a_cut_stream_of_aider() {
        fails(native, "aider", "test", ModelReply::text("one two three").cut(Cut::Midway), "cut");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn a_cut_stream_of_goose() {
        fails(native, "goose", "test", ModelReply::text("one two three").cut(Cut::Midway), "cut");
    }

    #[test]
    #[ignore = "part of ./test --full"]
    fn a_refused_call_of_openhands() {
        is_refused(docker, "openhands", with_newer_python());
    }
}

/// codex on the first task, with retries of the gateway and of the trial as given.
fn codex(server: &ModelServer, retries: u32) -> TestJob {
    native("codex", &served_by(server, "responses"))
        .task(HELLO.task("test"))
        .set("retry", json!({"max_attempts": 1}))
        .set("gateway", json!({"max_retries": retries}))
}

/// A server that refuses the key of the job, as the server of each dialect does.
fn refusing(dialect: &str) -> ModelServer {
    let reason = json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"});
    let error = json!({"code": 400, "message": "API key not valid.", "details": [reason]});
    match dialect {
        "gemini" => ModelServer::always(ModelReply::raw(400, json!({"error": error}).to_string())),
        _ => model(),
    }
}

/// The job stops, and names its agent. The real key is not shown.
#[track_caller]
fn refuses_the_key(job: TestJob, agent: &str, base: &str) {
    let job = job
        .task(HELLO.task(base))
        .env("REAL_KEY", "sk-wrong-key-0123456789")
        .set("gateway", json!({"max_retries": 0}));
    let ran = job.run().expect(1);
    let stderr = ran.stderr();
    let message = format!("the server rejected the API key of agent {agent} (model scripted)");
    assert!(stderr.contains(&message), "{stderr}");
    assert!(!stderr.contains("sk-wrong-key"), "{stderr}");
    assert!(!job.dir().join(format!("{agent}/set/hello__1/result.json")).exists(), "no trial has a result");
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
