//! generateContent with the other dialects.

use serde_json::json;

use super::{super::*, *};

/// Gemini CLI's second request, shortened.
fn gemini_cli() -> Value {
    json!({
        "systemInstruction": {"role": "user", "parts": [{"text": "You are Gemini CLI."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Write hello.txt"}]},
            {"role": "model", "parts": [
                {"functionCall": {"name": "run_shell_command", "args": {"command": "ls"}}, "thoughtSignature": "native"},
                {"functionCall": {"name": "run_shell_command", "args": {"command": "pwd"}}},
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"id": "made-up-1", "name": "run_shell_command", "response": {"output": "main.c"}}},
                {"functionResponse": {"id": "made-up-2", "name": "run_shell_command", "response": {"error": "denied"}}},
                {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
            ]},
        ],
        "tools": [
            {"functionDeclarations": [
                {"name": "run_shell_command", "description": "Runs", "parametersJsonSchema":
                    {"type": "object", "properties": {"command": {"type": "string"}}}},
                {"name": "old", "parameters": {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}}}},
            ]},
            {"googleSearch": {}},
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["old"]}},
        "generationConfig": {"temperature": 0, "topP": 0.95, "topK": 64, "maxOutputTokens": 500, "seed": 1,
            "stopSequences": ["END"], "responseMimeType": "application/json", "responseJsonSchema": {"type": "object"},
            "thinkingConfig": {"includeThoughts": true, "thinkingBudget": 8192}},
        "safetySettings": [{"category": "x", "threshold": "y"}],
    })
}

#[test]
fn gemini_cli_talks_to_messages() {
    let translated = translated(Dialect::Gemini, Dialect::Messages, "claude-sonnet-4-5", gemini_cli());
    insta::assert_snapshot!(pretty(&translated.body), @r#"
    model: "claude-sonnet-4-5"
    max_tokens: 500
    system:
      {"type":"text","text":"You are Gemini CLI.","cache_control":{"type":"ephemeral"}}
    messages:
      {"role":"user","content":[{"type":"text","text":"Write hello.txt"}]}
      {"role":"assistant","content":[{"type":"tool_use","id":"call_0","name":"run_shell_command","input":{"command":"ls"}},{"type":"tool_use","id":"call_1","name":"run_shell_command","input":{"command":"pwd"}}]}
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"call_0","content":[{"type":"text","text":"main.c"}]},{"type":"tool_result","tool_use_id":"call_1","content":[{"type":"text","text":"denied"}],"is_error":true},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"},"cache_control":{"type":"ephemeral"}}]}
    tools:
      {"name":"run_shell_command","input_schema":{"type":"object","properties":{"command":{"type":"string"}}},"description":"Runs"}
      {"name":"old","input_schema":{"type":"object","properties":{"n":{"type":"integer"}}}}
    tool_choice: {"type":"tool","name":"old"}
    output_config: {"format":{"type":"json_schema","schema":{"type":"object"}}}
    temperature: 0.0
    top_k: 64
    stop_sequences:
      "END"
    "#);
    insta::assert_snapshot!(translated.notes.join("\n"), @"
    `tools[].googleSearch`: not translated
    `reasoning`: left out: Messages does not support thinking if a tool call is required
    `thoughts`: left out: this upstream takes only thoughts that it signed
    `top_p`: newer models take only one of `temperature` and `top_p`
    `seed`: Messages has no such parameter
    ");
}

#[test]
fn gemini_cli_talks_to_chat_completions_and_responses() {
    let chat = translated(Dialect::Gemini, Dialect::Chat, "m", gemini_cli());
    insta::assert_snapshot!(pretty(&chat.body), @r#"
    model: "m"
    messages:
      {"role":"system","content":"You are Gemini CLI."}
      {"role":"user","content":"Write hello.txt"}
      {"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"run_shell_command","arguments":"{\"command\":\"ls\"}"}},{"id":"call_1","type":"function","function":{"name":"run_shell_command","arguments":"{\"command\":\"pwd\"}"}}]}
      {"role":"tool","tool_call_id":"call_0","content":"main.c"}
      {"role":"tool","tool_call_id":"call_1","content":"Error: denied"}
      {"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO"}}]}
    tools:
      {"type":"function","function":{"name":"run_shell_command","parameters":{"type":"object","properties":{"command":{"type":"string"}}},"description":"Runs"}}
      {"type":"function","function":{"name":"old","parameters":{"type":"object","properties":{"n":{"type":"integer"}}}}}
    tool_choice: {"type":"function","function":{"name":"old"}}
    response_format: {"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"}}}
    temperature: 0.0
    top_p: 0.95
    max_tokens: 500
    seed: 1
    stop:
      "END"
    "#);
    let mut body = gemini_cli();
    body["generationConfig"].as_object_mut().unwrap().shift_remove("stopSequences");
    let responses = translated(Dialect::Gemini, Dialect::Responses, "gpt-5.5", body);
    insta::assert_snapshot!(pretty(&responses.body), @r#"
    model: "gpt-5.5"
    instructions: "You are Gemini CLI."
    input:
      {"type":"message","role":"user","content":[{"type":"input_text","text":"Write hello.txt"}]}
      {"type":"function_call","call_id":"call_0","name":"run_shell_command","arguments":"{\"command\":\"ls\"}"}
      {"type":"function_call","call_id":"call_1","name":"run_shell_command","arguments":"{\"command\":\"pwd\"}"}
      {"type":"function_call_output","call_id":"call_0","output":"main.c"}
      {"type":"function_call_output","call_id":"call_1","output":"Error: denied"}
      {"type":"message","role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,iVBO","detail":"auto"}]}
    tools:
      {"type":"function","name":"run_shell_command","parameters":{"type":"object","properties":{"command":{"type":"string"}}},"strict":false,"description":"Runs"}
      {"type":"function","name":"old","parameters":{"type":"object","properties":{"n":{"type":"integer"}}},"strict":false}
    tool_choice: {"type":"function","name":"old"}
    text: {"format":{"type":"json_schema","name":"answer","schema":{"type":"object"},"strict":false}}
    reasoning: {"effort":"medium"}
    include:
      "reasoning.encrypted_content"
    max_output_tokens: 500
    store: false
    "#);
}

