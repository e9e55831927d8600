//! Keys stay in the gateway, and provider-side tools stay out of requests.

use rollout_core::redact::Redactor;
use rollout_gateway::Dialect;
use rollout_testkit::{ModelReply, ModelServer, files_holding};
use serde_json::{Value, json};

use crate::support::{DIALECTS, KEY, Setup, question};

#[tokio::test]
async fn the_real_key_is_in_no_answer_and_no_file() {
    for dialect in DIALECTS {
        // An upstream that repeats the key in its errors, and a model that says it.
        let server = ModelServer::sequence([
            ModelReply::error(401, format!("Incorrect API key provided: {KEY}")),
            ModelReply::error(500, format!("cannot use {KEY}")),
            ModelReply::text(format!("the key is {KEY} and password-of-task")),
        ]);
        let secrets = Redactor::new(["password-of-task"]);
        let setup = Setup::with(&server, dialect, |_| (), |spec| spec.secrets = secrets).await;
        for _ in 0..2 {
            let (status, body) = setup.ask(dialect, false).await;
            assert!(status >= 400 && !body.contains(KEY) && body.contains("[redacted]"), "{body}");
        }
        setup.ask(dialect, true).await;
        let token = setup.session.token().to_owned();
        let closed = setup.close().await;
        assert_eq!(closed.calls.len(), 3);
        for secret in [KEY, &token, "password-of-task"] {
            assert_eq!(files_holding(closed.dir.path(), secret), [""; 0], "{secret}");
        }
    }
}

#[tokio::test]
async fn a_response_that_contains_a_secret_is_not_saved_in_the_cache() {
    // The model repeats what it reads; streams do so word by word.
    let server = ModelServer::scripted(|request| {
        let body = request.body.to_string();
        let reported = body.split("say:").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        ModelReply::text(reported)
    });
    for dialect in DIALECTS {
        for stream in [false, true] {
            let cache = tempfile::tempdir().unwrap();
            let setup = Setup::with(
                &server,
                dialect,
                |config| config.cache = Some(cache.path().to_owned()),
                |spec| spec.secrets = Redactor::new(["pass words of the task"]),
            )
            .await;
            let token = setup.session.token().to_owned();
            for reported in ["nothing", KEY, &token, "these are the pass words of the task"] {
                let (path, body) = question(dialect, stream);
                let body = body.to_string().replace("2+2?", &format!("say:{reported}"));
                let body = serde_json::from_str(&body).unwrap();
                let response = setup.post(path, &body).send().await.unwrap();
                assert_eq!(response.status(), 200);
                response.bytes().await.unwrap();
            }
            setup.close().await;
            assert_eq!(files_holding(cache.path(), "nothing").len(), 1, "{dialect:?} {stream}");
            assert_eq!(cache.path().read_dir().unwrap().count(), 1, "{dialect:?} {stream}");
        }
    }
}

#[tokio::test]
async fn headers_of_the_agent_are_passed_on_without_its_credentials() {
    let server = ModelServer::always(ModelReply::text("4"));
    let setup = Setup::new(&server, Dialect::Messages).await;
    let (path, body) = question(Dialect::Messages, false);
    let request = setup
        .post(&format!("{path}?beta=true"), &body)
        .header("anthropic-beta", "new-things")
        .header("anthropic-version", "2023-06-01")
        .header("x-stainless-retry-count", "0")
        .header("cookie", "a=b")
        .header("openai-organization", "another")
        .header("x-goog-user-project", "another")
        .header("x-claude-code-session-id", "s-1");
    assert_eq!(request.send().await.unwrap().status(), 200);
    let sent = &server.requests()[0];
    assert_eq!(sent.header("anthropic-beta"), Some("new-things"));
    assert_eq!(sent.header("x-api-key"), Some(KEY));
    let of_account = ["openai-organization", "x-goog-user-project"];
    for name in ["authorization", "x-stainless-retry-count", "cookie"].into_iter().chain(of_account) {
        assert_eq!(sent.header(name), None, "{name}");
    }
    let closed = setup.close().await;
    assert_eq!(closed.calls[0].session_ids["x-claude-code-session-id"], "s-1");
    assert_eq!(closed.calls[0].retry, Some(0));
}

#[tokio::test]
async fn tools_of_the_provider_are_removed_unless_they_are_allowed() {
    for allowed in [false, true] {
        let server = ModelServer::always(ModelReply::text("4"));
        let setup =
            Setup::with(&server, Dialect::Responses, |_| (), |spec| spec.provider_tools = allowed).await;
        let (path, mut body) = question(Dialect::Responses, false);
        let own = json!({"type": "function", "name": "shell", "parameters": {"type": "object"}});
        let namespace = |tools: &[&Value]| json!({"type": "namespace", "name": "n", "tools": tools});
        let search = json!({"type": "web_search"});
        let lists = [
            (json!([own, search]), json!([own])),
            (json!([namespace(&[&own, &search])]), json!([namespace(&[&own])])),
        ];
        for (tools, _) in &lists {
            body["tools"] = tools.clone();
            assert_eq!(setup.post(path, &body).send().await.unwrap().status(), 200);
        }
        let requests = server.requests();
        let closed = setup.close().await;
        for (at, (tools, left)) in lists.iter().enumerate() {
            let (sent, call) = (&requests[at].body["tools"], &closed.calls[at]);
            let removed: Vec<&str> = call.removed.iter().map(String::as_str).collect();
            if allowed {
                assert_eq!((sent, removed), (tools, vec![]));
            } else {
                assert_eq!((sent, removed), (left, vec!["web_search"]));
            }
            assert_eq!(call.request["tools"], *tools);
        }
    }
}
