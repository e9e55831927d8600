//! The tools of MCP servers: one that is a process, and one behind a URL.

use std::{fs::OpenOptions, net::SocketAddr, process::Stdio, sync::Arc};

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use rollout::model::{
    Content,
    tool::{
        Tool,
        mcp::{McpServer, McpTransport},
    },
};
use serde_json::{Value, json};

use super::{call, gone, number_in};

/// A server with a few tools.
#[derive(Clone)]
struct Server;

impl ServerHandler for Server {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        rmcp::model::ServerConfig::new(capabilities).with_server_info(Implementation::new("box", "1"))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let schema = Arc::new(schema.as_object().unwrap().clone());
        let tool =
            |name: &'static str| rmcp::model::Tool::new(name, format!("Does {name}."), Arc::clone(&schema));
        let names = ["echo", "draw", "table", "refuse", "break", "die", "header", "a.b"];
        Ok(ListToolsResult::with_all_items(names.map(tool).to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let text = |text: &str| ContentBlock::text(text);
        let result = match &*request.name {
            "echo" => {
                let said = arguments.get("text").and_then(Value::as_str).unwrap_or_default();
                CallToolResult::success(vec![text(said), text("over")])
            }
            "draw" => CallToolResult::success(vec![text("a dot"), ContentBlock::image("AAAA", "image/png")]),
            "table" => CallToolResult::structured(json!({"rows": 2})),
            "refuse" => CallToolResult::error(vec![text("not with me")]),
            "break" => return Err(ErrorData::invalid_params("no such shelf", None)),
            "die" => {
                eprintln!("out of memory");
                std::process::exit(7);
            }
            "header" => {
                let parts = context.extensions.get::<axum::http::request::Parts>();
                let key = parts.and_then(|parts| parts.headers.get("x-key")?.to_str().ok());
                CallToolResult::success(vec![text(key.unwrap_or("none"))])
            }
            other => CallToolResult::success(vec![text(other)]),
        };
        Ok(result.into())
    }
}

/// Says that this test binary is to be a server on its standard input and descriptor 3: the harness of the tests
/// writes to its standard output.
const BE_A_SERVER: &str = "ROLLOUT_TEST_MCP_SERVER";

fn process(before: &str) -> McpTransport {
    let this = std::env::current_exe().unwrap();
    let script = format!(
        r#"{before}; exec 3>&1 >/dev/null; exec "$0" --exact tools::mcp::a_server_ends_with_its_input --nocapture"#
    );
    McpTransport::Command {
        argv: vec!["bash".to_owned(), "-c".to_owned(), script, this.to_str().unwrap().to_owned()],
        env: vec![(BE_A_SERVER.to_owned(), "1".to_owned())],
        directory: None,
    }
}

#[tokio::test]
async fn a_server_ends_with_its_input() {
    if std::env::var_os(BE_A_SERVER).is_some() {
        let output = OpenOptions::new().write(true).open("/proc/self/fd/3").unwrap();
        let served = Server.serve((tokio::io::stdin(), tokio::fs::File::from_std(output))).await;
        if let Ok(served) = served {
            let _ = served.waiting().await;
        }
        return;
    }
    let McpTransport::Command { argv, env, .. } = process(":") else { unreachable!() };
    let mut command = std::process::Command::new(&argv[0]);
    let status = command.args(&argv[1..]).envs(env).stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
}

/// Serves over HTTP at a free port until the runtime ends.
async fn http(headers: Vec<(String, String)>) -> McpTransport {
    let service = StreamableHttpService::new(
        || Ok(Server),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback_service(service)).await });
    McpTransport::Http { url: format!("http://{address}/mcp"), headers }
}

fn named<'a>(tools: &'a [Arc<dyn Tool>], name: &str) -> &'a Arc<dyn Tool> {
    tools.iter().find(|tool| tool.def().name == name).unwrap()
}

