//! A call to an upstream of the same dialect changes nothing that need not change.

use std::io::Write as _;

use base64::Engine as _;
use rollout_gateway::{CallErrorKind, Dialect, ModelRoute, Upstream};
use rollout_testkit::{ModelReply, ModelServer, Split};
use serde_json::{Value, json};

use crate::support::{DIALECTS, KEY, Setup, question, text_of};

/// A response with fields and spaces that no program of today would write.
const ODD: &str = "{ \"id\":\"x\",\"choices\" : [{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"4\"},\
                   \"finish_reason\":\"stop\"}],  \"big\":123456789012345678901234567890, \"é\": \"\\u00e9\" }";

#[tokio::test]
async fn a_response_comes_back_byte_for_byte() {
    let server = ModelServer::always(ModelReply::raw(200, ODD));
    let setup = Setup::new(&server, Dialect::Chat).await;
    assert_eq!(setup.ask(Dialect::Chat, false).await, (200, ODD.to_owned()));
}

#[tokio::test]
async fn a_stream_comes_back_byte_for_byte_in_every_dialect() {
    for dialect in DIALECTS {
        let reply =
            ModelReply::text("It is 4, é.").field("strange", json!(1.50)).comments().split(Split::Bytes(7));
        let server = ModelServer::always(reply);
        let (path, mut body) = question(dialect, true);
        if dialect == Dialect::Chat {
            body["stream_options"] = json!({"include_usage": true});
        }
        let unmapped = |spec: &mut rollout_gateway::SessionSpec| {
            let upstream = Upstream::new(server.root(), dialect);
            spec.routes = vec![ModelRoute { model: None, ..ModelRoute::all(upstream, "") }];
        };
        let setup = Setup::with(&server, dialect, |_| (), unmapped).await;
        let direct = setup.http.post(format!("{}{path}", server.root())).json(&body);
        let direct =
            direct.header("anthropic-version", "2023-06-01").send().await.unwrap().text().await.unwrap();
        let response = setup.post(path, &body).send().await.unwrap();
        let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
        // The server counts its replies in their ids.
        let passed = response.text().await.unwrap().replace("-1\"", "-0\"");
        assert_eq!(passed, direct, "{dialect:?}");
        assert!(content_type.starts_with("text/event-stream"), "{content_type}");
    }
}

