//! The scripted model server, as a plain client sees it: whole replies in both dialects, and what goes wrong.

use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder, Response};
use rollout_testkit::{
    Cut, Hold, ModelReply, ModelServer, Reasoning, RequestDialect, Script, TokenCounts, TokenFields,
};
use serde_json::{Value, json};

fn merge(body: &mut Value, extra: &Value) {
    for (name, value) in extra.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
}

fn chat(server: &ModelServer, extra: Value) -> RequestBuilder {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "What is 2+2?"}]});
    merge(&mut body, &extra);
    Client::new().post(format!("{}/chat/completions", server.url())).json(&body)
}

fn messages(server: &ModelServer, extra: Value) -> RequestBuilder {
    let mut body =
        json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "What is 2+2?"}]});
    merge(&mut body, &extra);
    let post = Client::new().post(format!("{}/messages", server.url()));
    post.header("anthropic-version", "2023-06-01").json(&body)
}

async fn value(request: RequestBuilder) -> Value {
    let response = request.send().await.expect("hear from the server");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    response.json().await.expect("read JSON")
}

async fn refused(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("hear from the server");
    (response.status().as_u16(), response.json().await.expect("read JSON"))
}

#[tokio::test]
async fn a_chat_completion_has_all_its_fields() {
    let server = ModelServer::arithmetic();
    insta::assert_json_snapshot!(value(chat(&server, json!({}))).await, @r#"
    {
      "id": "chatcmpl-0",
      "object": "chat.completion",
      "created": 1700000000,
      "model": "m",
      "choices": [
        {
          "index": 0,
          "message": {
            "role": "assistant",
            "content": "4"
          },
          "finish_reason": "stop"
        }
      ],
      "usage": {
        "prompt_tokens": 6,
        "completion_tokens": 2,
        "total_tokens": 8,
        "prompt_tokens_details": {
          "cached_tokens": 0
        },
        "completion_tokens_details": {
          "reasoning_tokens": 0
        }
      }
    }
    "#);
}

#[tokio::test]
async fn a_message_of_anthropic_has_all_its_fields() {
    let server = ModelServer::arithmetic();
    insta::assert_json_snapshot!(value(messages(&server, json!({}))).await, @r#"
    {
      "id": "msg-0",
      "type": "message",
      "role": "assistant",
      "model": "m",
      "content": [
        {
          "type": "text",
          "text": "4"
        }
      ],
      "stop_reason": "end_turn",
      "stop_sequence": null,
      "usage": {
        "input_tokens": 6,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": 2
      }
    }
    "#);
}

#[tokio::test]
async fn models_are_listed_and_other_paths_are_not_found() {
    let server = ModelServer::echo();
    let client = Client::new();
    let list = value(client.get(format!("{}/models", server.url()))).await;
    assert_eq!(list["data"][0]["id"], "scripted");
    let (status, error) = refused(client.post(format!("{}/completions", server.url()))).await;
    assert_eq!((status, &error["error"]["message"]), (404, &json!("unknown path /v1/completions")));
    let (status, _) = refused(client.get(format!("{}/chat/completions", server.url()))).await;
    assert_eq!(status, 405);
    assert_eq!(server.served(), 0);
}

#[tokio::test]
async fn a_sequence_goes_by_requests_and_refuses_when_it_is_over() {
    let server = ModelServer::sequence([ModelReply::text("a"), ModelReply::text("b")]);
    for text in ["a", "b"] {
        let body = value(chat(&server, json!({}))).await;
        assert_eq!(body["choices"][0]["message"]["content"], text);
    }
    let (status, error) = refused(chat(&server, json!({}))).await;
    assert_eq!((status, &error["error"]["message"]), (400, &json!("the script has no reply left")));
}

#[tokio::test]
async fn a_script_of_turns_goes_by_the_conversation() {
    let server = ModelServer::turns([ModelReply::text("first"), ModelReply::text("second")]);
    let say = |role: &str| json!({"role": role, "content": "hm"});
    for (conversation, text) in [
        (json!([say("user")]), "first"),
        (json!([say("user"), say("assistant"), say("user")]), "second"),
        (json!([say("user"), say("assistant"), say("user"), say("assistant"), say("user")]), "second"),
        (json!([say("user")]), "first"),
    ] {
        let body = value(chat(&server, json!({"messages": conversation}))).await;
        assert_eq!(body["choices"][0]["message"]["content"], text);
    }
}

#[tokio::test]
async fn tool_calls_are_written_in_each_dialect() {
    let reply = ModelReply::tool_call("add", &json!({"a": 1})).call("sub", &json!("no json")).call_id("mine");
    let server = ModelServer::always(reply);
    let choice = value(chat(&server, json!({}))).await["choices"][0].take();
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(
        choice["message"]["tool_calls"],
        json!([
            {"id": "call_0_0", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}},
            {"id": "mine", "type": "function", "function": {"name": "sub", "arguments": "no json"}},
        ])
    );
    let body = value(messages(&server, json!({}))).await;
    assert_eq!(body["stop_reason"], "tool_use");
    assert_eq!(
        body["content"][0],
        json!({"type": "tool_use", "id": "call_1_0", "name": "add", "input": {"a": 1}})
    );
}

#[tokio::test]
async fn thoughts_come_in_every_spelling() {
    for (place, field) in [
        (Reasoning::Reasoning, "reasoning"),
        (Reasoning::ReasoningContent, "reasoning_content"),
        (Reasoning::ReasoningDetails, "reasoning_details"),
    ] {
        let server = ModelServer::always(ModelReply::text("4").reasoning(place, "two and two"));
        let message = value(chat(&server, json!({}))).await["choices"][0]["message"].take();
        let thoughts = message[field].as_str().or(message[field][0]["text"].as_str());
        assert_eq!(thoughts, Some("two and two"), "{field}");
        let body = value(messages(&server, json!({}))).await;
        assert_eq!(body["content"][0]["type"], "thinking");
        assert_eq!(body["content"][0]["thinking"], "two and two");
        assert_eq!(body["content"][1]["text"], "4");
    }
}

#[tokio::test]
async fn refusals_and_reasons_to_stop_are_reported() {
    let server = ModelServer::sequence([
        ModelReply::empty().refusal("I will not"),
        ModelReply::empty().refusal("I will not"),
        ModelReply::text("4").finish_reason("length"),
        ModelReply::text("4").finish_reason("length"),
        ModelReply::text("4").finish_reason("content_filter"),
    ]);
    let choice = value(chat(&server, json!({}))).await["choices"][0].take();
    assert_eq!(choice["message"]["refusal"], "I will not");
    assert_eq!(value(messages(&server, json!({}))).await["stop_reason"], "refusal");
    assert_eq!(value(chat(&server, json!({}))).await["choices"][0]["finish_reason"], "length");
    assert_eq!(value(messages(&server, json!({}))).await["stop_reason"], "max_tokens");
    assert_eq!(value(chat(&server, json!({}))).await["choices"][0]["finish_reason"], "content_filter");
}

#[tokio::test]
async fn usage_is_reported_in_the_fields_of_the_dialect() {
    let counts = TokenCounts {
        prompt: 100,
        cached: 60,
        cache_write: 30,
        completion: 20,
        reasoning: 5,
        cost: Some(0.25),
    };
    let server = ModelServer::always(ModelReply::text("4").usage(counts));
    assert_eq!(
        value(chat(&server, json!({}))).await["usage"],
        json!({
            "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 5},
            "cost": 0.25,
        })
    );
    assert_eq!(
        value(messages(&server, json!({}))).await["usage"],
        json!({
            "input_tokens": 10, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30,
            "output_tokens": 20,
        })
    );
    let server = ModelServer::sequence([
        ModelReply::text("4").no_usage(),
        ModelReply::text("4").raw_usage(json!({"prompt_cache_hit_tokens": 3})),
    ]);
    assert_eq!(value(chat(&server, json!({}))).await.get("usage"), None);
    assert_eq!(value(chat(&server, json!({}))).await["usage"]["prompt_cache_hit_tokens"], 3);
}

#[tokio::test]
async fn tokens_are_returned_if_they_are_requested() {
    let reply = ModelReply::text("a b").tokens(&[1, 2, 3], &[(7, -0.5), (8, -1.5)]);
    let server = ModelServer::always(reply.clone());
    let body = value(chat(&server, json!({}))).await;
    assert_eq!((body.get("prompt_token_ids"), body["choices"][0].get("logprobs")), (None, None));
    let body = value(chat(&server, json!({"logprobs": true, "return_token_ids": true}))).await;
    assert_eq!(body["prompt_token_ids"], json!([1, 2, 3]));
    assert_eq!(body["choices"][0]["token_ids"], json!([7, 8]));
    let logprobs = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(logprobs.iter().map(|token| &token["logprob"]).collect::<Vec<_>>(), [-0.5, -1.5]);
    assert_eq!(body["usage"]["completion_tokens"], 2);

    let asks = json!({"logprobs": true, "return_tokens_as_token_ids": true});
    let body = value(chat(&server, asks)).await;
    assert_eq!(body["choices"][0]["logprobs"]["content"][0]["token"], "token_id:7");
    assert_eq!(body.get("prompt_token_ids"), None);

    for (fields, prompt, completion) in [
        (TokenFields::Choice, "/choices/0/prompt_token_ids", "/choices/0/token_ids"),
        (TokenFields::OutputIds, "/prompt_token_ids", "/choices/0/output_ids"),
        (
            TokenFields::Message,
            "/choices/0/message/prompt_token_ids",
            "/choices/0/message/completion_token_ids",
        ),
    ] {
        let server = ModelServer::always(reply.clone().token_fields(fields));
        let body = value(chat(&server, json!({"return_token_ids": true}))).await;
        assert_eq!(body.pointer(prompt), Some(&json!([1, 2, 3])), "{fields:?}");
        assert_eq!(body.pointer(completion), Some(&json!([7, 8])), "{fields:?}");
    }
}

#[tokio::test]
async fn words_are_tokens_where_a_reply_has_none_of_its_own() {
    let server = ModelServer::echo();
    let asks = |messages: Value| {
        chat(&server, json!({"messages": messages, "logprobs": true, "return_token_ids": true}))
    };
    let user = json!({"role": "user", "content": "one two"});
    let first = value(asks(json!([user]))).await;
    let said = json!({"role": "assistant", "content": "one two"});
    let second = value(asks(json!([user, said, user]))).await;
    let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).unwrap();
    let so_far = [ids(&first["prompt_token_ids"]), ids(&first["choices"][0]["token_ids"])].concat();
    assert!(ids(&second["prompt_token_ids"]).starts_with(&so_far));
    assert_eq!(first["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 3);
    assert_eq!(first["usage"]["prompt_tokens"], ids(&first["prompt_token_ids"]).len());
}

#[tokio::test]
async fn fields_and_shapes_that_few_servers_have_can_be_scripted() {
    let experts = json!({"data": "AAE=", "shape": [1, 1, 2], "dtype": "uint8"});
    let reply = ModelReply::parts([json!({"type": "text", "text": "4"})])
        .routed_experts(experts.clone())
        .message_field("annotations", json!([]))
        .field("system_fingerprint", json!("fp"));
    let server =
        ModelServer::sequence([reply, ModelReply::text("4").choices(0), ModelReply::text("4").choices(2)]);
    let body = value(chat(&server, json!({}))).await;
    assert_eq!(body["choices"][0]["routed_experts"], experts);
    assert_eq!(body["choices"][0]["message"]["content"][0]["text"], "4");
    assert_eq!(body["choices"][0]["message"]["annotations"], json!([]));
    assert_eq!(body["system_fingerprint"], "fp");
    assert_eq!(value(chat(&server, json!({}))).await["choices"], json!([]));
    let body = value(chat(&server, json!({}))).await;
    assert_eq!(body["choices"][1]["index"], 1);
}

#[tokio::test]
async fn errors_have_the_shape_of_the_dialect() {
    for (reply, status, openai, anthropic) in [
        (ModelReply::unauthorized(), 401, "authentication_error", "authentication_error"),
        (ModelReply::error(403, "no"), 403, "permission_error", "permission_error"),
        (ModelReply::overlong(), 400, "invalid_request_error", "invalid_request_error"),
        (ModelReply::rate_limited(None), 429, "rate_limit_error", "rate_limit_error"),
        (ModelReply::error(500, "no"), 500, "server_error", "api_error"),
        (ModelReply::error(529, "no"), 529, "server_error", "overloaded_error"),
    ] {
        let server = ModelServer::always(reply);
        let (got, error) = refused(chat(&server, json!({}))).await;
        assert_eq!((got, error["error"]["type"].as_str()), (status, Some(openai)));
        let (got, error) = refused(messages(&server, json!({}))).await;
        assert_eq!((got, error["error"]["type"].as_str()), (status, Some(anthropic)));
        assert_eq!(error["type"], "error");
    }
    let server = ModelServer::always(ModelReply::overlong());
    let (_, error) = refused(chat(&server, json!({}))).await;
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    assert!(error["error"]["message"].as_str().unwrap().contains("maximum context length is"));
}

#[tokio::test]
async fn headers_bodies_and_types_can_be_anything() {
    let server = ModelServer::sequence([
        ModelReply::rate_limited(Some("3")).header("x-request-id", "r1"),
        ModelReply::raw(502, "<html>bad gateway</html>").content_type("text/html"),
        ModelReply::malformed(),
        ModelReply::text("4").content_type("text/plain"),
    ]);
    let send = async || chat(&server, json!({})).send().await.unwrap();
    let header = |response: &Response, name: &str| response.headers()[name].to_str().unwrap().to_owned();
    let limited = send().await;
    assert_eq!(
        (header(&limited, "retry-after"), header(&limited, "x-request-id")),
        ("3".into(), "r1".into())
    );
    let gateway = send().await;
    assert_eq!((gateway.status().as_u16(), header(&gateway, "content-type")), (502, "text/html".into()));
    assert_eq!(gateway.text().await.unwrap(), "<html>bad gateway</html>");
    let malformed = send().await;
    assert_eq!(malformed.status(), 200);
    assert!(serde_json::from_str::<Value>(&malformed.text().await.unwrap()).is_err());
    assert_eq!(header(&send().await, "content-type"), "text/plain");
}

#[tokio::test]
async fn connections_are_cut_where_the_script_says() {
    let server = ModelServer::sequence([
        ModelReply::text("4").cut(Cut::BeforeHeaders),
        ModelReply::text("4").cut(Cut::AfterHeaders),
        ModelReply::text("4").cut(Cut::Midway),
    ]);
    assert!(chat(&server, json!({})).send().await.is_err());
    let mut after_headers = chat(&server, json!({})).send().await.unwrap();
    assert!(after_headers.chunk().await.is_err());
    let mut midway = chat(&server, json!({})).send().await.unwrap();
    let promised = midway.content_length().unwrap();
    let first = midway.chunk().await.unwrap().unwrap();
    assert!(!first.is_empty() && (first.len() as u64) < promised);
    assert!(midway.chunk().await.is_err());
}

#[tokio::test]
async fn a_held_reply_waits_for_the_test_and_notices_when_its_client_left() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let first = tokio::spawn(chat(&server, json!({})).send());
    let second = tokio::spawn(chat(&server, json!({})).send());
    hold.waiting(2).await;
    assert_eq!(server.most_at_once(), 2);
    assert!(!first.is_finished() && !second.is_finished());
    hold.open();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert_eq!(second.await.unwrap().unwrap().status(), 200);

    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let left = tokio::spawn(chat(&server, json!({})).send());
    hold.waiting(1).await;
    left.abort();
    hold.waiting(0).await;
    let stays = tokio::spawn(chat(&server, json!({})).send());
    hold.waiting(1).await;
    hold.pass(1);
    assert_eq!(stays.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_reply_held_midway_has_sent_its_first_half() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held_midway(&hold));
    let mut response = chat(&server, json!({})).send().await.unwrap();
    let mut body = response.chunk().await.unwrap().unwrap().to_vec();
    hold.waiting(1).await;
    assert!(serde_json::from_slice::<Value>(&body).is_err());
    hold.open();
    while let Some(chunk) = response.chunk().await.unwrap() {
        body.extend_from_slice(&chunk);
    }
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["choices"][0]["message"]["content"], "4");
}

