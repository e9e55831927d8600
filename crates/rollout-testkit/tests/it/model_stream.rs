//! The scripted model server, as a plain client sees it: streams in both dialects.

use reqwest::Client;
use rollout_testkit::{
    Cut, Hold, ModelReply, ModelServer, Reasoning, Script, Split, TokenCounts, TokenFields,
};
use serde_json::{Value, json};

/// The body of a stream as it came in pieces.
async fn pieces(server: &ModelServer, path: &str, extra: &Value) -> Vec<Vec<u8>> {
    let mut response = send(server, path, extra).await;
    let mut pieces = Vec::new();
    while let Some(piece) = response.chunk().await.expect("read a piece") {
        pieces.push(piece.to_vec());
    }
    pieces
}

async fn send(server: &ModelServer, path: &str, extra: &Value) -> reqwest::Response {
    let mut body = json!({
        "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stream": true,
    });
    for (name, value) in extra.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let request = Client::new().post(format!("{}/{path}", server.url()));
    let response = request
        .header("anthropic-version", "2023-06-01")
        .json(&body)
        .send()
        .await
        .expect("hear from the server");
    assert_eq!(response.status(), 200);
    assert!(
        response.headers()["content-type"].to_str().expect("read a header").starts_with("text/event-stream")
    );
    response
}

async fn text(server: &ModelServer, path: &str, extra: Value) -> String {
    String::from_utf8(pieces(server, path, &extra).await.concat()).expect("read text")
}

/// The chunks of a chat stream, which has to end with its mark.
async fn chunks(server: &ModelServer, extra: Value) -> Vec<Value> {
    let text = text(server, "chat/completions", extra).await;
    let text = text.strip_suffix("data: [DONE]\n\n").expect("a stream ends with its mark");
    let datas = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    datas.map(|data| serde_json::from_str(data).expect("read JSON")).collect()
}

/// The events of a messages stream, each of which has to be named as its data is.
async fn events(server: &ModelServer) -> Vec<Value> {
    let text = text(server, "messages", json!({})).await;
    let events = text.trim_end().split("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').expect("an event has two lines");
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").unwrap_or(data)).expect("read JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    events.collect()
}

fn joined(chunks: &[Value], pointer: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk.pointer(pointer)?.as_str()).collect()
}

#[tokio::test]
async fn a_chat_stream_has_all_its_parts() {
    let server = ModelServer::always(ModelReply::text("two words"));
    insta::assert_snapshot!(text(&server, "chat/completions", json!({})).await, @r#"
    data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

    data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":"two "},"finish_reason":null}]}

    data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":"words"},"finish_reason":null}]}

    data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

    data: [DONE]
    "#);
}

#[tokio::test]
async fn a_messages_stream_has_all_its_parts() {
    let server = ModelServer::always(ModelReply::text("two words"));
    insta::assert_snapshot!(text(&server, "messages", json!({})).await, @r#"
    event: message_start
    data: {"message":{"id":"msg-0","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":4,"cache_read_input_tokens":0,"cache_creation_input_tokens":0,"output_tokens":1}},"type":"message_start"}

    event: ping
    data: {"type":"ping"}

    event: content_block_start
    data: {"content_block":{"type":"text","text":""},"index":0,"type":"content_block_start"}

    event: content_block_delta
    data: {"delta":{"type":"text_delta","text":"two "},"index":0,"type":"content_block_delta"}

    event: content_block_delta
    data: {"delta":{"type":"text_delta","text":"words"},"index":0,"type":"content_block_delta"}

    event: content_block_stop
    data: {"index":0,"type":"content_block_stop"}

    event: message_delta
    data: {"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":3},"type":"message_delta"}

    event: message_stop
    data: {"type":"message_stop"}
    "#);
}

#[tokio::test]
async fn usage_is_streamed_to_those_who_ask() {
    let counts = TokenCounts { prompt: 5, cached: 2, completion: 7, ..TokenCounts::default() };
    let server = ModelServer::always(ModelReply::text("4").usage(counts));
    let without = chunks(&server, json!({})).await;
    assert!(without.iter().all(|chunk| chunk.get("usage").is_none()));
    let with = chunks(&server, json!({"stream_options": {"include_usage": true}})).await;
    let (last, others) = with.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], 12);
    assert!(others.iter().all(|chunk| chunk["usage"].is_null()));

    let events = events(&server).await;
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 3);
    assert_eq!(events[0]["message"]["usage"]["cache_read_input_tokens"], 2);
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["usage"]["output_tokens"], 7);
}

