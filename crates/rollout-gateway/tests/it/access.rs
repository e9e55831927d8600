//! Who may ask, for what, and where.

use rollout_gateway::{Dialect, ModelRoute};
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::{Value, json};

use crate::support::{DIALECTS, KEY, Setup, question, route};

#[tokio::test]
async fn a_token_is_accepted_in_every_place_and_never_reaches_the_upstream() {
    let server = ModelServer::always(ModelReply::text("4"));
    let setup = Setup::new(&server, Dialect::Chat).await;
    let token = setup.session.token();
    let (path, body) = question(Dialect::Chat, false);
    let post = |path: &str| setup.http.post(setup.url(path)).json(&body);
    for request in [
        post(path).bearer_auth(token),
        post(path).header("x-api-key", token),
        post(path).header("x-goog-api-key", token),
        post(&format!("{path}?key={token}")),
        post(&format!("/t/{token}{path}")),
        post(&format!("/t/{token}/chat/completions")).bearer_auth("other"),
    ] {
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    for request in server.requests() {
        assert_eq!(request.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
        assert!(!format!("{request:?}").contains(token));
    }
}

#[tokio::test]
async fn an_unknown_token_is_refused_in_the_form_of_the_dialect() {
    let server = ModelServer::always(ModelReply::text("4"));
    let setup = Setup::new(&server, Dialect::Chat).await;
    let mut shown = Vec::new();
    for dialect in DIALECTS {
        let (path, body) = question(dialect, false);
        let response = setup.post_as("sk-rollout-wrong", path, &body).send().await.unwrap();
        assert_eq!(response.status(), 401);
        shown.push(response.text().await.unwrap());
    }
    assert_eq!(server.served(), 0);
    insta::assert_snapshot!(shown.join("\n"), @r#"
    {"error":{"message":"the token is missing, unknown, or belongs to a session that has ended","type":"authentication_error","param":null,"code":"invalid_api_key"}}
    {"error":{"message":"the token is missing, unknown, or belongs to a session that has ended","type":"authentication_error","param":null,"code":"invalid_api_key"}}
    {"type":"error","error":{"type":"authentication_error","message":"the token is missing, unknown, or belongs to a session that has ended"}}
    {"error":{"code":401,"message":"the token is missing, unknown, or belongs to a session that has ended","status":"UNAUTHENTICATED"}}
    "#);
}

#[tokio::test]
async fn models_are_mapped_by_patterns_and_others_are_refused() {
    let server = ModelServer::always(ModelReply::text("4"));
    let to = |pattern: &str, model: Option<&str>| ModelRoute {
        pattern: pattern.to_owned(),
        model: model.map(str::to_owned),
        ..route(&server, Dialect::Chat)
    };
    let routes = vec![to("claude-*", Some("mine")), to("exact", None)];
    let setup = Setup::with(&server, Dialect::Chat, |_| (), |spec| spec.routes = routes).await;
    let ask = async |model: &str| {
        let (path, mut body) = question(Dialect::Chat, false);
        body["model"] = json!(model);
        setup.post(path, &body).send().await.unwrap().status().as_u16()
    };
    assert_eq!((ask("claude-haiku").await, ask("exact").await, ask("gpt-5").await), (200, 200, 404));
    let models: Vec<String> = server.requests().iter().map(|request| request.model().to_owned()).collect();
    assert_eq!(models, ["mine", "exact"]);
    let get = async |path: &str, header: &'static str| {
        let request =
            setup.http.get(setup.url(path)).bearer_auth(setup.session.token()).header(header, "2023-06-01");
        request.send().await.unwrap().json::<Value>().await.unwrap()
    };
    assert_eq!(get("/v1/models", "x-none").await["data"][1]["id"], "mine");
    assert_eq!(get("/v1/models", "anthropic-version").await["first_id"], "exact");
    assert_eq!(get("/v1beta/models", "x-none").await["models"][0]["name"], "models/exact");
    assert_eq!(get("/models/claude-x", "x-none").await["id"], "claude-x");
}

#[tokio::test]
async fn websockets_are_refused_so_that_http_is_used_at_once_and_hello_is_answered() {
    let server = ModelServer::always(ModelReply::text("4"));
    let setup = Setup::new(&server, Dialect::Responses).await;
    let socket = setup.http.get(setup.url("/v1/responses")).header("upgrade", "websocket");
    assert_eq!(socket.header("connection", "upgrade").send().await.unwrap().status(), 426);
    assert_eq!(setup.http.head(setup.url("/api/hello")).send().await.unwrap().status(), 200);
    let unknown = setup.post("/v1/embeddings", &json!({})).send().await.unwrap();
    assert_eq!(unknown.status(), 404);
}

#[tokio::test]
async fn tokens_are_counted_by_the_upstream_or_estimated() {
    let server = ModelServer::always(ModelReply::text("4"));
    let (_, body) = question(Dialect::Messages, false);
    for upstream in [Dialect::Messages, Dialect::Gemini, Dialect::Chat] {
        let setup = Setup::new(&server, upstream).await;
        let response = setup.post("/v1/messages/count_tokens", &body).send().await.unwrap();
        let count: Value = response.json().await.unwrap();
        assert!(count["input_tokens"].as_u64().unwrap() > 5, "{upstream:?} {count}");
        assert_eq!(setup.close().await.summary.calls, 0);
    }
}

#[tokio::test]
async fn a_request_that_counts_tokens_ends_with_its_session() {
    let server = ModelServer::always(ModelReply::text("4"));
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let to_silent = |spec: &mut rollout_gateway::SessionSpec| spec.routes[0].upstream.base_url = url;
    let setup = Setup::with(&server, Dialect::Messages, |_| (), to_silent).await;
    let (_, body) = question(Dialect::Messages, false);
    let ask = setup.post("/v1/messages/count_tokens", &body).send();
    let Setup { gateway: _gateway, session, .. } = setup;
    let (response, _connection) = tokio::join!(ask, async {
        let connection = silent.accept().await.unwrap();
        session.close().await;
        connection
    });
    assert_eq!(response.unwrap().status(), 502);
}
