//! The official Python and Node libraries of the four dialects, against the gateway.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rollout_gateway::Dialect;
use rollout_testkit::{ModelReply, ModelRequest, ModelServer, Python, RequestDialect};
use serde_json::{Value, json};

use crate::support::{DIALECTS, KEY, Setup};

/// The image that the libraries send.
const IMAGE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const PARTS: [&str; 4] = ["chat", "responses", "messages", "gemini"];

#[derive(Clone, Copy)]
enum Language {
    Python,
    Node,
}

/// Answers what the request asks for, if the upstream got it whole.
fn reply(request: &ModelRequest) -> ModelReply {
    let body = request.body.to_string();
    let has = |text: &str| body.contains(text);
    if has("fail") {
        ModelReply::error(400, "the prompt is bad")
    } else if has("look") {
        // Google's library for Python writes base64 for URLs, which only Google accepts.
        let for_urls = || IMAGE.replace('+', "-").replace('/', "_");
        let is_seen = has(IMAGE) || request.dialect == RequestDialect::Gemini && has(&for_urls());
        ModelReply::text(if is_seen { "I see it." } else { "There is no image." })
    } else if has("it worked") {
        ModelReply::text("The tool worked.")
    } else if has("use the tool") {
        ModelReply::tool_call("shell", &json!({"command": "echo 'hi there' > a.txt"}))
    } else {
        ModelReply::text("Hello, it is me.")
    }
}

/// What the libraries understood of each call, for each upstream and the calls that are made to it.
async fn understood(language: Language, runs: &[(Dialect, &[&str])]) -> Vec<String> {
    let mut running = Vec::new();
    for (upstream, parts) in runs {
        let server = ModelServer::scripted(reply).key(KEY);
        let setup = Setup::new(&server, *upstream).await;
        let settings = json!({"url": setup.url(""), "token": setup.session.token(), "parts": parts});
        running.push((server, setup, settings));
    }
    let input = Value::Array(running.iter().map(|(_, _, settings)| settings.clone()).collect());
    let program = tokio::task::spawn_blocking(move || match language {
        Language::Python => Python::new().run(include_str!("sdks.py"), &format!("{input}\n")),
        Language::Node => node(&input),
    });
    let output = program.await.unwrap();
    for (server, ..) in &running {
        assert_eq!(server.refusals(), [""; 0]);
    }
    output.split_terminator("\n\n").map(str::to_owned).collect()
}

/// Runs `sdks.mjs` in the directory of its libraries.
fn node(settings: &Value) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Command::new(root.join("../../scripts/node-env")).stderr(Stdio::inherit()).output().unwrap();
    assert!(made.status.success(), "scripts/node-env failed: {}", made.status);
    let node = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim_end());
    // A program on stdin finds the libraries of the working directory.
    let run = Command::new(&node)
        .args(["--input-type=module", "-", &settings.to_string()])
        .current_dir(node.parent().unwrap())
        .stdin(File::open(root.join("tests/it/sdks.mjs")).unwrap())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(run.status.success(), "the program failed: {}", run.status);
    String::from_utf8(run.stdout).unwrap()
}

/// Each library talks to an upstream of its own dialect.
async fn check_same_dialect(language: Language) {
    let runs = [
        (Dialect::Chat, &["chat"][..]),
        (Dialect::Responses, &["responses"]),
        (Dialect::Messages, &["messages"]),
        (Dialect::Gemini, &["gemini"]),
        (Dialect::Chat, &["wrong_tokens"]),
    ];
    let shown = understood(language, &runs).await.join("\n");
    insta::assert_snapshot!(shown, @r#"
    {"call":"chat","text":"Hello, it is me.","tokens":5}
    {"call":"chat stream","text":"Hello, it is me.","usage":false}
    {"call":"chat stream usage","tokens":[5]}
    {"call":"chat tool","tool":"shell","arguments":{"command":"echo 'hi there' > a.txt"}}
    {"call":"chat tool stream","tool":"shell","arguments":{"command":"echo 'hi there' > a.txt"}}
    {"call":"chat tool result","text":"The tool worked."}
    {"call":"chat image","text":"I see it."}
    {"call":"chat models","models":["real-model"]}
    {"call":"chat error","status":400,"message":"the prompt is bad"}
    {"call":"responses","text":"Hello, it is me.","tokens":5}
    {"call":"responses stream","text":"Hello, it is me.","final":"Hello, it is me.","tokens":5}
    {"call":"responses tool","tool":"shell","arguments":{"command":"echo 'hi there' > a.txt"}}
    {"call":"responses tool stream","tool":"shell","arguments":{"command":"echo 'hi there' > a.txt"}}
    {"call":"responses tool result","text":"The tool worked."}
    {"call":"responses image","text":"I see it."}
    {"call":"responses count","counted":true}
    {"call":"responses error","status":400,"message":"the prompt is bad"}
    {"call":"messages","text":"Hello, it is me.","tokens":5}
    {"call":"messages stream","text":"Hello, it is me.","tokens":5}
    {"call":"messages tool","tool":"shell","arguments":{"command":"echo 'hi there' > a.txt"}}
    {"call":"messages tool stream","tool":"shell","arguments":{"command":"echo 'hi there' > a.txt"}}
    {"call":"messages tool result","text":"The tool worked."}
    {"call":"messages image","text":"I see it."}
    {"call":"messages count","counted":true}
    {"call":"messages models","models":["real-model"]}
    {"call":"messages error","status":400,"message":"the prompt is bad"}
    {"call":"gemini","text":"Hello, it is me.","tokens":5}
    {"call":"gemini stream","text":"Hello, it is me.","tokens":5}
    {"call":"gemini tool","tool":"shell","arguments":{"command":"echo 'hi there' > a.txt"}}
    {"call":"gemini tool stream","tool":"shell","arguments":{"command":"echo 'hi there' > a.txt"}}
    {"call":"gemini tool result","text":"The tool worked."}
    {"call":"gemini image","text":"I see it."}
    {"call":"gemini count","counted":true}
    {"call":"gemini models","models":["models/real-model"]}
    {"call":"gemini error","status":400,"message":"the prompt is bad"}
    {"call":"chat token","status":401,"code":"invalid_api_key"}
    {"call":"responses token","status":401,"code":"invalid_api_key"}
    {"call":"messages token","status":401,"code":"authentication_error"}
    {"call":"gemini token","status":401,"code":"UNAUTHENTICATED"}
    "#);
}

/// Each library talks to upstreams of all dialects, and sees no difference.
async fn check_translated(language: Language) {
    let shown = understood(language, &DIALECTS.map(|upstream| (upstream, &PARTS[..]))).await;
    assert!(!shown[0].contains("no image"), "{}", shown[0]);
    for (upstream, other) in DIALECTS.iter().zip(&shown) {
        assert_eq!(other, &shown[0], "{upstream:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_library_of_each_dialect_understands_every_answer() {
    check_same_dialect(Language::Python).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_library_of_each_dialect_understands_every_answer() {
    check_same_dialect(Language::Node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_libraries_understand_translated_answers_of_every_upstream() {
    check_translated(Language::Python).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_libraries_understand_translated_answers_of_every_upstream() {
    check_translated(Language::Node).await;
}
