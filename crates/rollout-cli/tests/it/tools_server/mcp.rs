//! Tools of MCP servers.

use serde_json::{Value, json};

use super::server::{Server, place};

/// A server that speaks the protocol on its standard input and output. It exits when a call requests it, not when its
/// standard input closes.
const SERVER: &str = r#"
import json, sys, time
TOOL = {"name": "add", "description": "Adds two numbers.", "inputSchema": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "sums", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "tools/call":
        arguments = params["arguments"]
        if arguments.get("a") == 13:
            sys.exit(1)
        try:
            result = {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}
        except Exception as error:
            result = {"content": [{"type": "text", "text": repr(error)}], "isError": True}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
time.sleep(987)
"#;

/// The command that runs a file, named by a path that identifies its process.
fn run(file: &str) -> Value {
    json!(["sh", "-c", format!("exec python3 $PWD/{file}")])
}

#[test]
fn tools_of_a_server_are_called_and_a_missing_one_is_reported() {
    let config = json!({
        "resources": {"code": false, "doc": false, "rag": false, "sql": false, "vm": false, "web": false},
        "mcp": {"servers": {
            "sums": {"command": run("sums.py"), "env": {"KEY": "${NOTHING:-x}"}},
            "absent": {"command": ["no-such-mcp-server"]},
        }},
    });
    let server = Server::in_place(place(&config).file("sums.py", SERVER), &[]);
    let (_, tools) = server.get("/api/v1/tools");
    assert_eq!((&tools["count"], &tools["tools"][0]["name"]), (&json!(1), &json!("mcp:sums.add")));
    assert_eq!(tools["tools"][0]["input_schema"]["required"], json!(["a", "b"]));
    let add = |a: Value| server.execute("w", "mcp:sums.add", &json!({"a": a, "b": 2}));
    assert_eq!(add(json!(40))["data"], json!({"result": "42"}));
    assert_eq!(add(json!("x"))["code"], 5000);
    // A server that died is started again by the next call.
    assert_eq!(add(json!(13))["code"], 5003);
    assert_eq!(add(json!(1))["data"]["result"], "3");
    let warmed = server.post("/api/v1/warmup", &json!({})).1;
    assert_eq!((&warmed["status"], &warmed["results"]), (&json!("partial_error"), &json!({"mcp": false})));
    assert!(warmed["errors"]["mcp"].as_str().unwrap().starts_with("absent: "), "{warmed}");
    server.signal("-TERM");
    let finished = server.finish().expect(0);
    assert!(
        finished.stderr().contains("absent: cannot start the MCP server `no-such-mcp-server`"),
        "{}",
        finished.stderr()
    );
}

#[test]
fn a_server_that_does_not_answer_holds_up_the_others_for_a_moment_only() {
    let config = json!({
        "resources": {"code": false, "doc": false, "rag": false, "sql": false, "vm": false, "web": false},
        "mcp": {"servers": {
            "sums": {"command": run("sums.py")},
            "mute": {"command": run("mute.py")},
            "late": {"command": run("late.py")},
        }},
    });
    let job = place(&config).file("sums.py", SERVER).file("mute.py", "import time\ntime.sleep(987)");
    let server = Server::serving(job, &[]);
    let (_, tools) = server.get("/api/v1/tools");
    assert_eq!(tools["count"], 1, "{tools}");
    assert_eq!(server.execute("w", "mcp:sums.add", &json!({"a": 1, "b": 2}))["data"]["result"], "3");
    // One that was not there is started by the first call, and named from then on.
    let late = || server.execute("w", "mcp:late.add", &json!({"a": 1, "b": 2}));
    assert_eq!(late()["code"], 5012);
    std::fs::write(server.job.root().join("late.py"), SERVER).unwrap();
    assert_eq!(late()["data"]["result"], "3");
    assert_eq!(server.get("/api/v1/tools").1["count"], 2);
    assert_eq!(server.execute("w", "mcp:late.sub", &json!({}))["code"], 4002);
    server.signal("-TERM");
    let finished = server.finish().expect(0);
    assert!(finished.stderr().contains("some MCP servers have not answered yet"), "{}", finished.stderr());
}