#[tokio::test]
async fn a_delayed_reply_does_not_come_before_its_time() {
    let delay = Duration::from_millis(50);
    let server = ModelServer::always(ModelReply::text("4").delay(delay));
    let from = Instant::now();
    value(chat(&server, json!({}))).await;
    assert!(from.elapsed() >= delay);
}

#[tokio::test]
async fn requests_are_kept_with_their_headers() {
    let server = ModelServer::echo();
    value(chat(&server, json!({"seed": 7})).header("X-Session-ID", "s1")).await;
    value(messages(&server, json!({}))).await;
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[0].dialect, requests[1].dialect), (RequestDialect::Chat, RequestDialect::Messages));
    assert_eq!(requests[0].header("x-session-id"), Some("s1"));
    assert_eq!(requests[0].body["seed"], 7);
    assert_eq!(requests[0].last_text(), "What is 2+2?");
    assert_eq!(server.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn malformed_requests_are_rejected_and_reported_to_the_test() {
    let server = ModelServer::echo();
    let unanswered = json!({"messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
    ]});
    let (status, error) = refused(chat(&server, unanswered)).await;
    assert_eq!((status, &error["error"]["type"]), (400, &json!("invalid_request_error")));
    let (status, error) = refused(messages(&server, json!({"max_tokens": null}))).await;
    assert_eq!((status, &error["type"]), (400, &json!("error")));
    let url = format!("{}/chat/completions", server.url());
    let (status, _) =
        refused(Client::new().post(&url).header("content-type", "application/json").body("{")).await;
    assert_eq!(status, 400);
    let (status, _) = refused(Client::new().post(&url).body("{}")).await;
    assert_eq!(status, 415);
    let url = format!("{}/messages", server.url());
    let (status, error) = refused(Client::new().post(&url).json(&json!({}))).await;
    assert_eq!((status, &error["error"]["message"]), (400, &json!("anthropic-version: header is required")));
    assert_eq!(server.refusals().len(), 5);
    assert_eq!(server.requests().len(), 5);
}