#[test]
fn the_path_says_whether_gemini_streams() {
    let asked = Target { stream: true, ..target("m") };
    let translated = request(Dialect::Gemini, Dialect::Chat, plain_request(Dialect::Gemini), &asked).unwrap();
    assert!(translated.stream);
    assert_eq!(translated.body["stream"], true);
}

#[test]
fn other_clients_talk_to_gemini() {
    let body = json!({
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": [{"type": "text", "text": "See"},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png?x=1"}}]},
            {"role": "assistant", "content": "Yes.", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{\"p\": 1}"}},
                {"id": "b", "type": "function", "function": {"name": "ls", "arguments": "{\"p\":"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "x"},
            {"role": "tool", "tool_call_id": "b", "content": "y"},
        ],
        "tools": [{"type": "function", "function": {"name": "ls"}}],
        "tool_choice": "required",
        "parallel_tool_calls": false,
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "max_completion_tokens": 9,
        "stop": ["END"],
    });
    let new = translated(Dialect::Chat, Dialect::Gemini, "gemini-3-pro-preview", body.clone());
    insta::assert_snapshot!(pretty(&new.body), @r#"
    systemInstruction: {"parts":[{"text":"You are an agent."}]}
    contents:
      {"role":"user","parts":[{"text":"See"},{"fileData":{"fileUri":"https://example.com/a.png?x=1","mimeType":"image/png"}}]}
      {"role":"model","parts":[{"text":"Yes."},{"functionCall":{"id":"a","name":"ls","args":{"p":1}},"thoughtSignature":"skip_thought_signature_validator"},{"functionCall":{"id":"b","name":"ls","args":{"invalid_arguments":"{\"p\":"}}}]}
      {"role":"user","parts":[{"functionResponse":{"id":"a","name":"ls","response":{"output":"x"}}},{"functionResponse":{"id":"b","name":"ls","response":{"output":"y"}}}]}
    tools:
      {"functionDeclarations":[{"name":"ls","parametersJsonSchema":{"type":"object","properties":{}}}]}
    toolConfig: {"functionCallingConfig":{"mode":"ANY"}}
    generationConfig: {"maxOutputTokens":9,"stopSequences":["END"],"responseMimeType":"application/json","thinkingConfig":{"thinkingLevel":"low","includeThoughts":true}}
    "#);
    insta::assert_snapshot!(new.notes.join("\n"), @"
    `thoughtSignature`: a missing signature was replaced by the value that turns off the check
    `parallel_tool_calls`: Gemini has no setting that forbids several calls at once
    ");
    let old = translated(Dialect::Chat, Dialect::Gemini, "gemini-2.5-pro", body);
    assert_eq!(
        old.body["generationConfig"]["thinkingConfig"],
        json!({"thinkingBudget": 2048, "includeThoughts": true})
    );
    assert_eq!(old.body["contents"][1]["parts"][1].get("thoughtSignature"), None);
}

/// What Gemini 3 streams: thoughts, text, then calls without ids, the first of them signed.
fn gemini_stream() -> Vec<Value> {
    let chunk = |parts: Value| {
        json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
        "usageMetadata": {"promptTokenCount": 100, "totalTokenCount": 100}, "responseId": "r", "modelVersion": "gemini-3"})
    };
    vec![
        chunk(json!([{"text": "Hm.", "thought": true}])),
        chunk(json!([{"text": "Let me "}])),
        chunk(json!([{"text": "look."}])),
        chunk(json!([{"functionCall": {"name": "ls", "args": {"p": 1}}, "thoughtSignature": "native"},
            {"functionCall": {"name": "ls", "args": {}}}])),
        json!({"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP"}], "usageMetadata":
            {"promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 20, "thoughtsTokenCount": 10}}),
    ]
}

