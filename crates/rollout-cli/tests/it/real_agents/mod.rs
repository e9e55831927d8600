//! Real agents, installed from the package registries, at work on tasks: against the scripted model server, in docker
//! and native environments without a network.
//!
//! `scripts/agents` fetches their packages; the tests only read them. The quick form has one agent for each dialect.
//! The others are ignored tests, which `./test --full` runs.

mod by_name;
mod extensions;
mod failures;
mod images;
mod instructions;
mod keys;
mod solving;
mod table;
mod training;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rollout_testkit::{
    ModelReply, ModelRequest, ModelServer, TestEngine, TestJob, TestRegistry, TestTask, TokenCounts,
};
use serde_json::{Value, json};

/// The key that must not be found anywhere.
const KEY: &str = "sk-real-key-of-the-provider-0123456789";

/// A small task, and how a model solves it.
struct Work {
    task: &'static str,
    /// It begins like an option of a command, which no agent may take it for.
    instruction: &'static str,
    /// Lines of its Dockerfile after the first.
    image: &'static str,
    /// The file that is written or changed.
    file: &'static str,
    /// Its content in the end.
    content: &'static str,
    /// The command that makes it so.
    command: &'static str,
    /// Succeeds if the file is right.
    check: &'static str,
}

const HELLO: Work = Work {
    task: "hello",
    instruction: "- Write the line Hello to /app/hello.txt.\n",
    image: "WORKDIR /app\n",
    file: "hello.txt",
    content: "Hello",
    command: "printf 'Hello\\n' > /app/hello.txt",
    check: "[ \"$(cat /app/hello.txt)\" = Hello ]",
};

const GREET: Work = Work {
    task: "greet",
    instruction: "--- The script /app/greet.sh prints Helo. Make it print Hello.\n",
    image: "WORKDIR /app\nRUN echo 'echo Helo' > greet.sh\n",
    file: "greet.sh",
    content: "echo Hello",
    command: "printf 'echo Hello\\n' > /app/greet.sh",
    check: "[ \"$(sh /app/greet.sh)\" = Hello ]",
};

impl Work {
    /// The one that a request is about.
    fn of(request: &ModelRequest) -> &'static Self {
        if request.body.to_string().contains(GREET.file) { &GREET } else { &HELLO }
    }

    /// The task, in an image that is made from another one.
    fn task(&self, base: &str) -> TestTask {
        TestTask::new(self.task)
            .file("instruction.md", self.instruction)
            .dockerfile(&format!("FROM {base}\n{}", self.image))
            .tests(&format!("if {}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n", self.check))
    }
}

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

/// A call of the agent's own tool that runs a command.
fn shell_call(request: &ModelRequest, command: &str) -> Option<ModelReply> {
    let (name, schema) = tools(request).into_iter().find(|(name, _)| SHELLS.contains(&name.as_str()))?;
    let properties = &schema["properties"];
    let mut arguments = match () {
        () if properties["cmd"].is_object() => json!({"cmd": command}),
        () if properties["commands"].is_object() => json!({"commands": [command]}),
        () if properties["command"]["type"] == "array" => json!({"command": ["bash", "-c", command]}),
        () => json!({"command": command}),
    };
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if arguments.get(required).is_none() {
            if let Some(word) = properties[required]["enum"].get(0) {
                arguments[required] = word.clone();
                continue;
            }
            arguments[required] = match properties[required]["type"].as_str() {
                Some("boolean") => json!(false),
                Some("integer" | "number") => json!(10),
                _ => json!("write the file"),
            };
        }
    }
    Some(ModelReply::tool_call(&name, &arguments))
}

/// Whether a request has the result of a tool.
fn has_worked(request: &ModelRequest) -> bool {
    let is_result = |part: &Value| part["type"] == "tool_result" || part["functionResponse"].is_object();
    let parts = |message: &Value| {
        let lists = ["content", "parts"].map(|key| message[key].as_array().cloned().unwrap_or_default());
        lists.concat().iter().any(is_result)
    };
    let result = |message: &Value| {
        message["role"] == "tool" || message["type"] == "function_call_output" || parts(message)
    };
    request.messages().iter().any(result)
}

/// What a model says that runs the command of the task, then says that it is done.
fn reply(request: &ModelRequest) -> ModelReply {
    let work = Work::of(request);
    match shell_call(request, work.command).filter(|_| !has_worked(request)) {
        Some(call) => call,
        // mini-swe-agent has only this tool, and ends by what it prints.
        None if tools(request).len() == 1 => {
            ModelReply::tool_call("bash", &json!({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}))
        }
        // An agent without tools edits files by text.
        None if tools(request).is_empty() => {
            ModelReply::text(format!("{}\n```\n{}\n```\n", work.file, work.content))
        }
        None => ModelReply::text(format!("{} is written.", work.file)),
    }
}

const COUNTS: TokenCounts =
    TokenCounts { prompt: 1000, completion: 20, cached: 400, cache_write: 0, reasoning: 0, cost: None };

/// A model that solves both tasks. What asks without tools gets a text.
fn model() -> ModelServer {
    ModelServer::scripted(|request| reply(request).usage(COUNTS)).key(KEY)
}

/// Where `scripts/agents` put the packages.
fn packages() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache"));
    let packages = std::env::var_os("ROLLOUT_TEST_PACKAGES").map(PathBuf::from);
    packages.unwrap_or_else(|| cache.join("rollout-build/agents"))
}

/// A job of an agent in a sandbox without a network. It has no task yet.
fn native(agent: &str, model: &Value) -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set("environment/provider_config/network", json!("none"))
        .agent(json!({"preset": agent, "model": model}))
        .env("ROLLOUT_PACKAGES_DIR", packages().to_str().unwrap())
        .env("REAL_KEY", KEY)
}

/// The same in a container without a network.
fn docker(agent: &str, model: &Value) -> TestJob {
    let job = native(agent, model)
        .on(&TestEngine::shared())
        .set("environment/provider_config", json!({"network": "none"}));
    // It once ran out of the memory that tasks have by default.
    if agent == "qwen-code" { job.set("environment/override_memory", json!("4Gi")) } else { job }
}

/// An image that the engine has by this name, from a tar that `scripts/with-services` made.
fn imported(variable: &str, name: &'static str) -> &'static str {
    TestEngine::shared().docker(&["import", &std::env::var(variable).unwrap(), name]);
    name
}

/// An image with Python.
fn with_python() -> &'static str {
    imported("ROLLOUT_TEST_PYTHON", "test-python:latest")
}

/// An image with a newer Python, from the system that `scripts/newer-debian` made.
fn with_newer_python() -> &'static str {
    const NAME: &str = "test-newer:latest";
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/newer-debian");
    let output = Command::new(script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let root = String::from_utf8(output.stdout).unwrap();
    let mut files =
        Command::new("tar").args(["-C", root.trim_end(), "-c", "."]).stdout(Stdio::piped()).spawn().unwrap();
    let mut import = TestEngine::shared().client();
    import.args(["import", "-", NAME]).stdin(files.stdout.take().unwrap());
    assert!(import.status().unwrap().success());
    assert!(files.wait().unwrap().success());
    NAME
}

/// A model of a server that speaks this dialect.
fn served_by(server: &ModelServer, dialect: &str) -> Value {
    let url = if dialect == "gemini" { format!("{}/v1beta", server.root()) } else { server.url() };
    json!({
        "name": "scripted", "base_url": url, "api_key": "${REAL_KEY}", "dialect": dialect,
        "prices": {"input": 1, "output": 10, "cached_input": 0.1},
    })
}
