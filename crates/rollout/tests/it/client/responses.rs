//! What becomes of the answers of servers.

use rollout::model::{Content, ErrorKind, FinishReason, Message, TokenUsage, client::Prices};
use rollout_testkit::{ModelReply, ModelServer, Reasoning, TokenCounts, TokenFields};
use serde_json::{Value, json};

use super::support::{add, ask, converse, converse_with, last, messages_dialect, model, model_with, sampled};

#[tokio::test]
async fn a_response_has_its_model_its_message_and_its_finish_reason() {
    let server = ModelServer::always(ModelReply::text("4").field("system_fingerprint", json!("fp")));
    let response = ask(&model(&server)).await.unwrap();
    assert_eq!(response.message, Message::assistant("4"));
    assert_eq!(response.finish_reason, Some(FinishReason::Stop));
    assert_eq!(response.model, "m");
    assert_eq!(response.created, 1_700_000_000);
    assert!(response.id.starts_with("chatcmpl"));
    assert_eq!(Value::Object(response.extra), json!({"system_fingerprint": "fp"}));
    assert_eq!(response.tokens, None);
}

#[tokio::test]
async fn every_reason_to_end_is_understood_or_kept() {
    let reasons = [
        (json!("stop"), Some(FinishReason::Stop), false),
        (json!("length"), Some(FinishReason::Length), true),
        (json!("tool_calls"), Some(FinishReason::ToolCalls), false),
        (json!("content_filter"), Some(FinishReason::ContentFilter), false),
        (
            json!("insufficient_system_resource"),
            Some(FinishReason::Other("insufficient_system_resource".into())),
            false,
        ),
        (json!(null), None, false),
    ];
    let replies = reasons.iter().map(|(wire, ..)| ModelReply::text("4").finish_reason(wire.clone()));
    let server = ModelServer::sequence(replies.collect::<Vec<_>>());
    let model = model(&server);
    for (wire, reason, is_truncated) in reasons {
        let response = ask(&model).await.unwrap();
        assert_eq!((response.is_truncated(), response.finish_reason), (is_truncated, reason), "{wire}");
    }
}

#[tokio::test]
async fn anthropics_reasons_to_end_have_the_names_of_the_others() {
    let reasons = [
        ("stop", FinishReason::Stop),
        ("stop_sequence", FinishReason::Stop),
        ("length", FinishReason::Length),
        ("model_context_window_exceeded", FinishReason::Length),
        ("tool_calls", FinishReason::ToolCalls),
        ("content_filter", FinishReason::ContentFilter),
        ("pause_turn", FinishReason::Other("pause_turn".into())),
    ];
    let server =
        ModelServer::sequence(reasons.clone().map(|(wire, _)| ModelReply::text("4").finish_reason(wire)));
    let model = model_with(&server, messages_dialect);
    for (wire, reason) in reasons {
        assert_eq!(ask(&model).await.unwrap().finish_reason, Some(reason), "{wire}");
    }
}

#[tokio::test]
async fn thoughts_are_found_under_every_name_and_sent_back_under_the_same() {
    for (place, field) in
        [(Reasoning::Reasoning, "reasoning"), (Reasoning::ReasoningContent, "reasoning_content")]
    {
        let server = ModelServer::always(ModelReply::text("4").reasoning(place, "two and two"));
        let model = model(&server);
        let response = ask(&model).await.unwrap();
        assert_eq!(response.message.reasoning_content.as_deref(), Some("two and two"));
        converse(&model, &[Message::user("hi"), response.message, Message::user("sure?")]).await.unwrap();
        let sent = &last(&server).messages()[1].clone();
        assert_eq!(sent[field], "two and two");
        assert_eq!(sent.as_object().unwrap().len(), 3, "{sent}");
    }
}

#[tokio::test]
async fn a_list_of_thoughts_is_read_and_sent_back_as_it_is() {
    let server =
        ModelServer::always(ModelReply::text("4").reasoning(Reasoning::ReasoningDetails, "two and two"));
    let model = model(&server);
    let response = ask(&model).await.unwrap();
    assert_eq!(response.message.reasoning_content.as_deref(), Some("two and two"));
    let details = response.message.extra["reasoning_details"].clone();
    converse(&model, &[Message::user("hi"), response.message, Message::user("sure?")]).await.unwrap();
    assert_eq!(last(&server).messages()[1]["reasoning_details"], details);
}

#[tokio::test]
async fn signed_thoughts_go_back_to_anthropic_unchanged_and_first() {
    let reply = ModelReply::tool_call("add", &json!({"a": 1})).reasoning(Reasoning::Reasoning, "two and two");
    let server = ModelServer::always(reply);
    let model = model_with(&server, messages_dialect);
    let response = converse_with(&model, &[Message::user("hi")], &[add()]).await.unwrap();
    assert_eq!(response.message.reasoning_content.as_deref(), Some("two and two"));
    let thought = response.message.thinking_blocks.clone().unwrap()[0].clone();
    assert!(thought["signature"].is_string(), "{thought}");
    let answer = Message::tool(response.message.tool_calls[0].id.clone(), "1");
    converse_with(&model, &[Message::user("hi"), response.message, answer], &[add()]).await.unwrap();
    let content = &last(&server).messages()[1]["content"].clone();
    assert_eq!(content[0], thought);
    assert_eq!(content[1]["type"], "tool_use");
}

