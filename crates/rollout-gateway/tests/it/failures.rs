//! Upstreams that fail, and agents that leave.

use rollout_gateway::{CallErrorKind, Dialect};
use rollout_testkit::{Cut, Hold, ModelReply, ModelServer};
use serde_json::json;

use crate::support::{DIALECTS, Setup, question, text_of};

#[tokio::test]
async fn temporary_failures_are_tried_again_before_the_agent_sees_anything() {
    let server = ModelServer::sequence([
        ModelReply::rate_limited(Some("0")),
        ModelReply::error(500, "overloaded").header("retry-after-ms", "1"),
        ModelReply::text("4").cut(Cut::BeforeHeaders),
        ModelReply::text("4").cut(Cut::AfterHeaders),
        ModelReply::text("4"),
    ]);
    let setup = Setup::with(&server, Dialect::Chat, |config| config.max_retries = 5, |_| ()).await;
    let (status, body) = setup.ask(Dialect::Chat, true).await;
    assert_eq!(status, 200);
    assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
    let closed = setup.close().await;
    assert_eq!((closed.calls.len(), closed.calls[0].tries), (1, 5));
}

#[tokio::test]
async fn the_last_failure_is_passed_on_with_its_hint() {
    let server = ModelServer::always(ModelReply::rate_limited(Some("0")));
    let setup = Setup::with(&server, Dialect::Chat, |config| config.max_retries = 1, |_| ()).await;
    let (path, body) = question(Dialect::Chat, false);
    let response = setup.post(path, &body).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (429, "0"));
    let closed = setup.close().await;
    let error = closed.calls[0].error.as_ref().unwrap();
    assert_eq!((error.kind, closed.calls[0].tries), (CallErrorKind::RateLimited, 2));
    assert!(!closed.summary.succeeded());
}

#[tokio::test]
async fn a_refused_key_is_not_tried_again() {
    let server = ModelServer::always(ModelReply::text("4")).key("another key");
    let setup = Setup::with(&server, Dialect::Messages, |config| config.max_retries = 5, |_| ()).await;
    assert_eq!(setup.ask(Dialect::Messages, true).await.0, 401);
    assert_eq!(setup.close().await.summary.errors[&CallErrorKind::Unauthorized], 1);
    assert_eq!(server.served(), 1);
}

/// How Google rejects a key.
fn google_rejects_the_key() -> ModelReply {
    let reason = json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com",
    });
    let message = "API key not valid. Please pass a valid API key.";
    let error = json!({"code": 400, "message": message, "status": "INVALID_ARGUMENT", "details": [reason]});
    ModelReply::raw(400, json!({"error": error}).to_string())
}

