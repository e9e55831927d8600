//! What servers are sent.

use rollout::model::{Content, Message, Role, ToolCall, ToolDef};
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::{Value, json};

use super::support::{add, ask, converse_with, last, messages_dialect, model, model_with, sampled, sampling};

/// A conversation with everything in it.
fn conversation() -> Vec<Message> {
    let mut calling = Message::assistant("Let me see.");
    calling.tool_calls =
        vec![ToolCall::new("c1", "add", r#"{"a":1,"b":2}"#), ToolCall::new("c2", "add", r#"{"a":3,"b":4}"#)];
    vec![
        Message::system("Be brief."),
        Message::user(Content::Parts(vec![
            json!({"type": "text", "text": "What is this?"}),
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}),
            json!({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}),
        ])),
        calling,
        Message::tool("c1", "3"),
        Message::tool("c2", "7"),
        Message::user("Go on."),
    ]
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("JSON is written")
}

#[tokio::test]
async fn a_conversation_is_sent_in_the_format_of_chat_completions() {
    let server = ModelServer::echo();
    let strict = ToolDef { strict: Some(true), ..add() };
    let model = sampled(&server, json!({"temperature": 0.5, "seed": 7}));
    converse_with(&model, &conversation(), &[strict]).await.unwrap();
    insta::assert_snapshot!(pretty(&last(&server).body), @r#"
    {
      "model": "m",
      "messages": [
        {
          "role": "system",
          "content": "Be brief."
        },
        {
          "role": "user",
          "content": [
            {
              "type": "text",
              "text": "What is this?"
            },
            {
              "type": "image_url",
              "image_url": {
                "url": "data:image/png;base64,iVBO"
              }
            },
            {
              "type": "image_url",
              "image_url": {
                "url": "https://example.com/a.png"
              }
            }
          ]
        },
        {
          "role": "assistant",
          "content": "Let me see.",
          "tool_calls": [
            {
              "id": "c1",
              "type": "function",
              "function": {
                "name": "add",
                "arguments": "{\"a\":1,\"b\":2}"
              }
            },
            {
              "id": "c2",
              "type": "function",
              "function": {
                "name": "add",
                "arguments": "{\"a\":3,\"b\":4}"
              }
            }
          ]
        },
        {
          "role": "tool",
          "content": "3",
          "tool_call_id": "c1"
        },
        {
          "role": "tool",
          "content": "7",
          "tool_call_id": "c2"
        },
        {
          "role": "user",
          "content": "Go on."
        }
      ],
      "tools": [
        {
          "type": "function",
          "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
              "type": "object",
              "properties": {
                "a": {
                  "type": "integer"
                },
                "b": {
                  "type": "integer"
                }
              }
            },
            "strict": true
          }
        }
      ],
      "temperature": 0.5,
      "seed": 7
    }
    "#);
}

