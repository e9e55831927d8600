//! Responses that come in pieces.

use rollout::model::{ErrorKind, Message, Response};
use rollout_testkit::{Cut, ModelReply, ModelServer, Reasoning, Split};
use serde_json::json;

use super::support::{add, ask, converse_with, messages_dialect, model_with};

/// Everything but what differs between two responses.
fn said(response: Response) -> Response {
    Response { id: String::new(), created: 0, ..response }
}

fn replies() -> Vec<ModelReply> {
    vec![
        ModelReply::text("Grüße an alle 🦀🦀, und zwar\nviele."),
        ModelReply::text("4").reasoning(Reasoning::Reasoning, "two and two"),
        ModelReply::text("4").reasoning(Reasoning::ReasoningContent, "two and two"),
        ModelReply::text("4").reasoning(Reasoning::ReasoningDetails, "two and two"),
        ModelReply::tool_call("add", &json!({"a": 1, "b": "zwei é"}))
            .call_id("x")
            .call("add", &json!({}))
            .call_id("y"),
        ModelReply::text("I call.").call("add", &json!("{not json")).call_id("x"),
        ModelReply::empty().refusal("I will not do that."),
        ModelReply::text("cut").finish_reason("length"),
        ModelReply::text("4").field("system_fingerprint", json!("fp")),
    ]
}

#[tokio::test]
async fn a_streamed_response_is_the_same_as_a_whole_one() {
    let splits = [Split::Events, Split::Whole, Split::Bytes(1), Split::Bytes(7)];
    for messages in [false, true] {
        let streamed = |reply: ModelReply| {
            let split = splits.iter().map(move |split| reply.clone().split(split.clone()));
            split.collect::<Vec<_>>()
        };
        let replies = replies().into_iter().flat_map(|reply| {
            let lines = reply.clone().carriage_returns().comments();
            [vec![reply.clone()], streamed(reply), vec![lines]].concat()
        });
        let server = ModelServer::sequence(replies.collect::<Vec<_>>());
        let model = |stream: bool| {
            model_with(&server, |config| {
                config.stream = stream;
                config.token_ids = !messages;
                if messages {
                    messages_dialect(config);
                }
            })
        };
        let (whole, streamed) = (model(false), model(true));
        for _ in self::replies() {
            let ask =
                async |model| said(converse_with(model, &[Message::user("hi")], &[add()]).await.unwrap());
            let expected = ask(&whole).await;
            for split in 0..=splits.len() {
                assert_eq!(ask(&streamed).await, expected, "{messages} {split}");
            }
        }
    }
}

#[tokio::test]
async fn a_server_may_ignore_whether_streaming_is_requested() {
    let whole =
        json!({"choices": [{"message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}]});
    let server = ModelServer::sequence([
        ModelReply::raw(200, whole.to_string()),
        ModelReply::raw(
            200,
            "data: {\"choices\":[{\"delta\":{\"content\":\"streamed\"}}]}\n\ndata: [DONE]\n\n",
        )
        .content_type("text/event-stream; charset=utf-8"),
    ]);
    let streams = model_with(&server, |config| config.stream = true);
    assert_eq!(ask(&streams).await.unwrap().message.text(), "whole");
    let does_not = model_with(&server, |_| {});
    assert_eq!(ask(&does_not).await.unwrap().message.text(), "streamed");
}

/// A server that sends these events.
fn events(events: &[&str]) -> ModelServer {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    ModelServer::always(ModelReply::raw(200, body).content_type("text/event-stream"))
}

#[tokio::test]
async fn calls_are_distinguished_by_index_or_by_id() {
    let cases: [&[&str]; 4] = [
        &[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}"#,
            r#"{"index":1,"id":"b","function":{"name":"g","arguments":"["}}"#,
            r#"{"index":0,"function":{"arguments":"}"}}"#,
            r#"{"index":1,"function":{"arguments":"]"}}"#,
        ],
        // Every call has the index 0.
        &[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}"#,
            r#"{"index":0,"id":"b","function":{"name":"g","arguments":"[]"}}"#,
        ],
        // No call has an index.
        &[
            r#"{"id":"a","function":{"name":"f","arguments":"{}"}}"#,
            r#"{"id":"b","function":{"name":"g","arguments":"["}}"#,
            r#"{"function":{"arguments":"]"}}"#,
        ],
        // Name and id are repeated.
        &[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}"#,
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"}"}}"#,
            r#"{"index":18446744073709551615,"id":"b","function":{"name":"g","arguments":"[]"}}"#,
        ],
    ];
    for calls in cases {
        let mut pieces: Vec<String> = calls
            .iter()
            .map(|call| format!(r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{call}]}}}}]}}"#))
            .collect();
        pieces.push(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#.to_owned());
        let server = events(&pieces.iter().map(String::as_str).collect::<Vec<_>>());
        let response = ask(&model_with(&server, |config| config.stream = true)).await.unwrap();
        let calls: Vec<_> = response
            .message
            .tool_calls
            .iter()
            .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.as_str()))
            .collect();
        assert_eq!(calls, [("a", "f", "{}"), ("b", "g", "[]")]);
    }
}

