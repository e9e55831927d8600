//! Real agents, installed from the package registries, at work on a task: against the scripted model server, in docker
//! and native environments without a network.
//!
//! `scripts/agents` fetches their packages; the tests only read them. The quick form has one agent for each dialect.

use std::path::PathBuf;

use rollout_testkit::{ModelReply, ModelRequest, ModelServer, TestEngine, TestJob, TestTask, TokenCounts};
use serde_json::{Value, json};

/// The key that must not be found anywhere.
const KEY: &str = "sk-real-key-of-the-provider-0123456789";

/// What the model lets the agent run.
const COMMAND: &str = "printf 'Hello\\n' > /app/hello.txt";

/// Tools of agents that run a command.
const SHELLS: [&str; 12] = [
    "Bash",
    "bash",
    "exec_command",
    "execute_command",
    "run_shell_command",
    "run_commands",
    "shell",
    "Shell",
    "shell_command",
    "developer__shell",
    "local_shell",
    "terminal",
];

/// The tools of a request by name, with the schemas of their arguments.
fn tools(request: &ModelRequest) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for tool in request.body["tools"].as_array().into_iter().flatten() {
        let declared = tool["functionDeclarations"].as_array().cloned().unwrap_or_else(|| vec![tool.clone()]);
        for tool in declared {
            let tool = if tool["function"].is_object() { tool["function"].clone() } else { tool };
            let schema =
                ["parameters", "input_schema", "parametersJsonSchema"].iter().find_map(|key| tool.get(*key));
            if let Some(name) = tool["name"].as_str() {
                found.push((name.to_owned(), schema.cloned().unwrap_or_default()));
            }
        }
    }
    found
}

/// A call of the agent's own tool that runs the command.
fn shell_call(request: &ModelRequest) -> Option<ModelReply> {
    let (name, schema) = tools(request).into_iter().find(|(name, _)| SHELLS.contains(&name.as_str()))?;
    let properties = &schema["properties"];
    let mut arguments = match () {
        () if properties["cmd"].is_object() => json!({"cmd": COMMAND}),
        () if properties["commands"].is_object() => json!({"commands": [COMMAND]}),
        () if properties["command"]["type"] == "array" => json!({"command": ["bash", "-c", COMMAND]}),
        () => json!({"command": COMMAND}),
    };
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if arguments.get(required).is_none() {
            arguments[required] = match properties[required]["type"].as_str() {
                Some("boolean") => json!(false),
                Some("integer" | "number") => json!(10),
                _ => json!("write the file"),
            };
        }
    }
    Some(ModelReply::tool_call(&name, &arguments))
}

/// A model that runs one command, then says that it is done. What asks without tools gets a text.
fn model() -> ModelServer {
    let counts = TokenCounts { prompt: 1000, completion: 20, cached: 400, ..TokenCounts::default() };
    let script = move |request: &ModelRequest| {
        let is_result = |part: &Value| part["type"] == "tool_result" || part["functionResponse"].is_object();
        let parts = |message: &Value| {
            let lists = ["content", "parts"].map(|key| message[key].as_array().cloned().unwrap_or_default());
            lists.concat().iter().any(is_result)
        };
        let worked = request.messages().iter().any(|message| {
            message["role"] == "tool" || message["type"] == "function_call_output" || parts(message)
        });
        let reply = match shell_call(request).filter(|_| !worked) {
            Some(call) => call,
            // mini-swe-agent has only this tool, and ends by what it prints.
            None if tools(request).len() == 1 => ModelReply::tool_call(
                "bash",
                &json!({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
            ),
            // An agent without tools edits files by text.
            None if tools(request).is_empty() => ModelReply::text("hello.txt\n```\nHello\n```\n"),
            None => ModelReply::text("hello.txt is written."),
        };
        reply.usage(counts)
    };
    ModelServer::scripted(script).key(KEY)
}

/// Where `scripts/agents` put the packages.
fn packages() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache"));
    let packages = std::env::var_os("ROLLOUT_TEST_PACKAGES").map(PathBuf::from);
    packages.unwrap_or_else(|| cache.join("rollout-build/agents"))
}

fn task() -> TestTask {
    TestTask::new("hello")
        .file("instruction.md", "Write the line Hello to /app/hello.txt.\n")
        .tests("[ \"$(cat /app/hello.txt)\" = Hello ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt")
}

/// A job of an agent in a sandbox without a network.
fn native(agent: &str, model: &Value) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set("environment/provider_config/network", json!("none"))
        .agent(json!({"preset": agent, "model": model}))
        .task(task())
        .env("ROLLOUT_PACKAGES_DIR", packages().to_str().unwrap())
        .env("REAL_KEY", KEY)
}

/// The same in a container without a network.
fn docker(agent: &str, model: &Value) -> TestJob {
    native(agent, model)
        .on(&TestEngine::shared())
        .set("environment/provider_config", json!({"network": "none"}))
}

fn served_by(server: &ModelServer, dialect: &str) -> Value {
    let url = if dialect == "gemini" { format!("{}/v1beta", server.root()) } else { server.url() };
    json!({
        "name": "scripted", "base_url": url, "api_key": "${REAL_KEY}", "dialect": dialect,
        "prices": {"input": 1, "output": 10, "cached_input": 0.1},
    })
}