#[tokio::test]
async fn a_server_with_a_key_rejects_other_clients() {
    let server = ModelServer::echo().key("right");
    let status = async |request: RequestBuilder| request.send().await.unwrap().status().as_u16();
    assert_eq!(status(chat(&server, json!({}))).await, 401);
    assert_eq!(status(chat(&server, json!({})).bearer_auth("wrong")).await, 401);
    assert_eq!(status(chat(&server, json!({})).header("authorization", "right")).await, 401);
    assert_eq!(status(chat(&server, json!({})).bearer_auth("right")).await, 200);
    assert_eq!(status(messages(&server, json!({}))).await, 401);
    assert_eq!(status(messages(&server, json!({})).header("x-api-key", "right")).await, 200);
    let open = ModelServer::echo();
    assert_eq!(status(chat(&open, json!({}))).await, 200);
    assert_eq!(status(chat(&open, json!({})).header("authorization", "Bearer ")).await, 401);
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let server = ModelServer::echo();
    let client = Client::new();
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for _ in 0..10 {
        let request = client.post(format!("{}/chat/completions", server.url())).json(&body);
        value(request).await;
    }
    assert_eq!((server.connections(), server.served()), (1, 10));
}

#[tokio::test]
async fn a_fixed_script_goes_by_turns_and_keeps_no_requests() {
    let server = ModelServer::start(Script::named("fixed-tools").unwrap());
    let user = json!({"role": "user", "content": "add"});
    let mut conversation = vec![user];
    for turn in 0..5 {
        let message =
            value(chat(&server, json!({"messages": conversation}))).await["choices"][0]["message"].take();
        let call = &message["tool_calls"][0];
        assert_eq!(call["function"]["name"], "add");
        let id = call["id"].clone();
        assert_eq!(id, format!("call_{turn}_0"));
        conversation.push(message);
        conversation.push(json!({"role": "tool", "tool_call_id": id, "content": "1"}));
    }
    let last = value(chat(&server, json!({"messages": conversation}))).await;
    assert_eq!(last["choices"][0]["message"]["content"], "done");
    assert_eq!(value(messages(&server, json!({}))).await["content"][0]["type"], "tool_use");
    assert_eq!((server.served(), server.requests().len()), (7, 0));
}