#[tokio::test]
async fn a_key_that_google_refuses_with_status_400_is_a_refused_key() {
    let server = ModelServer::always(google_rejects_the_key());
    for (dialect, status) in [(Dialect::Gemini, 400), (Dialect::Chat, 401)] {
        let setup = Setup::with(&server, Dialect::Gemini, |config| config.max_retries = 5, |_| ()).await;
        let (answered, body) = setup.ask(dialect, true).await;
        assert_eq!(answered, status, "{dialect:?}: {body}");
        assert!(body.contains("API key not valid"), "{body}");
        let summary = setup.close().await.summary;
        assert_eq!(summary.errors[&CallErrorKind::Unauthorized], 1, "{dialect:?}: {summary:?}");
    }
    assert_eq!(server.served(), 2, "none of them was tried again");
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_is_a_bad_gateway() {
    let server = ModelServer::always(ModelReply::text("4"));
    let nowhere = |spec: &mut rollout_gateway::SessionSpec| {
        // The name is reserved, so that it never resolves.
        spec.routes[0].upstream.base_url = "http://nothing.invalid/v1".to_owned();
    };
    let setup = Setup::with(&server, Dialect::Chat, |_| (), nowhere).await;
    let (status, body) = setup.ask(Dialect::Chat, false).await;
    assert_eq!(status, 502, "{body}");
    assert_eq!(setup.close().await.summary.errors[&CallErrorKind::Unreachable], 1);
}

#[tokio::test]
async fn a_cut_stream_is_cut_for_the_agent_too_and_recorded_as_far_as_it_came() {
    for dialect in DIALECTS {
        let server = ModelServer::always(ModelReply::text("one two three four").cut(Cut::Midway));
        let setup = Setup::new(&server, dialect).await;
        let (path, body) = question(dialect, true);
        let response = setup.post(path, &body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.text().await.is_err(), "{dialect:?}: the agent sees a broken stream");
        let closed = setup.close().await;
        let call = &closed.calls[0];
        assert_eq!(call.error.as_ref().unwrap().kind, CallErrorKind::Cut, "{dialect:?}");
        assert!(call.response.is_some());
    }
}

#[tokio::test]
async fn an_error_in_the_middle_of_a_stream_is_recorded() {
    for dialect in DIALECTS {
        let server =
            ModelServer::always(ModelReply::text("one two three four").fails_midway("out of memory"));
        let setup = Setup::new(&server, dialect).await;
        let (_, body) = setup.ask(dialect, true).await;
        assert!(body.contains("out of memory"), "{body}");
        let closed = setup.close().await;
        let error = closed.calls[0].error.as_ref().unwrap();
        assert_eq!((error.kind, error.message.as_str()), (CallErrorKind::UpstreamFailed, "out of memory"));
    }
}

/// An error with the status of a success, as servers send it that pass requests on.
fn error_with_200(code: u16) -> ModelReply {
    let error = json!({"code": code, "message": "the provider failed"});
    ModelReply::raw(200, json!({"error": error}).to_string())
}

#[tokio::test]
async fn an_error_with_the_status_of_a_success_is_a_failure() {
    for (code, status, kind, tries) in [
        (502, 502, CallErrorKind::UpstreamFailed, 2),
        (429, 429, CallErrorKind::RateLimited, 2),
        (400, 400, CallErrorKind::Refused, 1),
        // The key of the server that passed the request on, or no status.
        (401, 502, CallErrorKind::UpstreamFailed, 2),
        (7, 502, CallErrorKind::UpstreamFailed, 2),
    ] {
        let server = ModelServer::always(error_with_200(code));
        let setup = Setup::with(&server, Dialect::Chat, |config| config.max_retries = 1, |_| ()).await;
        let (answered, body) = setup.ask(Dialect::Chat, false).await;
        assert_eq!(answered, status, "{code}: {body}");
        assert!(body.contains("the provider failed"), "{body}");
        let closed = setup.close().await;
        assert!(!closed.summary.succeeded());
        assert_eq!(
            (closed.calls[0].error.as_ref().unwrap().kind, closed.calls[0].tries),
            (kind, tries),
            "{code}"
        );
    }
    let server = ModelServer::sequence([error_with_200(502), ModelReply::text("4")]);
    let setup = Setup::with(&server, Dialect::Chat, |config| config.max_retries = 1, |_| ()).await;
    assert_eq!(setup.ask(Dialect::Chat, false).await.0, 200);
    let closed = setup.close().await;
    assert_eq!((closed.summary.turns, closed.calls[0].tries), (1, 2));
}

#[tokio::test]
async fn a_response_with_both_an_answer_and_an_error_is_passed_on_and_no_turn() {
    let message = json!({"role": "assistant", "content": "4"});
    let body =
        json!({"choices": [{"message": message, "finish_reason": "error"}], "error": {"message": "half"}});
    let server = ModelServer::always(ModelReply::raw(200, body.to_string()));
    let setup = Setup::new(&server, Dialect::Chat).await;
    assert_eq!(setup.ask(Dialect::Chat, false).await, (200, body.to_string()));
    let closed = setup.close().await;
    assert_eq!(closed.summary.turns, 0);
    let error = closed.calls[0].error.as_ref().unwrap();
    assert_eq!((error.kind, error.message.as_str()), (CallErrorKind::UpstreamFailed, "half"));
}

#[tokio::test]
async fn a_conversation_that_is_too_long_is_a_kind_of_its_own() {
    let server = ModelServer::sequence([
        ModelReply::overlong(),
        ModelReply::text("one two").fails_midway("prompt is too long: 9 tokens > 8 maximum"),
    ]);
    let setup = Setup::new(&server, Dialect::Chat).await;
    assert_eq!(setup.ask(Dialect::Chat, true).await.0, 400);
    setup.ask(Dialect::Chat, true).await;
    let closed = setup.close().await;
    assert_eq!(closed.calls[0].error.as_ref().unwrap().kind, CallErrorKind::ContextLength);
    // An event that has no kind is a failure of the server.
    assert_eq!(closed.calls[1].error.as_ref().unwrap().kind, CallErrorKind::UpstreamFailed);
}

#[tokio::test]
async fn a_prompt_that_google_blocks_is_answered() {
    let blocked =
        json!({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}});
    let server = ModelServer::always(
        ModelReply::raw(200, format!("data: {blocked}\n\n")).content_type("text/event-stream"),
    );
    let setup = Setup::new(&server, Dialect::Gemini).await;
    assert_eq!(setup.ask(Dialect::Gemini, true).await.0, 200);
    let closed = setup.close().await;
    assert_eq!((&closed.calls[0].error, closed.summary.turns), (&None, 1));
}

