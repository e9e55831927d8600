//! Chat Completions and Messages.

use serde_json::json;

use super::{super::*, *};

/// Claude Code's second request, shortened.
fn claude_code() -> Value {
    json!({
        "model": "claude-sonnet-4-5",
        "max_tokens": 32000,
        "stream": true,
        "temperature": 1,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.325; cch=1a2b3;"},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"},
                {"type": "text", "text": "Write hello.txt", "cache_control": {"type": "ephemeral"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Use the shell.", "signature": ""},
                {"type": "text", "text": "I will."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "echo hi > hello.txt"}},
                {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {"path": "shot.png"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such shell", "is_error": true},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
                ]},
            ]},
            {"role": "system", "content": "The user is away."},
        ],
        "tools": [
            {"name": "Bash", "description": "Runs a command", "input_schema":
                {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                 "properties": {"command": {"type": "string"}}, "required": ["command"]}},
            {"name": "Read", "description": "Reads", "input_schema": {"type": "object", "properties": {}},
             "defer_loading": true},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": "u"},
        "fallbacks": "default",
    })
}

#[test]
fn claude_code_talks_to_chat_completions() {
    let translated = translated(Dialect::Messages, Dialect::Chat, "Qwen/Qwen3-8B", claude_code());
    insta::assert_snapshot!(pretty(&translated.body), @r#"
    model: "Qwen/Qwen3-8B"
    messages:
      {"role":"system","content":"You are Claude Code."}
      {"role":"user","content":"<system-reminder>\nToday is Monday.\n</system-reminder>\nWrite hello.txt"}
      {"role":"assistant","content":"I will.","reasoning_content":"Use the shell.","tool_calls":[{"id":"toolu_1","type":"function","function":{"name":"Bash","arguments":"{\"command\":\"echo hi > hello.txt\"}"}},{"id":"toolu_2","type":"function","function":{"name":"Read","arguments":"{\"path\":\"shot.png\"}"}}]}
      {"role":"tool","tool_call_id":"toolu_1","content":"Error: no such shell"}
      {"role":"tool","tool_call_id":"toolu_2","content":"The content follows."}
      {"role":"user","content":[{"type":"text","text":"Content of the result of tool call toolu_2:"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO"}},{"type":"text","text":"<system-reminder>\nThe user is away.\n</system-reminder>"}]}
    tools:
      {"type":"function","function":{"name":"Bash","parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]},"description":"Runs a command"}}
      {"type":"function","function":{"name":"Read","parameters":{"type":"object","properties":{}},"description":"Reads"}}
    tool_choice: "auto"
    parallel_tool_calls: false
    temperature: 1.0
    max_tokens: 32000
    stream: true
    stream_options: {"include_usage":true}
    "#);
    insta::assert_snapshot!(translated.notes.join("\n"), @"
    `tools`: a tool of type `web_search_20250305` was left out
    `fallbacks`: not translated
    `reasoning`: left out: it is unknown whether this model supports reasoning
    ");
    assert!(translated.stream);
}

#[test]
fn only_the_line_for_the_bill_is_left_out_of_the_instructions() {
    let body = json!({"system": "x-anthropic-billing-header: cc;\nBe brief.", "messages": []});
    let translated = translated(Dialect::Messages, Dialect::Gemini, "m", body);
    assert_eq!(translated.body["contents"][0]["parts"][0]["text"], "Be brief.");
}

#[test]
fn names_of_any_length_are_shown_short() {
    let body = json!({"messages": [{"role": "user", "content": [{"type": "x\n".repeat(1000)}]}], "k".repeat(9000): 1});
    let error = request(Dialect::Messages, Dialect::Chat, body, &target("m")).unwrap_err().to_string();
    assert!(error.len() < 400 && !error.contains('\n'), "{error}");
    let body = json!({"messages": [], "k".repeat(9000): 1});
    let notes = translated(Dialect::Messages, Dialect::Chat, "m", body).notes;
    assert!(notes[0].len() < 200, "{notes:?}");
}

#[test]
fn a_reasoning_model_gets_the_effort_and_no_temperature() {
    let translated = translated(Dialect::Messages, Dialect::Chat, "gpt-5.5", claude_code());
    assert_eq!(translated.body["reasoning_effort"], "medium");
    assert_eq!(translated.body["max_completion_tokens"], 32000);
    assert_eq!(translated.body.get("temperature"), None);
    assert_eq!(translated.body.get("max_tokens"), None);
}

/// A request of an agent on Chat Completions.
fn chat_agent() -> Value {
    json!({
        "model": "gpt-5.5",
        "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            ]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": "{\"p\": 1}"}},
                {"id": "call_b", "type": "function", "function": {"name": "ls", "arguments": ""}},
            ]},
            {"role": "tool", "tool_call_id": "call_b", "content": "b"},
            {"role": "tool", "tool_call_id": "functions.ls:0", "content": [{"type": "text", "text": "a"}]},
            {"role": "user", "content": "Go on."},
        ],
        "tools": [{"type": "function", "function": {"name": "ls", "description": "Lists",
            "parameters": {"type": "object", "properties": {"p": {"type": "integer"}}}, "strict": true}}],
        "tool_choice": {"type": "function", "function": {"name": "ls"}},
        "parallel_tool_calls": false,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "temperature": 1.5,
        "stop": "END",
        "seed": 7,
        "reasoning_effort": "high",
        "logit_bias": {"1": 2},
    })
}

#[test]
fn a_chat_agent_talks_to_messages() {
    let translated = translated(Dialect::Chat, Dialect::Messages, "claude-sonnet-4-5", chat_agent());
    insta::assert_snapshot!(pretty(&translated.body), @r#"
    model: "claude-sonnet-4-5"
    max_tokens: 32000
    system:
      {"type":"text","text":"You are an agent.\nBe brief.","cache_control":{"type":"ephemeral"}}
    messages:
      {"role":"user","content":[{"type":"text","text":"What is this?"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"}},{"type":"image","source":{"type":"url","url":"https://example.com/a.png"}}]}
      {"role":"assistant","content":[{"type":"tool_use","id":"functions_ls_0","name":"ls","input":{"p":1}},{"type":"tool_use","id":"call_b","name":"ls","input":{}}]}
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"functions_ls_0","content":[{"type":"text","text":"a"}]},{"type":"tool_result","tool_use_id":"call_b","content":[{"type":"text","text":"b"}]},{"type":"text","text":"Go on.","cache_control":{"type":"ephemeral"}}]}
    tools:
      {"name":"ls","input_schema":{"type":"object","properties":{"p":{"type":"integer"}}},"description":"Lists"}
    tool_choice: {"type":"tool","name":"ls","disable_parallel_tool_use":true}
    output_config: {"format":{"type":"json_schema","schema":{"type":"object"}}}
    temperature: 1.0
    stop_sequences:
      "END"
    "#);
    insta::assert_snapshot!(translated.notes.join("\n"), @"
    `logit_bias`: not translated
    `reasoning`: left out: Messages does not support thinking if a tool call is required
    `temperature`: lowered to 1, the maximum of Messages
    `seed`: Messages has no such parameter
    ");
}

#[test]
fn a_model_that_thinks_by_itself_gets_the_effort() {
    let mut body = chat_agent();
    body["tool_choice"] = json!("auto");
    let translated = translated(Dialect::Chat, Dialect::Messages, "claude-opus-5", body);
    assert_eq!(translated.body["thinking"], json!({"type": "adaptive"}));
    assert_eq!(translated.body["output_config"]["effort"], "high");
    assert_eq!(translated.body.get("temperature"), None);
}

#[test]
fn calls_without_results_and_results_without_calls_are_settled() {
    let body = json!({"model": "m", "messages": [
        {"role": "tool", "tool_call_id": "gone", "content": "old"},
        {"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]},
        {"role": "user", "content": "Stop."},
    ]});
    let translated = translated(Dialect::Chat, Dialect::Messages, "claude-sonnet-4-5", body);
    insta::assert_snapshot!(translated.body["messages"], @r#"[{"role":"user","content":[{"type":"text","text":"Result of an earlier tool call:\nold"}]},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"ls","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"No result."}],"is_error":true},{"type":"text","text":"Stop.","cache_control":{"type":"ephemeral"}}]}]"#);
    insta::assert_snapshot!(translated.notes.join("\n"), @"
    `tool result`: a result without a call became text
    `tool call`: a call without a result got an empty one
    `tools`: the tools of earlier calls were declared, but may not be called
    ");
}

#[test]
fn a_conversation_that_upstreams_would_reject_is_completed() {
    let call = json!({"id": "call_7", "type": "function", "function": {"name": "ls", "arguments": "{}"}});
    let cut = json!({"model": "m", "messages": [
        {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_7", "content": "a"}]});
    let messages = translated(Dialect::Chat, Dialect::Messages, "m", cut.clone());
    assert_eq!(messages.body["messages"][0]["content"], "Continue.");
    assert_eq!(messages.body["tools"][0]["name"], "ls");
    assert_eq!(messages.body["tool_choice"], json!({"type": "none"}));
    let gemini = translated(Dialect::Chat, Dialect::Gemini, "m", cut);
    assert_eq!(gemini.body["contents"][0], json!({"role": "user", "parts": [{"text": "Continue."}]}));
    let answer = json!({"candidates": [{"content": {"parts": [{"functionCall": {"name": "ls"}}]}}]});
    let answer = gemini.context.response(answer).unwrap();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["id"], "call_8", "an id of its own");

    let alone = json!({"model": "m", "messages": [{"role": "system", "content": "Say hi."}]});
    for to in [Dialect::Responses, Dialect::Messages, Dialect::Gemini] {
        let body = translated(Dialect::Chat, to, "m", alone.clone()).body.to_string();
        assert!(body.contains("\"user\"") && body.contains("Say hi."), "{body}");
    }
}

#[test]
fn what_the_provider_runs_in_a_stream_is_no_call_of_the_client() {
    let context = context(Dialect::Chat, Dialect::Messages, plain_request(Dialect::Chat));
    let delta = json!({"type": "input_json_delta", "partial_json": "{\"query\":1}"});
    let stream = streamed(
        &context,
        &[
            json!({"type": "message_start", "message": {"id": "m"}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "server_tool_use", "name": "web_search"}}),
            json!({"type": "content_block_delta", "index": 0, "delta": delta}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
            json!({"type": "message_stop"}),
        ],
    );
    assert!(!stream.contains("tool_calls"), "{stream}");
}

#[test]
fn what_cannot_be_translated_is_refused_by_name() {
    let refused = |from, to, body| request(from, to, body, &target("m")).unwrap_err().to_string();
    let messages = |content: Value| json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    let refusals = [
        refused(Dialect::Chat, Dialect::Messages, json!({"messages": [], "n": 2})),
        refused(Dialect::Chat, Dialect::Messages, json!({"messages": [], "stop": ["\n\n"]})),
        refused(
            Dialect::Chat,
            Dialect::Messages,
            messages(json!([{"type": "input_audio", "input_audio": {}}])),
        ),
        refused(
            Dialect::Chat,
            Dialect::Messages,
            messages(json!([{"type": "file", "file": {"file_id": "f"}}])),
        ),
        refused(Dialect::Chat, Dialect::Messages, json!({"messages": [{"role": "king", "content": ""}]})),
        refused(Dialect::Chat, Dialect::Messages, json!([])),
        refused(Dialect::Messages, Dialect::Chat, json!({"messages": [], "mcp_servers": [{}]})),
        refused(
            Dialect::Messages,
            Dialect::Chat,
            json!({"messages": [], "tools": [{"type": "bash_20250124"}]}),
        ),
        refused(Dialect::Messages, Dialect::Chat, messages(json!([{"type": "hologram"}]))),
        refused(Dialect::Messages, Dialect::Chat, messages(json!(7))),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @"
    `n` cannot be translated for this model server: only one answer can be requested. Leave `n` out.
    `stop` cannot be translated for this model server: Messages rejects stop sequences that contain only white space. Use another stop sequence.
    `messages[0].content[0].type` cannot be translated for this model server: content of type `input_audio` is not supported. Send text or images.
    `messages[0].content[0].file` cannot be translated for this model server: files that are stored at a provider cannot be read. Send `file_data`.
    invalid body: `messages[0].role` is unknown
    invalid body: `body` must be an object
    `mcp_servers` cannot be translated for this model server: the provider would have to call these servers. Let the agent connect to its MCP servers itself.
    `tools[0].type` cannot be translated for this model server: only Claude models support `bash_20250124`. Declare the tool with an `input_schema`.
    `messages[0].content[0].type` cannot be translated for this model server: content of type `hologram` is not supported. Send text or images.
    invalid body: `messages[0].content` must be a text or a list
    ");
}

/// A stream of vLLM with reasoning, text and two interleaved calls.
fn chat_stream() -> Vec<Value> {
    let chunk = |delta: Value| json!({"id": "c1", "model": "up", "choices": [{"index": 0, "delta": delta}]});
    let call = |index: u64, more: Value| {
        let mut call = json!({"index": index});
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chunk(json!({"tool_calls": [call]}))
    };
    vec![
        chunk(json!({"role": "assistant", "content": ""})),
        chunk(json!({"reasoning_content": "Hm"})),
        chunk(json!({"reasoning_content": "."})),
        chunk(json!({"content": "Let me "})),
        chunk(json!({"content": "look."})),
        call(0, json!({"id": "a", "type": "function", "function": {"name": "ls", "arguments": ""}})),
        call(0, json!({"function": {"arguments": "{\"p\":"}})),
        call(1, json!({"id": "b", "type": "function", "function": {"name": "cat", "arguments": "{}"}})),
        call(0, json!({"function": {"arguments": "1}"}})),
        json!({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        json!({"id": "c1", "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 30,
            "prompt_tokens_details": {"cached_tokens": 40}}}),
    ]
}

#[test]
fn a_chat_stream_becomes_a_stream_of_messages() {
    let context = context(Dialect::Messages, Dialect::Chat, plain_request(Dialect::Messages));
    insta::assert_snapshot!(streamed(&context, &chat_stream()), @r#"
    event: message_start
    data: {"type":"message_start","message":{"id":"c1","type":"message","role":"assistant","model":"asked-model","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}

    event: content_block_start
    data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

    event: content_block_delta
    data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm"}}

    event: content_block_delta
    data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"."}}

    event: content_block_stop
    data: {"type":"content_block_stop","index":0}

    event: content_block_start
    data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

    event: content_block_delta
    data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Let me "}}

    event: content_block_delta
    data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"look."}}

    event: content_block_stop
    data: {"type":"content_block_stop","index":1}

    event: content_block_start
    data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"a","name":"ls","input":{}}}

    event: content_block_delta
    data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"p\":"}}

    event: content_block_delta
    data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"1}"}}

    event: content_block_stop
    data: {"type":"content_block_stop","index":2}

    event: content_block_start
    data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"b","name":"cat","input":{}}}

    event: content_block_delta
    data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{}"}}

    event: content_block_stop
    data: {"type":"content_block_stop","index":3}

    event: message_delta
    data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":60,"cache_creation_input_tokens":0,"cache_read_input_tokens":40,"output_tokens":30}}

    event: message_stop
    data: {"type":"message_stop"}
    "#);
}

#[test]
fn a_stream_of_messages_becomes_a_chat_stream() {
    let context = context(Dialect::Chat, Dialect::Messages, plain_request(Dialect::Chat));
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let stop = |index: u64| json!({"type": "content_block_stop", "index": index});
    let events = [
        json!({"type": "message_start", "message": {"id": "msg_1", "model": "claude", "usage":
            {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 1}}}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        json!({"type": "ping"}),
        delta(0, json!({"type": "thinking_delta", "thinking": "Hm."})),
        delta(0, json!({"type": "signature_delta", "signature": "EqQB"})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "Let me look."})),
        stop(1),
        start(2, json!({"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}})),
        delta(2, json!({"type": "input_json_delta", "partial_json": ""})),
        stop(2),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 30}}),
        json!({"type": "message_stop"}),
    ];
    insta::assert_snapshot!(streamed(&context, &events), @r#"
    data: {"id":"msg_1","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

    data: {"id":"msg_1","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"reasoning_content":"Hm."},"logprobs":null,"finish_reason":null}]}

    data: {"id":"msg_1","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"content":"Let me look."},"logprobs":null,"finish_reason":null}]}

    data: {"id":"msg_1","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"tool_calls":[{"id":"toolu_1","type":"function","function":{"name":"ls","arguments":""},"index":0}]},"logprobs":null,"finish_reason":null}]}

    data: {"id":"msg_1","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"logprobs":null,"finish_reason":null}]}

    data: {"id":"msg_1","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}

    data: {"id":"msg_1","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":30,"total_tokens":130,"prompt_tokens_details":{"cached_tokens":40,"cache_write_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}

    data: [DONE]
    "#);
}

#[test]
fn a_cut_stream_is_no_answer_and_an_error_in_it_is_passed_on() {
    let context = context(Dialect::Messages, Dialect::Chat, plain_request(Dialect::Messages));
    let mut cut = context.stream();
    cut.feed(br#"{"choices": [{"delta": {"content": "Hal"}}]}"#).unwrap();
    assert_eq!(cut.finish(), Err(TranslationError::CutStream));

    let mut failed = context.stream();
    let bytes = failed.feed(br#"{"error": {"message": "out of memory", "type": "server_error"}}"#).unwrap();
    insta::assert_snapshot!(String::from_utf8(bytes).unwrap(), @r#"
    event: error
    data: {"type":"error","error":{"type":"api_error","message":"out of memory"}}
    "#);
    assert_eq!(failed.failure().unwrap().0, ErrorKind::Server);
    assert_eq!(failed.finish(), Ok(Vec::new()));
    assert!(context.stream().feed(b"<html>").is_err());

    let body = error(Dialect::Messages, 529, ErrorKind::Overloaded, "busy");
    assert_eq!(read_error(529, &body), (ErrorKind::Overloaded, "busy".to_owned()));
}

#[test]
fn a_whole_chat_answer_becomes_a_message_and_back() {
    let answer = json!({"id": "c1", "object": "chat.completion", "created": 1, "model": "up", "choices": [{
        "index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "Let me look.",
            "reasoning_content": "Hm.", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{\"p\":1}"}},
                {"id": "b", "type": "function", "function": {"name": "cat", "arguments": "{\"p\":"}}]}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 40}}});
    let there = context(Dialect::Messages, Dialect::Chat, plain_request(Dialect::Messages));
    let message = there.response(answer.clone()).unwrap();
    insta::assert_snapshot!(pretty(&message), @r#"
    id: "c1"
    type: "message"
    role: "assistant"
    model: "asked-model"
    content:
      {"type":"thinking","thinking":"Hm.","signature":""}
      {"type":"text","text":"Let me look."}
      {"type":"tool_use","id":"a","name":"ls","input":{"p":1}}
      {"type":"tool_use","id":"b","name":"cat","input":{"invalid_arguments":"{\"p\":"}}
    stop_reason: "tool_use"
    stop_sequence: null
    usage: {"input_tokens":60,"cache_creation_input_tokens":0,"cache_read_input_tokens":40,"output_tokens":30}
    "#);
    let back = context(Dialect::Chat, Dialect::Messages, plain_request(Dialect::Chat));
    let again = back.response(message).unwrap();
    assert_eq!(again["choices"][0]["message"]["tool_calls"], answer["choices"][0]["message"]["tool_calls"]);
    assert_eq!(again["choices"][0]["message"]["content"], "Let me look.");
    assert_eq!(again["choices"][0]["message"]["reasoning_content"], "Hm.");
    assert_eq!(again["usage"]["prompt_tokens"], 100);
}

#[test]
fn endings_keep_their_meaning() {
    let back = context(Dialect::Chat, Dialect::Messages, plain_request(Dialect::Chat));
    for (reason, expected) in [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("stop_sequence", "stop"),
    ] {
        let answer = back.response(json!({"content": [], "stop_reason": reason})).unwrap();
        assert_eq!(answer["choices"][0]["finish_reason"], expected);
    }
    let there = context(Dialect::Messages, Dialect::Chat, plain_request(Dialect::Messages));
    for (choice, expected) in [
        (json!({"finish_reason": "stop"}), json!(["end_turn", null])),
        (json!({"finish_reason": "stop", "stop_reason": "END"}), json!(["stop_sequence", "END"])),
        (json!({"finish_reason": "length"}), json!(["max_tokens", null])),
        (json!({"finish_reason": "content_filter"}), json!(["refusal", null])),
        (json!({"finish_reason": "new"}), json!(["end_turn", null])),
    ] {
        let mut choice = choice;
        choice["message"] = json!({"content": "x"});
        let answer = there.response(json!({"choices": [choice]})).unwrap();
        assert_eq!(json!([answer["stop_reason"], answer["stop_sequence"]]), expected);
    }
}

#[test]
fn signed_thoughts_of_messages_pass_through_a_client_of_another_dialect_only_where_it_keeps_them() {
    let mut body = plain_request(Dialect::Messages);
    body["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Mine.", "signature": "of another provider"}, {"type": "text", "text": "A"}]}));
    let to_chat = translated(Dialect::Messages, Dialect::Chat, "m", body);
    assert_eq!(to_chat.body["messages"][1]["reasoning_content"], "Mine.");
}