#[tokio::test]
async fn a_conversation_is_sent_in_the_format_of_anthropics_messages() {
    let server = ModelServer::echo();
    let mut model = model_with(&server, messages_dialect);
    model.sampling = sampling(json!({"temperature": 0.5, "stop": "END", "tool_choice": "required"}));
    converse_with(&model, &conversation(), &[add()]).await.unwrap();
    insta::assert_snapshot!(pretty(&last(&server).body), @r#"
    {
      "model": "m",
      "max_tokens": 4096,
      "system": [
        {
          "type": "text",
          "text": "Be brief."
        }
      ],
      "messages": [
        {
          "role": "user",
          "content": [
            {
              "type": "text",
              "text": "What is this?"
            },
            {
              "type": "image",
              "source": {
                "type": "base64",
                "media_type": "image/png",
                "data": "iVBO"
              }
            },
            {
              "type": "image",
              "source": {
                "type": "url",
                "url": "https://example.com/a.png"
              }
            }
          ]
        },
        {
          "role": "assistant",
          "content": [
            {
              "type": "text",
              "text": "Let me see."
            },
            {
              "type": "tool_use",
              "id": "c1",
              "name": "add",
              "input": {
                "a": 1,
                "b": 2
              }
            },
            {
              "type": "tool_use",
              "id": "c2",
              "name": "add",
              "input": {
                "a": 3,
                "b": 4
              }
            }
          ]
        },
        {
          "role": "user",
          "content": [
            {
              "type": "tool_result",
              "tool_use_id": "c1",
              "content": [
                {
                  "type": "text",
                  "text": "3"
                }
              ]
            },
            {
              "type": "tool_result",
              "tool_use_id": "c2",
              "content": [
                {
                  "type": "text",
                  "text": "7"
                }
              ]
            }
          ]
        },
        {
          "role": "user",
          "content": [
            {
              "type": "text",
              "text": "Go on."
            }
          ]
        }
      ],
      "tools": [
        {
          "name": "add",
          "description": "Adds two numbers.",
          "input_schema": {
            "type": "object",
            "properties": {
              "a": {
                "type": "integer"
              },
              "b": {
                "type": "integer"
              }
            }
          }
        }
      ],
      "temperature": 0.5,
      "stop_sequences": [
        "END"
      ],
      "tool_choice": {
        "type": "any"
      }
    }
    "#);
}

#[tokio::test]
async fn each_dialect_has_its_own_way_to_show_the_key() {
    let server = ModelServer::echo().key("sk-12345678");
    let chat = model_with(&server, |config| config.api_key = Some("sk-12345678".into()));
    ask(&chat).await.unwrap();
    assert_eq!(last(&server).header("authorization"), Some("Bearer sk-12345678"));
    let messages = model_with(&server, |config| {
        config.api_key = Some("sk-12345678".into());
        messages_dialect(config);
    });
    ask(&messages).await.unwrap();
    let request = last(&server);
    assert_eq!(request.header("x-api-key"), Some("sk-12345678"));
    assert_eq!(request.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(request.header("authorization"), None);
}

#[tokio::test]
async fn headers_of_the_user_go_before_those_of_the_client() {
    let server = ModelServer::echo();
    let model = model_with(&server, |config| {
        config.api_key = Some("sk-12345678".into());
        config.headers.insert("Authorization".to_owned(), "Bearer another".into());
        config.headers.insert("x-team".to_owned(), "blue".into());
    });
    ask(&model).await.unwrap();
    let request = last(&server);
    assert_eq!(request.header("authorization"), Some("Bearer another"));
    assert_eq!(request.header("x-team"), Some("blue"));
}

#[tokio::test]
async fn the_conversation_is_named_to_the_server() {
    let server = ModelServer::echo();
    ask(&model(&server)).await.unwrap();
    assert_eq!(last(&server).header("x-session-id"), Some("s1"));
}

#[tokio::test]
async fn sampling_arguments_and_extra_fields_are_at_the_top_of_the_body_and_never_twice() {
    let server = ModelServer::echo();
    let mut model = model_with(&server, |config| {
        config.extra_body = sampling(json!({"top_k": 5, "min_p": 0.1, "reasoning_effort": "low"}));
    });
    model.sampling = sampling(json!({
        "top_p": 0.9,
        "top_k": 1,
        "seed": null,
        "extra_body": {"min_p": 0.2, "chat_template_kwargs": {"enable_thinking": false}},
    }));
    ask(&model).await.unwrap();
    let mut body = last(&server).body.clone();
    body.as_object_mut().unwrap().remove("messages");
    assert_eq!(
        body,
        json!({
            "model": "m",
            "top_p": 0.9,
            "top_k": 5,
            "reasoning_effort": "low",
            "min_p": 0.2,
            "chat_template_kwargs": {"enable_thinking": false},
        })
    );
}

#[tokio::test]
async fn streams_and_tokens_are_requested_only_if_configured() {
    let server = ModelServer::echo();
    ask(&model(&server)).await.unwrap();
    let plain = last(&server).body.clone();
    for key in ["stream", "stream_options", "logprobs", "return_token_ids", "tools"] {
        assert_eq!(plain.get(key), None, "{key}");
    }
    let model = model_with(&server, |config| {
        config.stream = true;
        config.token_ids = true;
    });
    ask(&model).await.unwrap();
    let body = &last(&server).body;
    assert_eq!(body["stream"], true);
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
    assert_eq!((&body["logprobs"], &body["return_token_ids"]), (&json!(true), &json!(true)));
}

/// A server that knows only one name of the limit of tokens.
fn knows_only(name: &'static str, other: &'static str) -> ModelServer {
    ModelServer::scripted(move |request| match request.body.get(other) {
        Some(_) => ModelReply::error(400, format!("Unsupported parameter: '{other}'. Use '{name}' instead.")),
        None => ModelReply::text("ok"),
    })
}

#[tokio::test]
async fn the_limit_of_tokens_has_its_new_name_unless_the_server_refuses_it() {
    let server = ModelServer::echo();
    ask(&sampled(&server, json!({"max_tokens": 9}))).await.unwrap();
    assert_eq!(last(&server).body["max_completion_tokens"], 9);
    assert_eq!(last(&server).body.get("max_tokens"), None);

    let old = knows_only("max_tokens", "max_completion_tokens");
    let model = sampled(&old, json!({"max_tokens": 9}));
    ask(&model).await.unwrap();
    assert_eq!(last(&old).body["max_tokens"], 9);
    assert_eq!(old.served(), 2);
    // It is remembered.
    ask(&model).await.unwrap();
    assert_eq!(old.served(), 3);
}

#[tokio::test]
async fn both_names_of_the_limit_are_one_field() {
    let server = ModelServer::echo();
    ask(&sampled(&server, json!({"max_tokens": 9, "max_completion_tokens": 5}))).await.unwrap();
    assert_eq!(last(&server).body["max_completion_tokens"], 5);
    assert_eq!(last(&server).body.get("max_tokens"), None);
    ask(&sampled(&server, json!({"max_tokens": 9, "extra_body": {"max_tokens": 4}}))).await.unwrap();
    assert_eq!(last(&server).body["max_tokens"], 4);
    assert_eq!(last(&server).body.get("max_completion_tokens"), None);
}

#[tokio::test]
async fn a_token_limit_rejected_under_both_names_is_reported() {
    let server = ModelServer::scripted(|_| {
        ModelReply::error(400, "max_tokens and max_completion_tokens are at most 5 here")
    });
    let error = ask(&sampled(&server, json!({"max_tokens": 9}))).await.unwrap_err();
    assert!(error.to_string().contains("are at most 5 here"), "{error}");
    assert_eq!(server.served(), 2);
}

#[tokio::test]
async fn anthropic_gets_a_limit_of_tokens_whatever_it_is_called() {
    let server = ModelServer::echo();
    let mut model = model_with(&server, messages_dialect);
    for (args, limit) in
        [(json!({}), 4096), (json!({"max_tokens": 7}), 7), (json!({"max_completion_tokens": 8}), 8)]
    {
        model.sampling = sampling(args);
        ask(&model).await.unwrap();
        assert_eq!(last(&server).body["max_tokens"], limit);
        assert_eq!(last(&server).body.get("max_completion_tokens"), None);
    }
}

#[tokio::test]
async fn instructions_of_the_conversation_come_before_those_of_the_settings() {
    let server = ModelServer::echo();
    let mut model = model_with(&server, messages_dialect);
    model.sampling = sampling(json!({"system": "of the settings"}));
    converse_with(&model, &[Message::user("hi")], &[]).await.unwrap();
    assert_eq!(last(&server).body["system"], "of the settings");
    converse_with(&model, &[Message::system("of the conversation"), Message::user("hi")], &[]).await.unwrap();
    let body = last(&server).body.clone();
    assert!(!body.to_string().contains("of the settings"), "{body}");
    assert!(body["system"].to_string().contains("of the conversation"), "{body}");
}

#[tokio::test]
async fn the_tool_choice_is_converted_for_anthropic() {
    let server = ModelServer::echo();
    let mut model = model_with(&server, messages_dialect);
    for (choice, sent) in [
        (json!("auto"), json!({"type": "auto"})),
        (json!("none"), json!({"type": "none"})),
        (json!("required"), json!({"type": "any"})),
        (json!({"type": "function", "function": {"name": "add"}}), json!({"type": "tool", "name": "add"})),
        (json!({"type": "any"}), json!({"type": "any"})),
    ] {
        model.sampling = sampling(json!({"tool_choice": choice, "stop": ["a", "b"]}));
        converse_with(&model, &[Message::user("hi")], &[add()]).await.unwrap();
        assert_eq!(last(&server).body["tool_choice"], sent);
        assert_eq!(last(&server).body["stop_sequences"], json!(["a", "b"]));
    }
}

#[tokio::test]
async fn arguments_that_are_not_an_object_are_wrapped_for_anthropic() {
    let server = ModelServer::echo();
    let model = model_with(&server, messages_dialect);
    for (arguments, input) in [
        ("", json!({})),
        ("{\"a\": 1", json!({"INVALID_JSON": "{\"a\": 1"})),
        ("[1]", json!({"INVALID_JSON": "[1]"})),
    ] {
        let mut calling = Message::assistant("");
        calling.tool_calls = vec![ToolCall::new("c1", "add", arguments)];
        let messages = [Message::user("hi"), calling, Message::tool("c1", "3")];
        converse_with(&model, &messages, &[add()]).await.unwrap();
        // The empty text beside the call is left out: the server would refuse it.
        let block = json!([{"type": "tool_use", "id": "c1", "name": "add", "input": input}]);
        assert_eq!(last(&server).messages()[1]["content"], block);
    }
}

#[tokio::test]
async fn fields_unknown_to_the_api_are_still_sent() {
    let server = ModelServer::echo();
    let mut thought = Message::assistant("4");
    thought.thinking_blocks = Some(json!([{"type": "thinking", "thinking": "t", "signature": "s"}]));
    thought.extra.insert("name".to_owned(), json!("ann"));
    let messages = [Message::new(Role::Text, "2+2="), thought, Message::user("sure?")];
    converse_with(&model(&server), &messages, &[]).await.unwrap();
    let sent = last(&server);
    assert_eq!(sent.messages()[0], json!({"role": "user", "content": "2+2="}));
    assert_eq!(sent.messages()[1]["thinking_blocks"][0]["signature"], "s");
    assert_eq!(sent.messages()[1]["name"], "ann");
}

#[tokio::test]
async fn additional_fields_of_a_tool_call_are_sent_back() {
    let server = ModelServer::echo();
    let mut calling = Message::assistant("");
    let mut call = ToolCall::new("c1", "add", "{}");
    call.extra.insert("extra_content".to_owned(), json!({"google": {"thought_signature": "c2ln"}}));
    calling.tool_calls = vec![call];
    let messages = [Message::user("hi"), calling, Message::tool("c1", "3")];
    converse_with(&model(&server), &messages, &[add()]).await.unwrap();
    let sent = &last(&server).messages()[1]["tool_calls"][0].clone();
    assert_eq!(sent["extra_content"]["google"]["thought_signature"], "c2ln");
    assert_eq!(sent["function"], json!({"name": "add", "arguments": "{}"}));
}

#[tokio::test]
async fn an_error_about_a_limit_that_was_not_set_is_reported_without_retries() {
    let server = ModelServer::always(ModelReply::error(400, "max_completion_tokens is needed"));
    ask(&model(&server)).await.unwrap_err();
    assert_eq!(server.served(), 1);
}

#[tokio::test]
async fn every_argument_of_the_sampling_reaches_the_server_as_it_is() {
    let server = ModelServer::echo();
    let args = json!({
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["END"],
        "n": 1,
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "logprobs": true,
        "top_logprobs": 5,
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "repetition_penalty": 1.1,
    });
    converse_with(&sampled(&server, args.clone()), &[Message::user("hi")], &[add()]).await.unwrap();
    for (name, value) in args.as_object().unwrap() {
        assert_eq!(last(&server).body.get(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn parts_of_any_kind_reach_the_server_as_they_are() {
    let server = ModelServer::echo();
    let parts = vec![
        json!({"type": "text", "text": "What is said?", "cache_control": {"type": "ephemeral"}}),
        json!({"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}),
        json!({"type": "file", "file": {"file_id": "f1", "detail": "all"}}),
    ];
    let message = Message::user(Content::Parts(parts.clone()));
    converse_with(&model(&server), &[message], &[]).await.unwrap();
    assert_eq!(last(&server).messages()[0]["content"], json!(parts));
}
