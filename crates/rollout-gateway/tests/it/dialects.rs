//! An agent of one dialect with an upstream of another.

use rollout_gateway::{CallErrorKind, Dialect};
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::json;

use crate::support::{DIALECTS, KEY, Setup, question, text_of};

#[tokio::test]
async fn every_agent_reaches_every_upstream_whole_and_streamed() {
    for agent in DIALECTS {
        for upstream in DIALECTS {
            for stream in [false, true] {
                let server = ModelServer::always(ModelReply::text("It is 4.")).key(KEY);
                let setup = Setup::new(&server, upstream).await;
                let (status, body) = setup.ask(agent, stream).await;
                let place =
                    format!("{agent:?} to {upstream:?}, stream: {stream}, {:?}: {body}", server.refusals());
                assert_eq!(status, 200, "{place}");
                let closed = setup.close().await;
                let call = &closed.calls[0];
                assert_eq!(call.error, None, "{place}");
                assert_eq!((call.dialect, call.upstream_dialect), (agent, upstream));
                assert_eq!(text_of(agent, call.response.as_ref().unwrap()), "It is 4.", "{place}");
                assert_eq!(call.usage.as_ref().unwrap().completion_tokens, 4, "{place}");
            }
        }
    }
}

#[tokio::test]
async fn an_error_of_another_dialect_keeps_its_status_and_message() {
    for agent in DIALECTS {
        for upstream in DIALECTS {
            let server = ModelServer::always(ModelReply::error(400, "the prompt is bad"));
            let setup = Setup::new(&server, upstream).await;
            let (status, body) = setup.ask(agent, false).await;
            assert_eq!(status, 400, "{agent:?} to {upstream:?}");
            assert!(body.contains("the prompt is bad"), "{body}");
            let closed = setup.close().await;
            assert_eq!(closed.summary.errors[&CallErrorKind::Refused], 1);
        }
    }
}

#[tokio::test]
async fn what_cannot_be_translated_is_refused_clearly() {
    let server = ModelServer::always(ModelReply::text("4"));
    let setup = Setup::new(&server, Dialect::Messages).await;
    let (path, mut body) = question(Dialect::Responses, false);
    body["previous_response_id"] = json!("resp_1");
    let response = setup.post(path, &body).send().await.unwrap();
    assert_eq!(response.status(), 400);
    let text = response.text().await.unwrap();
    assert!(text.contains("previous_response_id"), "{text}");
    assert_eq!(server.served(), 0);
    assert_eq!(setup.close().await.summary.errors[&CallErrorKind::NotTranslatable], 1);
}
