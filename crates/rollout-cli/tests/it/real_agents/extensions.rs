//! MCP servers and skills of a task reach the agents that support them, and no other agent attempts such a task.

use super::*;

/// An MCP server with one tool.
const SERVER: &str = r#"import json, sys
for line in sys.stdin:
    call = json.loads(line)
    if "id" not in call:
        continue
    if call["method"] == "initialize":
        result = {"protocolVersion": call["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "probe", "version": "1.0"}}
    elif call["method"] == "tools/list":
        result = {"tools": [{"name": "tell_weather", "description": "Says how the weather is",
                             "inputSchema": {"type": "object", "properties": {}}}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}), flush=True)
"#;

/// A task with an MCP server that the agent starts.
fn with_server() -> TestTask {
    HELLO
        .task("test")
        .dockerfile("FROM test\nWORKDIR /app\nCOPY server.py /srv/server.py\n")
        .file("environment/server.py", SERVER)
        .config(
            "version = \"1.0\"\n[[environment.mcp_servers]]\nname = \"probe\"\ntransport = \"stdio\"\n\
             command = \"python3\"\nargs = [\"/srv/server.py\"]\n",
        )
}

/// A task with a skill.
fn with_skill() -> TestTask {
    HELLO
        .task("test")
        .dockerfile("FROM test\nWORKDIR /app\nCOPY skills /srv/skills\n")
        .file(
            "environment/skills/salutation/SKILL.md",
            "---\nname: salutation\ndescription: How a polite salutation is spelled\n---\nIt is spelled Hello.\n",
        )
        .config("version = \"1.0\"\n[environment]\nskills_dir = \"/srv/skills\"\n")
}

/// The agent solves the task, and this text is in a request to the model.
#[track_caller]
fn shows(agent: &str, dialect: &str, task: TestTask, text: &str) {
    let server = model();
    let ran = native(agent, &served_by(&server, dialect)).task(task).run().expect(0);
    let result = ran.trial(&format!("{agent}/set/hello__1"));
    assert_eq!(result["reward"], 1.0, "{result:#}");
    let shown = server.requests().iter().any(|request| request.body.to_string().contains(text));
    assert!(shown, "no request of {agent} contains {text:?}");
}

#[test]
fn claude_code_offers_the_tools_of_an_mcp_server() {
    shows("claude-code", "messages", with_server(), "tell_weather");
}

#[test]
fn codex_offers_the_tools_of_an_mcp_server() {
    shows("codex", "responses", with_server(), "tell_weather");
}

#[test]
fn gemini_cli_offers_the_tools_of_an_mcp_server() {
    shows("gemini-cli", "gemini", with_server(), "tell_weather");
}

#[test]
#[ignore = "part of ./test --full"]
fn qwen_code_offers_the_tools_of_an_mcp_server() {
    shows("qwen-code", "chat", with_server(), "tell_weather");
}

#[test]
#[ignore = "part of ./test --full"]
fn opencode_offers_the_tools_of_an_mcp_server() {
    shows("opencode", "chat", with_server(), "tell_weather");
}

#[test]
fn claude_code_finds_the_skills_of_a_task() {
    shows("claude-code", "messages", with_skill(), "How a polite salutation is spelled");
}

#[test]
fn codex_finds_the_skills_of_a_task() {
    shows("codex", "responses", with_skill(), "How a polite salutation is spelled");
}

#[test]
#[ignore = "part of ./test --full"]
fn kimi_code_finds_the_skills_of_a_task() {
    shows("kimi-code", "chat", with_skill(), "How a polite salutation is spelled");
}

#[test]
fn an_agent_without_support_refuses_the_task_and_names_the_setting() {
    let server = model();
    let agents = ["mini-swe-agent", "aider"]
        .map(|agent| json!({"preset": agent, "model": served_by(&server, "chat")}));
    let script = json!({"name": "script", "execute": "true"});
    let agents =
        [agents[0].clone(), agents[1].clone(), script, json!({"name": "oracle"}), json!({"name": "nop"})];
    for (task, setting) in
        [(with_server(), "environment.mcp_servers"), (with_skill(), "environment.skills_dir")]
    {
        let task = task.solution(HELLO.command);
        let ran = native("aider", &Value::Null).set("agents", json!(agents)).task(task).run().expect(1);
        for agent in ["mini-swe-agent", "aider", "script"] {
            let error = &ran.trial(&format!("{agent}/set/hello__1"))["error"];
            assert_eq!(error["type"], "task_invalid", "{agent}: {error:#}");
            assert!(error["message"].as_str().unwrap().starts_with(&format!("`{setting}`")), "{error:#}");
        }
        assert_eq!(ran.trial("oracle/set/hello__1")["reward"], 1.0);
        assert_eq!(ran.trial("nop/set/hello__1")["reward"], 0.0);
    }
    assert_eq!(server.served(), 0);
}

#[test]
fn a_transport_that_the_agent_lacks_and_a_directory_that_is_missing_are_problems_of_the_task() {
    let server = model();
    let sse =
        "version = \"1.0\"\n[[environment.mcp_servers]]\nname = \"far\"\nurl = \"http://127.0.0.1:1/sse\"\n";
    let missing = "version = \"1.0\"\n[environment]\nskills_dir = \"/srv/none\"\n";
    for (config, expected) in [(sse, "the transport `sse` of far"), (missing, "/srv/none cannot be copied")] {
        let task = HELLO.task("test").config(config);
        let ran = native("codex", &served_by(&server, "responses")).task(task).run().expect(1);
        let error = &ran.trial("codex/set/hello__1")["error"];
        assert_eq!(error["type"], "task_invalid", "{error:#}");
        assert!(error["message"].as_str().unwrap().contains(expected), "{error:#}");
    }
}