#[tokio::test]
async fn the_named_scripts_play_their_parts() {
    let text = async |server: &ModelServer, messages: Value| {
        let body = value(chat(server, json!({"messages": messages}))).await;
        body["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let assistant = |text: &str| json!({"role": "assistant", "content": text});

    let guess = ModelServer::start(Script::guess());
    assert_eq!(text(&guess, json!([user("Guess my number.")])).await, "50");
    let reported = json!([user("Guess."), assistant("50"), user("higher"), assistant("75"), user("Lower!")]);
    assert_eq!(text(&guess, reported).await, "62");

    let judge = ModelServer::start(Script::judge());
    let asked = |truth: &str, response: &str| {
        json!([user(&format!(
            "Question:\n```\nq\n```\nTruth:\n```\n{truth}\n```\nResponse:\n```\n{response}\n```\n"
        ))])
    };
    assert_eq!(text(&judge, asked("4", "It is 4")).await, "yes");
    assert_eq!(text(&judge, asked("4", "It is 5")).await, "no");

    let tools = ModelServer::start(Script::tools());
    let offered = json!({"tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]});
    let body = value(chat(&tools, offered)).await;
    assert_eq!(body["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "bash");
    assert_eq!(text(&tools, json!([user("no tools here")])).await, "done");
}
