//! The official Python libraries of the four dialects, against the gateway.

use rollout_gateway::Dialect;
use rollout_testkit::{ModelReply, ModelRequest, ModelServer, Python};
use serde_json::json;

use crate::support::{DIALECTS, KEY, Setup};

/// Calls the tool if it is asked to.
fn reply(request: &ModelRequest) -> ModelReply {
    if request.body.to_string().contains("use the tool") {
        return ModelReply::tool_call("shell", &json!({"command": "echo 'hi there' > a.txt"}));
    }
    ModelReply::text("Hello, it is me.")
}

/// What the libraries understood of each call.
async fn understood(parts: &[&str], upstream: Dialect) -> String {
    let server = ModelServer::scripted(reply).key(KEY);
    let setup = Setup::new(&server, upstream).await;
    let input = json!({"url": setup.url(""), "token": setup.session.token(), "parts": parts});
    let running = tokio::task::spawn_blocking(move || {
        Python::new().run(include_str!("sdks.py"), &format!("{input}\n"))
    });
    let output = running.await.unwrap();
    assert_eq!(server.refusals(), [""; 0]);
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_of_each_dialect_understands_every_answer() {
    let parts = ["chat", "responses", "messages", "gemini"];
    let mut shown = String::new();
    for (part, dialect) in parts.into_iter().zip(DIALECTS) {
        shown += &understood(&[part], dialect).await;
    }
    shown += &understood(&["errors"], Dialect::Chat).await;
    insta::assert_snapshot!(shown, @r#"
    {"call": "chat", "text": "Hello, it is me.", "tokens": 5}
    {"call": "chat stream", "text": "Hello, it is me."}
    {"call": "chat tool", "tool": "shell", "arguments": {"command": "echo 'hi there' > a.txt"}}
    {"call": "chat tool stream", "tool": "shell", "arguments": {"command": "echo 'hi there' > a.txt"}}
    {"call": "chat image", "text": "Hello, it is me."}
    {"call": "chat models", "models": ["real-model"]}
    {"call": "responses", "text": "Hello, it is me.", "tokens": 5}
    {"call": "responses stream", "text": "Hello, it is me.", "final": "Hello, it is me."}
    {"call": "responses tool", "tool": "shell", "arguments": {"command": "echo 'hi there' > a.txt"}}
    {"call": "responses image", "text": "Hello, it is me."}
    {"call": "messages", "text": "Hello, it is me.", "tokens": 5}
    {"call": "messages stream", "text": "Hello, it is me.", "tokens": 5}
    {"call": "messages tool stream", "tool": "shell", "arguments": {"command": "echo 'hi there' > a.txt"}}
    {"call": "messages image", "text": "Hello, it is me."}
    {"call": "messages count", "counted": true}
    {"call": "messages models", "models": ["real-model"]}
    {"call": "gemini", "text": "Hello, it is me.", "tokens": 5}
    {"call": "gemini stream", "text": "Hello, it is me."}
    {"call": "gemini tool", "tool": "shell", "arguments": {"command": "echo 'hi there' > a.txt"}}
    {"call": "gemini image", "text": "Hello, it is me."}
    {"call": "gemini count", "counted": true}
    {"call": "openai error", "code": "invalid_api_key"}
    {"call": "anthropic error", "kind": "authentication_error"}
    {"call": "gemini error", "code": 401, "status": "UNAUTHENTICATED"}
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_libraries_understand_translated_answers_of_every_upstream() {
    let parts = ["chat", "responses", "messages", "gemini"];
    let same = understood(&parts, Dialect::Chat).await;
    for upstream in [Dialect::Responses, Dialect::Messages, Dialect::Gemini] {
        assert_eq!(understood(&parts, upstream).await, same, "{upstream:?}");
    }
}