#[tokio::test]
async fn tool_calls_are_flat_and_each_has_a_name_for_its_answer() {
    let reply = ModelReply::tool_call("add", &json!({"a": 1}))
        .call_id("")
        .call("add", &json!("{not json"))
        .call_id("x");
    let server = ModelServer::always(reply);
    let response = converse_with(&model(&server), &[Message::user("hi")], &[add()]).await.unwrap();
    let calls = &response.message.tool_calls;
    assert_eq!((calls[0].name.as_str(), calls[0].arguments.as_str()), ("add", r#"{"a":1}"#));
    assert_eq!((calls[1].id.as_str(), calls[1].arguments.as_str()), ("x", "{not json"));
    assert!(calls[0].id.starts_with("call_"), "{calls:?}");
    assert_eq!(response.finish_reason, Some(FinishReason::ToolCalls));
    assert_eq!(response.message.content, None);
}

#[tokio::test]
async fn parts_refusals_and_unknown_fields_stay_with_the_message() {
    let parts = [json!({"type": "text", "text": "a"}), json!({"type": "text", "text": "b"})];
    let server = ModelServer::sequence([
        ModelReply::parts(parts.clone()),
        ModelReply::empty().refusal("I will not."),
        ModelReply::text("4")
            .message_field("annotations", json!([{"url": "u"}]))
            .message_field("audio", json!(null)),
    ]);
    let model = model(&server);
    assert_eq!(ask(&model).await.unwrap().message.content, Some(Content::Parts(parts.into())));
    assert_eq!(ask(&model).await.unwrap().message.extra["refusal"], "I will not.");
    let known = ask(&model).await.unwrap().message.extra;
    assert_eq!(Value::Object(known), json!({"annotations": [{"url": "u"}]}));
}

#[tokio::test]
async fn blocks_of_anthropics_own_tools_stay_parts_and_go_back() {
    let parts = [
        json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
        json!({"type": "text", "text": "found"}),
    ];
    let server = ModelServer::always(ModelReply::parts(parts.clone()));
    let response = ask(&model_with(&server, messages_dialect)).await.unwrap();
    assert_eq!(response.message.content, Some(Content::Parts(parts.into())));
    assert_eq!(response.message.text(), "found");
}

#[tokio::test]
async fn an_empty_response_has_its_own_error() {
    let replies = [
        (ModelReply::empty(), true),
        (ModelReply::text(""), true),
        (ModelReply::parts([json!({"type": "text", "text": ""})]), true),
        (ModelReply::empty().refusal("no"), false),
        (ModelReply::empty().reasoning(Reasoning::Reasoning, "hm"), false),
        (ModelReply::empty().reasoning(Reasoning::ReasoningContent, "hm"), false),
        (ModelReply::empty().reasoning(Reasoning::ReasoningDetails, "hm"), false),
        (ModelReply::empty().call("add", &json!({})), false),
        (
            ModelReply::empty().usage(TokenCounts { completion: 5, reasoning: 5, ..TokenCounts::default() }),
            false,
        ),
        (ModelReply::parts([json!({"type": "image", "source": {}})]), false),
    ];
    let server = ModelServer::sequence(replies.clone().map(|(reply, _)| reply));
    let model = model(&server);
    for (reply, is_empty) in &replies {
        let kind = ask(&model).await.err().map(|error| error.kind);
        assert_eq!(kind, is_empty.then_some(ErrorKind::EmptyModelResponse), "{reply:?}");
    }
    assert_eq!(server.served(), replies.len());
    let server = ModelServer::always(ModelReply::empty());
    let error = ask(&model_with(&server, messages_dialect)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::EmptyModelResponse);
}

#[tokio::test]
async fn a_response_must_have_exactly_one_choice() {
    for (choices, words) in [(0, "found none"), (2, "found 2 choices")] {
        for stream in [false, true] {
            let server = ModelServer::always(ModelReply::text("4").choices(choices));
            let error = ask(&model_with(&server, |config| config.stream = stream)).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidModelResponse);
            assert!(error.message.contains(words) || stream, "{error}");
        }
    }
}

#[tokio::test]
async fn a_response_that_is_not_json_is_malformed_and_is_shown() {
    let server = ModelServer::sequence([
        ModelReply::raw(200, "<html>a proxy's\n page</html>").content_type("text/html"),
        ModelReply::raw(200, "[1]"),
        ModelReply::raw(200, ""),
    ]);
    let model = model(&server);
    let html = ask(&model).await.unwrap_err();
    assert_eq!(html.kind, ErrorKind::InvalidModelResponse);
    assert!(html.message.ends_with(": <html>a proxy's page</html>"), "{html}");
    for _ in 0..2 {
        assert_eq!(ask(&model).await.unwrap_err().kind, ErrorKind::InvalidModelResponse);
    }
}

fn usage(counts: [u64; 5], cost: Option<f64>) -> TokenUsage {
    let [prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens, reasoning_tokens] = counts;
    TokenUsage { prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens, reasoning_tokens, cost }
}

#[tokio::test]
async fn usage_is_normalised_across_servers() {
    let reported = [
        (json!({"prompt_tokens": 10, "completion_tokens": 5}), usage([10, 0, 0, 5, 0], None)),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 3}}),
            usage([6, 4, 0, 5, 3], None),
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.25, "prompt_tokens_details": null,
                "completion_tokens_details": {"reasoning_tokens": null}}),
            usage([10, 0, 0, 5, 0], Some(0.25)),
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 7,
                "prompt_cache_miss_tokens": 3}),
            usage([3, 7, 0, 5, 0], None),
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2}}),
            usage([4, 4, 2, 5, 0], None),
        ),
        // Reasoning beside the completion.
        (
            json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 22,
                "completion_tokens_details": {"reasoning_tokens": 7}}),
            usage([10, 0, 0, 12, 7], None),
        ),
        // More from the cache than there is.
        (
            json!({"prompt_tokens": 3.0, "completion_tokens": "5", "prompt_tokens_details": {"cached_tokens": 9}}),
            usage([0, 3, 0, 5, 0], None),
        ),
    ];
    let replies = reported.iter().map(|(wire, _)| ModelReply::text("4").raw_usage(wire.clone()));
    let server = ModelServer::sequence(replies.chain([ModelReply::text("4").no_usage()]).collect::<Vec<_>>());
    let model = model(&server);
    for (wire, expected) in reported {
        assert_eq!(ask(&model).await.unwrap().usage, Some(expected), "{wire}");
    }
    assert_eq!(ask(&model).await.unwrap().usage, None);
}