#[tokio::test]
async fn a_call_whose_agent_left_is_answered_by_its_next_try_and_recorded_once() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let setup = Setup::new(&server, Dialect::Chat).await;
    let (path, body) = question(Dialect::Chat, false);
    let impatient = tokio::spawn(setup.post(path, &body).send());
    hold.waiting(1).await;
    // The agent closes its connection.
    impatient.abort();
    assert!(impatient.await.unwrap_err().is_cancelled());
    let again = setup.post(path, &body).header("x-stainless-retry-count", "1").send();
    let (response, ()) = tokio::join!(again, async {
        tokio::task::yield_now().await;
        hold.open();
    });
    let response = response.unwrap().json().await.unwrap();
    assert_eq!(text_of(Dialect::Chat, &response), "4");
    assert_eq!(server.served(), 1);
    let closed = setup.close().await;
    assert_eq!((closed.calls.len(), closed.summary.turns), (1, 1));
}

#[tokio::test]
async fn an_agent_that_leaves_in_the_middle_of_a_stream_ends_the_call() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("one two three four five six").held_midway(&hold));
    let setup = Setup::new(&server, Dialect::Chat).await;
    let (path, body) = question(Dialect::Chat, true);
    let mut response = setup.post(path, &body).send().await.unwrap();
    assert!(response.chunk().await.unwrap().is_some());
    hold.waiting(1).await;
    drop(response);
    hold.waiting(0).await;
    let closed = setup.close().await;
    assert_eq!(closed.calls[0].error.as_ref().unwrap().kind, CallErrorKind::ClientGone);
    assert!(closed.calls[0].response.is_some());
}

#[tokio::test]
async fn closing_a_session_ends_its_calls_and_makes_its_token_invalid() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let Setup { gateway, session, http, dir: _dir } = Setup::new(&server, Dialect::Chat).await;
    let (path, body) = question(Dialect::Chat, false);
    let url = format!("http://{}{path}", gateway.address());
    let token = session.token().to_owned();
    let ask = || http.post(&url).bearer_auth(&token).json(&body).send();
    let (response, summary) = tokio::join!(ask(), async {
        hold.waiting(1).await;
        session.close().await
    });
    assert_eq!(response.unwrap().status(), 502);
    assert_eq!(summary.errors[&CallErrorKind::Closed], 1);
    assert_eq!(ask().await.unwrap().status(), 401);
}