/// All that a tool can give, however the server is reached.
async fn behaves(transport: &McpTransport) {
    let server = McpServer::connect(transport).await.unwrap();
    let tools = server.tools(&["echo"]);
    let names: Vec<&str> = tools.iter().map(|tool| tool.def().name.as_str()).collect();
    assert_eq!(names, ["box_echo", "draw", "table", "refuse", "break", "die", "header", "a_b"]);
    let echo = named(&tools, "box_echo");
    assert_eq!(echo.def().description, "Does echo.");
    assert_eq!(echo.def().parameters["properties"], json!({"text": {"type": "string"}}));
    assert_eq!(call(echo, json!({"text": "hi"})).await.unwrap(), Content::from("hi\nover"));
    let drawn = json!([
        {"type": "text", "text": "a dot"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]);
    assert_eq!(call(named(&tools, "draw"), json!({})).await.unwrap(), serde_json::from_value(drawn).unwrap());
    assert_eq!(call(named(&tools, "table"), json!({})).await.unwrap(), Content::from(r#"{"rows":2}"#));
    assert_eq!(call(named(&tools, "a_b"), json!({})).await.unwrap(), Content::from("a.b"));
    let refused = call(named(&tools, "refuse"), json!({})).await.unwrap_err();
    assert_eq!((refused.name.as_str(), refused.message.as_str()), ("McpToolError", "not with me"));
    let broken = call(named(&tools, "break"), json!({})).await.unwrap_err();
    assert_eq!((broken.name.as_str(), broken.message.as_str()), ("McpError", "no such shelf"));
    // The server is there for many calls at once.
    let calls = (0..20).map(|number| async move {
        let text = number.to_string();
        let said = call(echo, json!({"text": text})).await.unwrap();
        assert_eq!(said, Content::from(format!("{text}\nover")));
    });
    futures_util::future::join_all(calls).await;
    server.close().await;
    let failure = call(echo, json!({})).await.unwrap_err();
    assert_eq!(failure.name, "InfraError");
}

#[tokio::test]
async fn tools_of_a_process_are_called() {
    behaves(&process(":")).await;
}

#[tokio::test]
async fn tools_behind_a_url_are_called() {
    behaves(&http(Vec::new()).await).await;
}

#[tokio::test]
async fn headers_go_with_every_request() {
    let server =
        McpServer::connect(&http(vec![("x-key".to_owned(), "sesame".to_owned())]).await).await.unwrap();
    let tools = server.tools(&[]);
    assert_eq!(call(named(&tools, "header"), json!({})).await.unwrap(), Content::from("sesame"));
}

#[tokio::test]
async fn a_server_that_exits_is_reported_with_its_stderr() {
    let server = McpServer::connect(&process(":")).await.unwrap();
    let tools = server.tools(&[]);
    let failure = call(named(&tools, "die"), json!({})).await.unwrap_err();
    assert_eq!(failure.name, "InfraError");
    assert!(failure.message.starts_with("lost the connection to the MCP server `bash`"), "{failure}");
    assert!(failure.message.contains("stderr: out of memory"), "{failure}");
    let after = call(named(&tools, "echo"), json!({})).await.unwrap_err();
    assert_eq!(after.name, "InfraError");
}

fn shell(script: &str) -> McpTransport {
    let argv = ["bash", "-c", script].map(str::to_owned).to_vec();
    McpTransport::Command { argv, env: Vec::new(), directory: None }
}

#[tokio::test]
async fn a_program_that_is_not_a_server_is_reported() {
    let refused =
        async |transport: &McpTransport| McpServer::connect(transport).await.unwrap_err().to_string();
    insta::assert_snapshot!(refused(&shell("echo no config >&2; exit 3")).await, @"cannot initialize the MCP server `bash`; stderr: no config");
    insta::assert_snapshot!(refused(&shell("exit 0")).await, @"cannot initialize the MCP server `bash`");
    let missing =
        McpTransport::Command { argv: vec!["/no/server".to_owned()], env: Vec::new(), directory: None };
    insta::assert_snapshot!(refused(&missing).await, @"cannot start the MCP server `/no/server`");
    let closed = McpTransport::Http {
        url: "http://user:secret@127.0.0.1:9/mcp?key=1".to_owned(),
        headers: Vec::new(),
    };
    insta::assert_snapshot!(refused(&closed).await, @"cannot initialize the MCP server `http://127.0.0.1:9/mcp`");
    let headers = vec![("x y".to_owned(), "secret".to_owned())];
    let header = McpTransport::Http { url: "http://127.0.0.1:9/mcp".to_owned(), headers };
    insta::assert_snapshot!(refused(&header).await, @"invalid header `x y` or value");
}

#[tokio::test]
async fn a_process_ends_with_all_that_it_started_when_it_is_closed_or_let_go() {
    let dir = tempfile::tempdir().unwrap();
    for closed in [true, false] {
        let file = dir.path().join(format!("pid-{closed}"));
        let before = format!("sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > {}", file.display());
        let server = McpServer::connect(&process(&before)).await.unwrap();
        let child = number_in(&file).await;
        assert!(std::path::Path::new(&format!("/proc/{child}")).exists());
        if closed {
            server.close().await;
        }
        drop(server);
        gone(child).await;
    }
}

#[tokio::test]
async fn a_process_stays_while_one_of_its_tools_does() {
    let server = McpServer::connect(&process(":")).await.unwrap();
    let tools = server.tools(&[]);
    drop(server);
    assert_eq!(
        call(named(&tools, "echo"), json!({"text": "still"})).await.unwrap(),
        Content::from("still\nover")
    );
}