#[tokio::test]
async fn anthropics_counts_are_disjoint_already() {
    let counts =
        TokenCounts { prompt: 10, cached: 4, cache_write: 3, completion: 5, ..TokenCounts::default() };
    for stream in [false, true] {
        let server = ModelServer::always(ModelReply::text("4").usage(counts));
        let model = model_with(&server, |config| {
            config.stream = stream;
            messages_dialect(config);
        });
        let reported = ask(&model).await.unwrap().usage.unwrap();
        assert_eq!(reported, usage([3, 4, 3, 5, 0], None));
        assert_eq!((reported.input_tokens(), reported.total_tokens()), (10, 15));
    }
}

#[tokio::test]
async fn a_cost_is_that_of_the_server_or_of_the_price_table_or_unknown() {
    let counts = TokenCounts { prompt: 10, completion: 5, ..TokenCounts::default() };
    let server = ModelServer::scripted(move |request| {
        let cost = (request.model() == "reported").then_some(0.5);
        ModelReply::text("4").usage(TokenCounts { cost, ..counts })
    });
    let mut model = model_with(&server, |config| {
        config.prices =
            Prices::parse("m: {input: 100000, output: 200000}\nreported: {input: 1, output: 1}").unwrap();
    });
    for (name, cost) in [("m", Some(2.0)), ("reported", Some(0.5)), ("unknown", None)] {
        model.name = name.to_owned();
        assert_eq!(ask(&model).await.unwrap().usage.unwrap().cost, cost, "{name}");
    }
}

#[tokio::test]
async fn tokens_are_found_under_every_name_whole_and_streamed() {
    for fields in [TokenFields::Vllm, TokenFields::Choice, TokenFields::OutputIds, TokenFields::Message] {
        for stream in [false, true] {
            let reply = ModelReply::text("a b")
                .tokens(&[1, 2, 3], &[(4, -0.5), (5, -0.25)])
                .token_fields(fields)
                .routed_experts(json!([[[0, 1]]]));
            let server = ModelServer::always(reply);
            let model = model_with(&server, |config| {
                config.token_ids = true;
                config.stream = stream;
            });
            let response = ask(&model).await.unwrap();
            let tokens = response.tokens.unwrap();
            assert_eq!(tokens.prompt_ids, [1, 2, 3], "{fields:?} {stream}");
            assert_eq!(tokens.completion_ids, [4, 5]);
            assert_eq!(tokens.completion_logprobs, [-0.5, -0.25]);
            assert_eq!(tokens.routed_experts, Some(vec![vec![vec![0, 1]]]));
            assert_eq!((response.message.extra.len(), response.extra.len()), (0, 0));
        }
    }
}

#[tokio::test]
async fn probabilities_without_tokens_are_kept_with_the_response() {
    let server = ModelServer::always(ModelReply::text("a").tokens(&[1], &[(4, -0.5)]));
    let response = ask(&sampled(&server, json!({"logprobs": true}))).await.unwrap();
    assert_eq!(response.tokens, None);
    assert_eq!(response.extra["logprobs"]["content"][0]["logprob"], -0.5);
}