#[test]
fn a_gemini_stream_becomes_a_chat_stream() {
    let context = context(Dialect::Chat, Dialect::Gemini, plain_request(Dialect::Chat));
    insta::assert_snapshot!(streamed(&context, &gemini_stream()), @r#"
    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"reasoning_content":"Hm."},"logprobs":null,"finish_reason":null}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"content":"Let me "},"logprobs":null,"finish_reason":null}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"content":"look."},"logprobs":null,"finish_reason":null}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"tool_calls":[{"id":"call_0","type":"function","function":{"name":"ls","arguments":""},"index":0}]},"logprobs":null,"finish_reason":null}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"p\":1}"}}]},"logprobs":null,"finish_reason":null}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"tool_calls":[{"id":"call_1","type":"function","function":{"name":"ls","arguments":""},"index":1}]},"logprobs":null,"finish_reason":null}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]},"logprobs":null,"finish_reason":null}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}

    data: {"id":"r","object":"chat.completion.chunk","created":1700000000,"model":"asked-model","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":30,"total_tokens":130,"prompt_tokens_details":{"cached_tokens":40,"cache_write_tokens":0},"completion_tokens_details":{"reasoning_tokens":10}}}

    data: [DONE]
    "#);
}

#[test]
fn a_signature_of_gemini_goes_through_claude_code_and_back() {
    let body = plain_request(Dialect::Messages);
    let context = translated(Dialect::Messages, Dialect::Gemini, "gemini-3-pro", body.clone()).context;
    let mut assembler = crate::assemble::Assembler::new(Dialect::Messages);
    for line in streamed(&context, &gemini_stream()).lines().filter_map(|line| line.strip_prefix("data: ")) {
        assembler.feed(&serde_json::from_str(line).unwrap());
    }
    let content = assembler.finish().body["content"].clone();
    let kinds: Vec<&str> =
        content.as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text", "thinking", "tool_use", "tool_use"]);
    let ids: Vec<&Value> = content.as_array().unwrap().iter().filter_map(|block| block.get("id")).collect();
    assert_eq!(ids, ["call_0", "call_1"]);
    let mut body = body;
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": content}));
    messages.push(json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "call_0", "content": "a"},
        {"type": "tool_result", "tool_use_id": "call_1", "content": "b"}]}));
    let second = translated(Dialect::Messages, Dialect::Gemini, "gemini-3-pro", body);
    insta::assert_snapshot!(pretty(&second.body), @r#"
    contents:
      {"role":"user","parts":[{"text":"Hi"}]}
      {"role":"model","parts":[{"text":"Let me look."},{"functionCall":{"id":"call_0","name":"ls","args":{"p":1}},"thoughtSignature":"native"},{"functionCall":{"id":"call_1","name":"ls","args":{}}}]}
      {"role":"user","parts":[{"functionResponse":{"id":"call_0","name":"ls","response":{"output":"a"}}},{"functionResponse":{"id":"call_1","name":"ls","response":{"output":"b"}}}]}
    generationConfig: {"maxOutputTokens":9}
    "#);
}