/// The agent solves the task, its conversation, tokens and cost are recorded, and the key is nowhere.
#[track_caller]
fn solves(job: &TestJob, agent: &str, turns: usize) {
    let ran = job.run().expect(0);
    let path = format!("{agent}/set/hello__1");
    let result = ran.trial(&path);
    assert_eq!(result["reward"], 1.0, "{agent}: {result:#}");
    let calls = result["model_calls"]["turns"].as_u64().unwrap();
    assert!(calls >= turns as u64, "{agent}: {result:#}");
    assert_eq!(result["model_calls"]["models"], json!(["scripted"]));
    let usage = &result["usage"];
    assert_eq!(usage["input_tokens"], 1000 * calls, "{agent}: {result:#}");
    assert_eq!(usage["output_tokens"], 20 * calls);
    assert_eq!(usage["cached_tokens"], 400 * calls);
    let expected = calls as f64 * (600.0 + 40.0 + 200.0) / 1e6;
    assert!((result["model_cost"].as_f64().unwrap() - expected).abs() < 1e-9, "{agent}: {result:#}");
    let trajectory: Value = serde_json::from_str(&ran.file(&format!("{path}/trajectory.json"))).unwrap();
    let recorded = trajectory["turns"].as_array().unwrap();
    assert_eq!(recorded.len(), turns, "{agent}: {trajectory:#}");
    let first = &recorded[0];
    if turns > 1 {
        assert!(
            first["response"]["message"]["tool_calls"][0]["arguments"]
                .as_str()
                .unwrap()
                .contains("hello.txt")
        );
        assert!(!first["answers"].as_array().unwrap().is_empty(), "{agent}: {trajectory:#}");
    }
    assert!(trajectory["prompt"].to_string().contains("/app/hello.txt"), "{agent}: {trajectory:#}");
    let holding: Vec<_> = rollout_testkit::files_holding(&job.dir(), KEY).into_iter().collect();
    assert!(holding.is_empty(), "the key is in {holding:?}");
}

#[test]
fn codex_solves_a_task() {
    let server = model();
    solves(&native("codex", &served_by(&server, "responses")), "codex", 2);
}

#[test]
fn codex_solves_a_task_in_a_container() {
    let server = model();
    solves(&docker("codex", &served_by(&server, "responses")), "codex", 2);
}

#[test]
fn claude_code_solves_a_task() {
    let server = model();
    solves(&native("claude-code", &served_by(&server, "messages")), "claude-code", 2);
}

#[test]
fn claude_code_solves_a_task_in_a_container() {
    let server = model();
    solves(&docker("claude-code", &served_by(&server, "messages")), "claude-code", 2);
}

#[test]
fn gemini_cli_solves_a_task() {
    let server = model();
    solves(&native("gemini-cli", &served_by(&server, "gemini")), "gemini-cli", 2);
}

#[test]
fn gemini_cli_solves_a_task_in_a_container() {
    let server = model();
    solves(&docker("gemini-cli", &served_by(&server, "gemini")), "gemini-cli", 2);
}

#[test]
fn mini_swe_agent_solves_a_task_where_python_is_in_the_image() {
    let server = model();
    solves(&native("mini-swe-agent", &served_by(&server, "chat")), "mini-swe-agent", 2);
}

#[test]
fn claude_code_works_with_a_model_of_another_dialect() {
    let server = model();
    solves(&native("claude-code", &served_by(&server, "chat")), "claude-code", 2);
}

#[test]
fn codex_works_with_a_model_of_another_dialect() {
    let server = model();
    solves(&native("codex", &served_by(&server, "messages")), "codex", 2);
}

#[test]
fn an_agent_whose_key_is_refused_stops_the_job() {
    let server = model();
    let job = native("codex", &served_by(&server, "responses")).env("REAL_KEY", "sk-wrong-key-0123456789");
    let stderr = job.run().stderr();
    assert!(stderr.contains("refuse") || stderr.contains("key"), "{stderr}");
    assert!(!job.dir().join("codex/set/hello__1/result.json").exists(), "no trial has a result");
}

#[test]
fn an_agent_whose_model_always_fails_is_no_failure_of_the_agent() {
    let server = ModelServer::always(ModelReply::error(500, "out of order"));
    let job = native("codex", &served_by(&server, "responses"))
        .set("retry", json!({"max_attempts": 1}))
        .set("gateway", json!({"max_retries": 0}));
    let ran = job.run().expect(1);
    let result = ran.trial("codex/set/hello__1");
    assert_eq!(result["error"]["type"], "model_failed", "{result:#}");
    assert!(result["model_calls"]["errors"]["upstream_failed"].as_u64().unwrap() >= 1);
}

#[test]
fn an_agent_that_uses_up_its_limit_is_ended_and_graded() {
    let server =
        ModelServer::scripted(|request| shell_call(request).unwrap_or_else(|| ModelReply::text("done")));
    let mut model = served_by(&server, "responses");
    model["api_key"] = Value::Null;
    let agent = json!({"preset": "codex", "model": model, "limits": {"max_turns": 3}});
    let job = native("codex", &model).set("agents", json!([agent]));
    let ran = job.run();
    let result = ran.trial("codex/set/hello__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    assert_eq!(result["model_calls"]["turns"], 3);
    assert!(result["notes"].to_string().contains("used up its limits"), "{result:#}");
}