#[tokio::test]
async fn tool_calls_are_streamed_in_pieces() {
    let reply = ModelReply::text("calling").call("add", &json!({"a": 1, "b": "é"})).call("sub", &json!({}));
    let server = ModelServer::always(reply);
    let chunks = chunks(&server, json!({})).await;
    let calls: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0")).collect();
    let of = |index: u64| calls.iter().filter(move |call| call["index"] == index);
    let arguments = |index| {
        let pieces: Vec<&str> = of(index).filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert!(pieces.len() > 2);
        pieces.concat()
    };
    assert_eq!(arguments(0), r#"{"a":1,"b":"é"}"#);
    assert_eq!(arguments(1), "{}");
    let named: Vec<_> = calls.iter().filter_map(|call| call["function"]["name"].as_str()).collect();
    assert_eq!(named, ["add", "sub"]);
    assert_eq!(calls.iter().filter(|call| call.get("id").is_some()).count(), 2);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    let events = events(&server).await;
    let started: Vec<_> =
        events.iter().filter_map(|event| event.pointer("/content_block/name")?.as_str()).collect();
    assert_eq!(started, ["add", "sub"]);
    let first: Vec<Value> = events.iter().filter(|event| event["index"] == 1).cloned().collect();
    assert_eq!(joined(&first, "/delta/partial_json"), r#"{"a":1,"b":"é"}"#);
}

#[tokio::test]
async fn thoughts_and_refusals_are_streamed() {
    for (place, pointer) in [
        (Reasoning::Reasoning, "/choices/0/delta/reasoning"),
        (Reasoning::ReasoningContent, "/choices/0/delta/reasoning_content"),
        (Reasoning::ReasoningDetails, "/choices/0/delta/reasoning_details/0/text"),
    ] {
        let server = ModelServer::always(ModelReply::text("4").reasoning(place, "two and two"));
        let chunks = chunks(&server, json!({})).await;
        assert_eq!(joined(&chunks, pointer), "two and two");
        assert_eq!(joined(&chunks, "/choices/0/delta/content"), "4");
    }
    let server = ModelServer::always(ModelReply::text("4").reasoning(Reasoning::Reasoning, "two and two"));
    let events = events(&server).await;
    assert_eq!(joined(&events, "/delta/thinking"), "two and two");
    assert!(!joined(&events, "/delta/signature").is_empty());
    let server = ModelServer::always(ModelReply::empty().refusal("I will not"));
    assert_eq!(joined(&chunks(&server, json!({})).await, "/choices/0/delta/refusal"), "I will not");
}

#[tokio::test]
async fn tokens_are_streamed_with_the_words() {
    let asks = json!({"logprobs": true, "return_token_ids": true});
    let reply = ModelReply::text("a b").tokens(&[1, 2], &[(7, -0.5), (8, -1.0), (9, -1.5)]);
    for (fields, prompt, completion) in [
        (TokenFields::Vllm, "/prompt_token_ids", "/choices/0/token_ids"),
        (TokenFields::Choice, "/choices/0/prompt_token_ids", "/choices/0/token_ids"),
        (TokenFields::OutputIds, "/prompt_token_ids", "/choices/0/output_ids"),
        (TokenFields::Message, "/choices/0/delta/prompt_token_ids", "/choices/0/delta/completion_token_ids"),
    ] {
        let server = ModelServer::always(reply.clone().token_fields(fields));
        let chunks = chunks(&server, asks.clone()).await;
        assert_eq!(chunks[0].pointer(prompt), Some(&json!([1, 2])), "{fields:?}");
        assert!(chunks[1..].iter().all(|chunk| chunk.pointer(prompt).is_none()));
        let all = |pointer: &str| -> Vec<Value> {
            chunks
                .iter()
                .flat_map(|chunk| chunk.pointer(pointer).unwrap().as_array().unwrap().clone())
                .collect()
        };
        assert_eq!(all(completion), [7, 8, 9]);
        let logprobs = all("/choices/0/logprobs/content");
        assert_eq!(logprobs.iter().map(|token| &token["logprob"]).collect::<Vec<_>>(), [-0.5, -1.0, -1.5]);
    }
}

#[tokio::test]
async fn streams_are_split_in_the_middle_of_lines_and_characters() {
    for path in ["chat/completions", "messages"] {
        // Ids count the requests of a server, so each body needs one of its own.
        let whole = ModelServer::always(ModelReply::text("é 漢字 🎲").split(Split::Whole));
        let expected = pieces(&whole, path, &json!({})).await.concat();
        assert!(expected.windows(4).any(|bytes| bytes == "🎲".as_bytes()));
        let mut split_a_character = false;
        for size in 1..8 {
            let reply = ModelReply::text("é 漢字 🎲").split(Split::Bytes(size));
            let server = ModelServer::always(reply);
            let pieces = pieces(&server, path, &json!({})).await;
            split_a_character |= pieces.iter().any(|piece| std::str::from_utf8(piece).is_err());
            assert_eq!(pieces.concat(), expected, "{path} by {size}");
        }
        assert!(split_a_character);
    }
}

#[tokio::test]
async fn lines_may_end_with_carriage_returns_and_comments_may_come_between() {
    let server = ModelServer::always(ModelReply::text("4").carriage_returns().comments());
    let text = text(&server, "chat/completions", json!({})).await;
    assert!(text.starts_with(": waiting\r\n\r\ndata: {"));
    assert!(text.ends_with("data: [DONE]\r\n\r\n"));
    assert_eq!(text.matches('\n').count(), text.matches("\r\n").count());
}

#[tokio::test]
async fn a_stream_is_cut_where_the_script_says() {
    let server = ModelServer::always(ModelReply::text("one two three four").cut(Cut::Midway));
    let mut response = send(&server, "chat/completions", &json!({})).await;
    let mut text = String::new();
    let cut = loop {
        match response.chunk().await {
            Ok(Some(piece)) => text.push_str(std::str::from_utf8(&piece).unwrap()),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(cut);
    assert!(text.contains("one ") && !text.contains("four"));
}

#[tokio::test]
async fn a_stream_reports_an_error_in_the_middle() {
    let server = ModelServer::always(ModelReply::text("one two three four").fails_midway("out of memory"));
    let chat = text(&server, "chat/completions", json!({})).await;
    assert!(chat.contains("one ") && !chat.contains("four") && !chat.contains("[DONE]"));
    let last = chat.trim_end().rsplit_once("data: ").unwrap().1;
    assert_eq!(serde_json::from_str::<Value>(last).unwrap()["error"]["message"], "out of memory");
    let last = events(&server).await.pop().unwrap();
    assert_eq!(last["type"], "error");
    assert_eq!(last["error"]["type"], "overloaded_error");
}

#[tokio::test]
async fn a_stream_waits_in_the_middle_until_the_test_lets_it_go() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("one two three four").held_midway(&hold));
    let mut response = send(&server, "chat/completions", &json!({})).await;
    hold.waiting(1).await;
    let first = response.chunk().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: {"));
    // A client that closes its connection in the middle of a stream is noticed too.
    drop(response);
    hold.waiting(0).await;
}

#[tokio::test]
async fn errors_are_not_streamed() {
    let server = ModelServer::always(ModelReply::rate_limited(Some("1")));
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true});
    let request = Client::new().post(format!("{}/chat/completions", server.url())).json(&body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["content-type"], "application/json");
}

#[tokio::test]
async fn a_fixed_script_streams_too() {
    let server = ModelServer::start(Script::fixed_turns([ModelReply::text("one two")]));
    let chunks = chunks(&server, json!({"stream_options": {"include_usage": true}})).await;
    assert_eq!(joined(&chunks, "/choices/0/delta/content"), "one two");
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 3);
    assert_eq!(joined(&events(&server).await, "/delta/text"), "one two");
}