#[test]
fn a_thought_goes_through_gemini_cli_which_keeps_only_signatures() {
    let mut body = gemini_cli();
    body["toolConfig"] = Value::Null;
    body["contents"].as_array_mut().unwrap().truncate(1);
    let first = translated(Dialect::Gemini, Dialect::Messages, "claude-sonnet-4-5", body.clone());
    let answer = json!({"id": "m", "stop_reason": "tool_use", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "old", "input": {"n": 1}}]});
    let response = first.context.response(answer).unwrap();
    let mut parts = response["candidates"][0]["content"]["parts"].as_array().unwrap().clone();
    parts.retain(|part| part.get("thought").is_none());
    let contents = body["contents"].as_array_mut().unwrap();
    contents.push(json!({"role": "model", "parts": parts}));
    contents.push(json!({"role": "user", "parts": [
        {"functionResponse": {"id": "toolu_1", "name": "old", "response": {"output": "a"}}}]}));
    let second = translated(Dialect::Gemini, Dialect::Messages, "claude-sonnet-4-5", body);
    assert_eq!(
        second.body["messages"][1]["content"][0],
        json!({"type": "thinking", "thinking": "Hm.", "signature": "EqQB"})
    );
}

#[test]
fn a_chat_stream_becomes_a_gemini_stream() {
    let context = context(Dialect::Gemini, Dialect::Chat, plain_request(Dialect::Gemini));
    let chunk = |delta: Value| json!({"id": "c1", "choices": [{"index": 0, "delta": delta}]});
    let events = [
        chunk(json!({"role": "assistant", "content": "Let me look."})),
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "ls", "arguments": "{\"p\""}}]}),
        ),
        chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]})),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 30}}),
    ];
    insta::assert_snapshot!(streamed(&context, &events), @r#"
    data: {"modelVersion":"asked-model","responseId":"c1","candidates":[{"content":{"role":"model","parts":[{"text":"Let me look."}]},"index":0}]}

    data: {"modelVersion":"asked-model","responseId":"c1","candidates":[{"content":{"role":"model","parts":[{"functionCall":{"id":"a","name":"ls","args":{"p":1}}}]},"index":0}]}

    data: {"modelVersion":"asked-model","responseId":"c1","usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":0,"candidatesTokenCount":30,"thoughtsTokenCount":0,"totalTokenCount":130},"candidates":[{"content":{"role":"model","parts":[{"text":""}]},"index":0,"finishReason":"STOP"}]}
    "#);
}

#[test]
fn what_gemini_blocks_is_filtered() {
    let context = context(Dialect::Messages, Dialect::Gemini, plain_request(Dialect::Messages));
    let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}});
    assert_eq!(context.response(blocked.clone()).unwrap()["stop_reason"], "refusal");
    assert!(streamed(&context, &[blocked]).contains("refusal"));
}

#[test]
fn what_only_google_has_is_refused() {
    let refused = |body| request(Dialect::Gemini, Dialect::Chat, body, &target("m")).unwrap_err().to_string();
    let part = |part: Value| json!({"contents": [{"parts": [part]}]});
    let refusals = [
        refused(json!({"contents": [], "cachedContent": "c"})),
        refused(json!({"contents": [], "generationConfig": {"candidateCount": 2}})),
        refused(json!({"contents": [], "generation_config": {"response_modalities": ["AUDIO"]}})),
        refused(part(json!({"file_data": {"file_uri": "files/abc"}}))),
        refused(part(json!({"inline_data": {"mime_type": "audio/wav", "data": "x"}}))),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @"
    `cachedContent` cannot be translated for this model server: this model server has no stored content. Send the whole conversation in `contents`.
    `generationConfig.candidateCount` cannot be translated for this model server: only one answer can be requested. Leave `candidateCount` out.
    `generationConfig.responseModalities` cannot be translated for this model server: this model server answers with text only. Ask for text.
    `contents[0].parts[0].fileData` cannot be translated for this model server: files that are stored at a provider cannot be read. Send `inlineData`.
    `contents[0].parts[0].inlineData.mimeType` cannot be translated for this model server: only images and documents are supported. Remove audio and video.
    ");
}