#[tokio::test]
async fn a_request_keeps_its_unknown_fields() {
    let server = ModelServer::always(ModelReply::text("4")).key(KEY);
    let setup = Setup::new(&server, Dialect::Chat).await;
    let body =
        json!({"model": "any", "messages": [{"role": "user", "content": "2+2?"}], "new": {"a": [1e2]}});
    let response = setup.post("/v1/chat/completions", &body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let sent = &server.requests()[0];
    assert_eq!(sent.body["new"], json!({"a": [1e2]}));
    assert_eq!(sent.body["model"], "real-model");
    assert_eq!(sent.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    let closed = setup.close().await;
    let call = &closed.calls[0];
    assert_eq!((call.model_asked.as_str(), call.model.as_str(), call.status), ("any", "real-model", 200));
    assert_eq!(call.request, body);
    assert_eq!(text_of(Dialect::Chat, call.response.as_ref().unwrap()), "4");
}

#[tokio::test]
async fn every_dialect_is_answered_and_recorded_whole_and_streamed() {
    for dialect in DIALECTS {
        for stream in [false, true] {
            let server = ModelServer::always(ModelReply::text("It is 4.")).key(KEY);
            let setup = Setup::new(&server, dialect).await;
            let (status, _) = setup.ask(dialect, stream).await;
            let closed = setup.close().await;
            assert_eq!((status, closed.summary.turns), (200, 1), "{dialect:?} {:?}", server.refusals());
            let call = &closed.calls[0];
            let response = call.response.as_ref().unwrap();
            assert_eq!(text_of(dialect, response), "It is 4.", "{response}");
            assert_eq!(call.usage.as_ref().unwrap().completion_tokens, 4, "{dialect:?} {stream}");
            assert_eq!((call.streamed, call.tries, &call.error), (stream, 1, &None));
            assert!(call.first_token.unwrap() <= call.latency);
            assert_eq!(server.requests()[0].model(), "real-model");
        }
    }
}

#[tokio::test]
async fn a_chat_stream_has_usage_for_the_record_and_only_on_request_for_the_agent() {
    let server = ModelServer::always(ModelReply::text("It is 4."));
    let setup = Setup::new(&server, Dialect::Chat).await;
    let (_, body) = setup.ask(Dialect::Chat, true).await;
    assert!(!body.contains("prompt_tokens"), "{body}");
    assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
    let (path, mut asking) = question(Dialect::Chat, true);
    asking["stream_options"] = json!({"include_usage": true});
    let body = setup.post(path, &asking).send().await.unwrap().text().await.unwrap();
    assert!(body.contains("prompt_tokens"), "{body}");
    let closed = setup.close().await;
    assert!(closed.calls.iter().all(|call| call.usage.is_some()));
}

#[tokio::test]
async fn compressed_requests_are_accepted() {
    let server = ModelServer::always(ModelReply::text("4"));
    let setup = Setup::new(&server, Dialect::Chat).await;
    let (path, _) = question(Dialect::Chat, false);
    let body = r#"{"model":"asked","messages":[{"role":"user","content":"2+2?"}]}"#.as_bytes();
    let level = flate2::Compression::default();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
    let mut deflate = flate2::write::DeflateEncoder::new(Vec::new(), level);
    gzip.write_all(body).unwrap();
    zlib.write_all(body).unwrap();
    deflate.write_all(body).unwrap();
    let br = "Gz4AwJwHtqO1C6dQ6Db7VKhF9rZkZl+XTLHo1MqPYxwwD7x9nw94hzqfTKawkAVvPkzpKQgwL8sA";
    let too_large = vec![b' '; (64 << 20) + 1];
    for (encoding, bytes, status) in [
        ("gzip", gzip.finish().unwrap(), 200),
        ("deflate", zlib.finish().unwrap(), 200),
        ("deflate", deflate.finish().unwrap(), 200),
        ("br", base64::engine::general_purpose::STANDARD.decode(br).unwrap(), 200),
        ("zstd", zstd::encode_all(body, 0).unwrap(), 200),
        ("zstd", b"not zstd".to_vec(), 400),
        ("zstd", zstd::encode_all(too_large.as_slice(), 0).unwrap(), 413),
        ("rot13", body.to_vec(), 415),
    ] {
        let request = setup.post(path, &Value::Null).header("content-encoding", encoding).body(bytes);
        assert_eq!(request.send().await.unwrap().status(), status, "{encoding}");
    }
    for request in server.requests() {
        assert_eq!(request.body["messages"][0]["content"], "2+2?");
        assert_eq!(request.header("content-encoding"), None);
    }
    assert_eq!(setup.close().await.calls.len(), 5);
}

#[tokio::test]
async fn a_conversation_is_compacted_by_a_server_of_the_same_dialect_alone() {
    let compaction = json!({
        "id": "resp_1", "object": "response.compaction", "created_at": 1, "extra": [1],
        "output": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}],
        "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
    });
    let server = ModelServer::always(ModelReply::raw(200, compaction.to_string()));
    let body = json!({"model": "asked", "input": [{"role": "user", "content": "2+2?"}], "instructions": "x"});
    let setup = Setup::new(&server, Dialect::Responses).await;
    let response = setup.post("/v1/responses/compact", &body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.text().await.unwrap(), compaction.to_string());
    let sent = server.requests().pop().unwrap();
    assert_eq!(sent.path, "/v1/responses/compact");
    let expected = json!({"model": "real-model", "input": body["input"], "instructions": "x"});
    assert_eq!(sent.body, expected, "nothing is asked for that the endpoint does not know");
    let closed = setup.close().await;
    let call = &closed.calls[0];
    assert!(call.compacts && call.error.is_none(), "{call:?}");
    assert_eq!(call.response.as_ref().unwrap()["object"], "response.compaction");
    assert_eq!((closed.summary.usage.prompt_tokens, closed.summary.usage.completion_tokens), (100, 10));

    let setup = Setup::new(&server, Dialect::Messages).await;
    let response = setup.post("/v1/responses/compact", &body).send().await.unwrap();
    assert_eq!(response.status(), 400);
    let refusal: Value = response.json().await.unwrap();
    let message = refusal["error"]["message"].as_str().unwrap();
    assert!(message.contains("cannot compact conversations"), "{message}");
    assert_eq!(setup.close().await.summary.errors[&CallErrorKind::NotTranslatable], 1);
    assert_eq!(server.served(), 1);
}