#[tokio::test]
async fn a_stream_without_its_last_word_counts_if_the_model_was_done() {
    let server = events(&[r#"{"choices":[{"delta":{"content":"4"},"finish_reason":"stop"}]}"#]);
    let response = ask(&model_with(&server, |config| config.stream = true)).await.unwrap();
    assert_eq!(response.message.text(), "4");
}

#[tokio::test]
async fn an_incomplete_stream_is_retried_from_the_start() {
    for messages in [false, true] {
        for cut in [Cut::BeforeHeaders, Cut::AfterHeaders, Cut::Midway] {
            let server = ModelServer::sequence([
                ModelReply::text("one two three").cut(cut),
                ModelReply::text("all of it"),
            ]);
            let model = model_with(&server, |config| {
                config.stream = true;
                if messages {
                    messages_dialect(config);
                }
            });
            assert_eq!(ask(&model).await.unwrap().message.text(), "all of it", "{cut:?}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_just_ends_is_cut_too() {
    let server = events(&[r#"{"choices":[{"delta":{"content":"4"},"finish_reason":null}]}"#, r#"{"choi"#]);
    let model = model_with(&server, |config| {
        config.stream = true;
        config.max_retries = 0;
    });
    let error = ask(&model).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidModelResponse);
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"4\"}}]}\n\ndata: {\"choi";
    let server = ModelServer::always(ModelReply::raw(200, body).content_type("text/event-stream"));
    let model = model_with(&server, |config| config.max_retries = 0);
    let error = ask(&model).await.unwrap_err();
    assert_eq!(error.chain(), "ModelError -> ConnectionError");
}

#[tokio::test]
async fn an_error_in_the_middle_of_a_stream_is_like_one_before_it() {
    for messages in [false, true] {
        let server = ModelServer::sequence([
            ModelReply::text("one two").fails_midway("overloaded"),
            ModelReply::text("all of it"),
        ]);
        let model = model_with(&server, |config| {
            config.stream = true;
            if messages {
                messages_dialect(config);
            }
        });
        assert_eq!(ask(&model).await.unwrap().message.text(), "all of it");
    }
    for (event, kind) in [
        (r#"{"error":{"code":401,"message":"who?"}}"#, ErrorKind::Unauthorized),
        (r#"{"error":{"code":"400","message":"bad"}}"#, ErrorKind::Model),
        (
            r#"{"error":{"type":"invalid_request_error","message":"prompt is too long"}}"#,
            ErrorKind::OverlongPrompt,
        ),
    ] {
        let server = events(&[r#"{"choices":[{"delta":{"content":"4"}}]}"#, event]);
        let error = ask(&model_with(&server, |config| config.stream = true)).await.unwrap_err();
        assert_eq!(error.kind, kind);
        assert_eq!(server.served(), 1);
    }
}

#[tokio::test]
async fn an_event_that_is_called_an_error_is_one() {
    let body = "event: error\ndata: {\"message\":\"no room\",\"code\":503}\n\n";
    let server = ModelServer::always(ModelReply::raw(200, body).content_type("text/event-stream"));
    let error = ask(&model_with(&server, |config| config.max_retries = 0)).await.unwrap_err();
    assert_eq!(error.chain(), "ModelError -> InternalServerError");
    assert!(error.to_string().ends_with("503 Service Unavailable: no room"), "{error}");
}
