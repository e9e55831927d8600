//! Responses with the other dialects: above all Codex, which is the client with the most forms of its own.

use serde_json::json;

use super::{super::*, *};

/// Codex's third request, shortened.
fn codex() -> Value {
    json!({
        "model": "gpt-5.5",
        "instructions": "You are Codex.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: off."}]},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "Fix it"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBO"},
            ]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look first."}],
             "encrypted_content": null},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec_command",
             "arguments": "{\"cmd\":\"ls\"}"},
            {"type": "function_call", "call_id": "call_2", "namespace": "mcp__files__", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "main.c"},
            {"type": "function_call_output", "call_id": "call_2", "output": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBO"}]},
            {"type": "custom_tool_call", "call_id": "call_3", "name": "apply_patch", "input": "*** Begin Patch\n"},
            {"type": "custom_tool_call_output", "call_id": "call_3", "output": "Done!"},
            {"type": "tool_search_call", "call_id": "call_4", "execution": "client", "arguments": {"query": "issue"}},
            {"type": "tool_search_output", "call_id": "call_4", "execution": "client", "status": "completed", "tools": [
                {"type": "namespace", "name": "mcp__tracker__", "tools": [
                    {"type": "function", "name": "list", "parameters": {"type": "object"}, "defer_loading": true}]}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Half done."}]},
            {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "description": "Runs", "strict": false,
             "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}},
            {"type": "custom", "name": "apply_patch", "description": "Edits files",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin"}},
            {"type": "namespace", "name": "mcp__files__", "description": "Files", "tools": [
                {"type": "function", "name": "read", "description": "Reads", "parameters": {"type": "object"}}]},
            {"type": "tool_search", "execution": "client", "description": "Finds tools",
             "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
            {"type": "local_shell"},
            {"type": "web_search", "external_web_access": false},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": true,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": false,
        "stream": true,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
    })
}

#[test]
fn codex_talks_to_messages() {
    let translated = translated(Dialect::Responses, Dialect::Messages, "claude-sonnet-4-5", codex());
    insta::assert_snapshot!(pretty(&translated.body), @r#"
    model: "claude-sonnet-4-5"
    max_tokens: 32000
    system:
      {"type":"text","text":"You are Codex.\nSandbox: off.","cache_control":{"type":"ephemeral"}}
    messages:
      {"role":"user","content":[{"type":"text","text":"Fix it"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"}}]}
      {"role":"assistant","content":[{"type":"tool_use","id":"call_1","name":"exec_command","input":{"cmd":"ls"}},{"type":"tool_use","id":"call_2","name":"mcp__files__read","input":{}}]}
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":[{"type":"text","text":"main.c"}]},{"type":"tool_result","tool_use_id":"call_2","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"}}]}]}
      {"role":"assistant","content":[{"type":"tool_use","id":"call_3","name":"apply_patch","input":{"input":"*** Begin Patch\n"}}]}
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"call_3","content":[{"type":"text","text":"Done!"}]}]}
      {"role":"assistant","content":[{"type":"tool_use","id":"call_4","name":"tool_search","input":{"query":"issue"}}]}
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"call_4","content":[{"type":"text","text":"These tools are now available: mcp__tracker__list"}]}]}
      {"role":"assistant","content":[{"type":"text","text":"Half done.","cache_control":{"type":"ephemeral"}}]}
    tools:
      {"name":"exec_command","input_schema":{"type":"object","properties":{"cmd":{"type":"string"}},"required":["cmd"]},"description":"Runs"}
      {"name":"apply_patch","input_schema":{"type":"object","properties":{"input":{"type":"string","description":"The text for the tool."}},"required":["input"],"additionalProperties":false},"description":"Edits files\n\n`input` follows this grammar (lark):\nstart: begin"}
      {"name":"mcp__files__read","input_schema":{"type":"object","properties":{}},"description":"Reads\n\nPart of: Files"}
      {"name":"tool_search","input_schema":{"type":"object","properties":{"query":{"type":"string"}}},"description":"Finds tools"}
      {"name":"local_shell","input_schema":{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"},"description":"The command and its arguments."},"working_directory":{"type":"string"},"timeout_ms":{"type":"integer"}},"required":["command"]},"description":"Runs a command and returns its output."}
      {"name":"mcp__tracker__list","input_schema":{"type":"object","properties":{}}}
    tool_choice: {"type":"auto"}
    stream: true
    "#);
    insta::assert_snapshot!(translated.notes.join("\n"), @"
    `tools`: a tool of type `web_search` was left out
    `web_search_call`: calls and results of the provider's own tools were left out
    `text.verbosity`: not translated
    `reasoning`: left out: the client does not send signed thoughts back
    `thoughts`: left out: this upstream takes only thoughts that it signed
    ");
}

#[test]
fn codex_talks_to_chat_completions() {
    let translated = translated(Dialect::Responses, Dialect::Chat, "Qwen/Qwen3-8B", codex());
    insta::assert_snapshot!(pretty(&translated.body).split("tools:").next().unwrap(), @r#"
    model: "Qwen/Qwen3-8B"
    messages:
      {"role":"system","content":"You are Codex.\nSandbox: off."}
      {"role":"user","content":[{"type":"text","text":"Fix it"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO"}}]}
      {"role":"assistant","content":null,"reasoning_content":"Look first.","tool_calls":[{"id":"call_1","type":"function","function":{"name":"exec_command","arguments":"{\"cmd\":\"ls\"}"}},{"id":"call_2","type":"function","function":{"name":"mcp__files__read","arguments":"{}"}}]}
      {"role":"tool","tool_call_id":"call_1","content":"main.c"}
      {"role":"tool","tool_call_id":"call_2","content":"a"}
      {"role":"user","content":[{"type":"text","text":"Content of the result of tool call call_2:"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO"}}]}
      {"role":"assistant","content":null,"tool_calls":[{"id":"call_3","type":"function","function":{"name":"apply_patch","arguments":"{\"input\":\"*** Begin Patch\\n\"}"}}]}
      {"role":"tool","tool_call_id":"call_3","content":"Done!"}
      {"role":"assistant","content":null,"tool_calls":[{"id":"call_4","type":"function","function":{"name":"tool_search","arguments":"{\"query\":\"issue\"}"}}]}
      {"role":"tool","tool_call_id":"call_4","content":"These tools are now available: mcp__tracker__list"}
      {"role":"assistant","content":"Half done."}
    "#);
}

#[test]
fn calls_come_back_in_the_form_that_codex_declared() {
    let context = translated(Dialect::Responses, Dialect::Chat, "m", codex()).context;
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let answer = json!({"id": "c", "choices": [{"finish_reason": "tool_calls", "message": {"content": null, "tool_calls": [
        call("1", "exec_command", "{\"cmd\":\"ls\"}"),
        call("2", "apply_patch", "{\"input\":\"*** Begin Patch\\n\"}"),
        call("3", "mcp__files__read", "{}"),
        call("4", "mcp__tracker__list", "{}"),
        call("5", "tool_search", "{\"query\":\"x\"}"),
        call("6", "local_shell", "{\"command\":[\"ls\"]}"),
    ]}}]});
    let response = context.response(answer).unwrap();
    insta::assert_snapshot!(pretty(&response), @r#"
    id: "c"
    object: "response"
    created_at: 1700000000
    status: "completed"
    error: null
    incomplete_details: null
    instructions: null
    metadata: {}
    model: "asked-model"
    output:
      {"id":"fc_c_0","type":"function_call","status":"completed","call_id":"1","name":"exec_command","arguments":"{\"cmd\":\"ls\"}"}
      {"id":"ctc_c_1","type":"custom_tool_call","status":"completed","call_id":"2","name":"apply_patch","input":"*** Begin Patch\n"}
      {"id":"fc_c_2","type":"function_call","status":"completed","call_id":"3","name":"read","arguments":"{}","namespace":"mcp__files__"}
      {"id":"fc_c_3","type":"function_call","status":"completed","call_id":"4","name":"list","arguments":"{}","namespace":"mcp__tracker__"}
      {"id":"tsc_c_4","type":"tool_search_call","status":"completed","call_id":"5","execution":"client","arguments":{"query":"x"}}
      {"id":"lsh_c_5","type":"local_shell_call","status":"completed","call_id":"6","action":{"command":["ls"],"type":"exec","env":{}}}
    parallel_tool_calls: true
    previous_response_id: null
    store: false
    temperature: null
    text: {"format":{"type":"text"}}
    tool_choice: "auto"
    tools: []
    top_p: null
    truncation: "disabled"
    usage: {"input_tokens":0,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0}
    "#);
}

#[test]
fn a_stream_for_codex_has_the_full_sequence() {
    let context = translated(Dialect::Responses, Dialect::Messages, "m", codex()).context;
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: u64| json!({"type": "content_block_stop", "index": index});
    let events = [
        json!({"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 60}}}),
        start(0, json!({"type": "thinking", "thinking": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "Hm."})),
        delta(0, json!({"type": "signature_delta", "signature": "EqQB"})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "I patch."})),
        stop(1),
        start(2, json!({"type": "tool_use", "id": "toolu_1", "name": "apply_patch", "input": {}})),
        delta(2, json!({"type": "input_json_delta", "partial_json": "{\"input\": \"*** "})),
        delta(2, json!({"type": "input_json_delta", "partial_json": "Begin\"}"})),
        stop(2),
        start(3, json!({"type": "tool_use", "id": "toolu_2", "name": "mcp__files__read", "input": {}})),
        stop(3),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 30}}),
        json!({"type": "message_stop"}),
    ];
    let stream = streamed(&context, &events);
    let lines: Vec<&str> = stream.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let (last, before) = lines.split_last().unwrap();
    insta::assert_snapshot!(before[2..].join("\n"), @r#"
    {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"rs_msg_1_0","type":"reasoning","summary":[],"encrypted_content":null}}
    {"type":"response.reasoning_summary_part.added","sequence_number":3,"item_id":"rs_msg_1_0","output_index":0,"summary_index":0,"part":{"type":"summary_text","text":""}}
    {"type":"response.reasoning_summary_text.delta","sequence_number":4,"item_id":"rs_msg_1_0","output_index":0,"summary_index":0,"delta":"Hm."}
    {"type":"response.reasoning_summary_text.done","sequence_number":5,"item_id":"rs_msg_1_0","output_index":0,"summary_index":0,"text":"Hm."}
    {"type":"response.reasoning_summary_part.done","sequence_number":6,"item_id":"rs_msg_1_0","output_index":0,"summary_index":0,"part":{"type":"summary_text","text":"Hm."}}
    {"type":"response.output_item.done","sequence_number":7,"output_index":0,"item":{"id":"rs_msg_1_0","type":"reasoning","summary":[{"type":"summary_text","text":"Hm."}],"encrypted_content":"cm9sbG91dDp7ImRpYWxlY3QiOiJtZXNzYWdlcyIsInNpZ25hdHVyZSI6IkVxUUIifQ=="}}
    {"type":"response.output_item.added","sequence_number":8,"output_index":1,"item":{"id":"msg_msg_1_1","type":"message","status":"in_progress","role":"assistant","content":[]}}
    {"type":"response.content_part.added","sequence_number":9,"item_id":"msg_msg_1_1","output_index":1,"content_index":0,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}}
    {"type":"response.output_text.delta","sequence_number":10,"item_id":"msg_msg_1_1","output_index":1,"content_index":0,"delta":"I patch.","logprobs":[]}
    {"type":"response.output_text.done","sequence_number":11,"item_id":"msg_msg_1_1","output_index":1,"content_index":0,"text":"I patch.","logprobs":[]}
    {"type":"response.content_part.done","sequence_number":12,"item_id":"msg_msg_1_1","output_index":1,"content_index":0,"part":{"type":"output_text","text":"I patch.","annotations":[],"logprobs":[]}}
    {"type":"response.output_item.done","sequence_number":13,"output_index":1,"item":{"id":"msg_msg_1_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"I patch.","annotations":[],"logprobs":[]}]}}
    {"type":"response.output_item.added","sequence_number":14,"output_index":2,"item":{"id":"ctc_msg_1_2","type":"custom_tool_call","status":"in_progress","call_id":"toolu_1","name":"apply_patch","input":""}}
    {"type":"response.custom_tool_call_input.delta","sequence_number":15,"item_id":"ctc_msg_1_2","output_index":2,"delta":"*** Begin"}
    {"type":"response.custom_tool_call_input.done","sequence_number":16,"item_id":"ctc_msg_1_2","output_index":2,"input":"*** Begin"}
    {"type":"response.output_item.done","sequence_number":17,"output_index":2,"item":{"id":"ctc_msg_1_2","type":"custom_tool_call","status":"completed","call_id":"toolu_1","name":"apply_patch","input":"*** Begin"}}
    {"type":"response.output_item.added","sequence_number":18,"output_index":3,"item":{"id":"fc_msg_1_3","type":"function_call","status":"in_progress","call_id":"toolu_2","name":"read","arguments":"","namespace":"mcp__files__"}}
    {"type":"response.function_call_arguments.delta","sequence_number":19,"item_id":"fc_msg_1_3","output_index":3,"delta":"{}"}
    {"type":"response.function_call_arguments.done","sequence_number":20,"item_id":"fc_msg_1_3","output_index":3,"name":"read","arguments":"{}"}
    {"type":"response.output_item.done","sequence_number":21,"output_index":3,"item":{"id":"fc_msg_1_3","type":"function_call","status":"completed","call_id":"toolu_2","name":"read","arguments":"{}","namespace":"mcp__files__"}}
    "#);
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"].as_array().unwrap().len(), 4);
    assert_eq!(last["response"]["usage"]["total_tokens"], 90);
}

#[test]
fn a_signed_thought_goes_through_codex_and_back_to_messages() {
    let first = translated(Dialect::Responses, Dialect::Messages, "claude-sonnet-4-5", codex());
    assert_eq!(first.body.get("thinking"), None, "the history has a call without a signed thought");
    let body = json!({"model": "m", "input": "Hi", "reasoning": {"effort": "low"}});
    let first = translated(Dialect::Responses, Dialect::Messages, "claude-sonnet-4-5", body.clone());
    assert_eq!(first.body["thinking"], json!({"type": "enabled", "budget_tokens": 2048}));
    let answer = json!({"id": "m", "stop_reason": "tool_use", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}]});
    let response = first.context.response(answer.clone()).unwrap();
    let mut items = vec![json!({"type": "message", "role": "user", "content": "Hi"})];
    items.extend(response["output"].as_array().unwrap().clone());
    items.push(json!({"type": "function_call_output", "call_id": "toolu_1", "output": "a"}));
    let mut body = body;
    body["input"] = Value::Array(items);
    let second = translated(Dialect::Responses, Dialect::Messages, "claude-sonnet-4-5", body);
    assert_eq!(second.body["messages"][1]["content"], answer["content"]);
    assert_eq!(second.body["thinking"]["type"], "enabled");
}

#[test]
fn claude_code_talks_to_responses_and_gets_its_reasoning_back() {
    let body = json!({
        "model": "claude", "max_tokens": 100, "stream": true,
        "system": "You are Claude Code.",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Later."}],
        "tools": [{"name": "Bash", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled", "budget_tokens": 10000},
        "temperature": 1,
    });
    let first = translated(Dialect::Messages, Dialect::Responses, "gpt-5.5", body.clone());
    insta::assert_snapshot!(pretty(&first.body), @r#"
    model: "gpt-5.5"
    instructions: "You are Claude Code."
    input:
      {"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]}
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"Later."}]}
    tools:
      {"type":"function","name":"Bash","parameters":{"type":"object","properties":{}},"strict":false}
    reasoning: {"effort":"medium"}
    include:
      "reasoning.encrypted_content"
    max_output_tokens: 100
    store: false
    stream: true
    "#);
    let events = [
        json!({"type": "response.created", "response": {"id": "resp_1", "model": "gpt-5.5"}}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "summary": []}}),
        json!({"type": "response.output_item.done", "output_index": 0, "item":
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}}),
        json!({"type": "response.output_item.added", "output_index": 1, "item":
            {"type": "function_call", "call_id": "call_1", "name": "Bash", "arguments": ""}}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{\"command\":\"ls\"}"}),
        json!({"type": "response.function_call_arguments.done", "output_index": 1, "arguments": "{\"command\":\"ls\"}"}),
        json!({"type": "response.output_item.done", "output_index": 1, "item":
            {"type": "function_call", "call_id": "call_1", "name": "Bash", "arguments": "{\"command\":\"ls\"}"}}),
        json!({"type": "response.completed", "response": {"usage": {"input_tokens": 10, "output_tokens": 5,
            "input_tokens_details": {"cached_tokens": 4}}}}),
    ];
    let stream = streamed(&first.context, &events);
    let mut assembler = crate::assemble::Assembler::new(Dialect::Messages);
    for line in stream.lines().filter_map(|line| line.strip_prefix("data: ")) {
        assembler.feed(&serde_json::from_str(line).unwrap());
    }
    let message = assembler.finish().body;
    assert_eq!(message["content"][1]["input"], json!({"command": "ls"}));
    assert_eq!(message["usage"]["cache_read_input_tokens"], 4);
    let mut body = body;
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": message["content"]}));
    messages.push(json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "a"}]}));
    let second = translated(Dialect::Messages, Dialect::Responses, "gpt-5.5", body);
    let input = second.body["input"].as_array().unwrap();
    assert_eq!(input[2], json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}));
    assert_eq!(input[3]["call_id"], "call_1");
    assert_eq!(input[4]["output"], "a");
}

#[test]
fn a_stream_of_whole_items_is_understood() {
    let context = context(Dialect::Chat, Dialect::Responses, plain_request(Dialect::Chat));
    let done = |index: u64, item: Value| json!({"type": "response.output_item.done", "output_index": index, "item": item});
    let stream = streamed(
        &context,
        &[
            done(0, json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]})),
            done(1, json!({"type": "message", "content": [{"type": "output_text", "text": "Hi."}]})),
            json!({"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{}"}),
            done(2, json!({"type": "function_call", "call_id": "a", "name": "ls", "arguments": "{}"})),
            json!({"type": "response.completed", "response": {"id": "r"}}),
        ],
    );
    let mut assembler = crate::assemble::Assembler::new(Dialect::Chat);
    for data in stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
    {
        assembler.feed(&serde_json::from_str(data).unwrap());
    }
    let message = assembler.finish().body["choices"][0]["message"].clone();
    insta::assert_snapshot!(message, @r#"{"role":"assistant","content":"Hi.","reasoning_content":"Hm.","tool_calls":[{"id":"a","type":"function","function":{"name":"ls","arguments":"{}"}}]}"#);
}

#[test]
fn what_only_a_provider_that_stores_can_do_is_refused() {
    let refused =
        |body| request(Dialect::Responses, Dialect::Chat, body, &target("m")).unwrap_err().to_string();
    let refusals = [
        refused(json!({"input": "x", "previous_response_id": "resp_1"})),
        refused(json!({"input": "x", "conversation": "conv_1"})),
        refused(json!({"input": "x", "background": true})),
        refused(json!({"input": [{"type": "item_reference", "id": "rs_1"}]})),
        refused(json!({"input": [{"type": "compaction", "encrypted_content": "x"}]})),
        refused(json!({"input": "x", "tools": [{"type": "computer_use_preview"}]})),
        refused(json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]})),
        request(Dialect::Chat, Dialect::Responses, json!({"messages": [], "stop": "x"}), &target("m"))
            .unwrap_err()
            .to_string(),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @"
    `previous_response_id` cannot be translated for this model server: this model server stores no conversations. Send the whole conversation in `input`.
    `conversation` cannot be translated for this model server: this model server stores no conversations. Send the whole conversation in `input`.
    `background` cannot be translated for this model server: this model server stores no answers. Wait for the answer.
    `input[0].type` cannot be translated for this model server: this model server stores no conversations. Send the item itself.
    `input[0].type` cannot be translated for this model server: items of type `compaction` are not supported. Send messages, function calls and their outputs.
    `tools[0].type` cannot be translated for this model server: tools of type `computer_use_preview` are not supported. Declare the tool as a function.
    `input[0].content[0].file_id` cannot be translated for this model server: files that are stored at a provider cannot be read. Send the content itself.
    `stop` cannot be translated for this model server: Responses has no stop sequences. Leave them out, or use a Chat Completions upstream.
    ");
}

#[test]
fn an_incomplete_or_failed_response_keeps_its_meaning() {
    let chat = context(Dialect::Chat, Dialect::Responses, plain_request(Dialect::Chat));
    let cut =
        json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []});
    assert_eq!(chat.response(cut).unwrap()["choices"][0]["finish_reason"], "length");
    let failed = json!({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}, "output": []});
    assert_eq!(
        chat.response(failed).unwrap_err(),
        TranslationError::Failed { kind: ErrorKind::RateLimit, message: "slow".to_owned() }
    );
    let codex = context(Dialect::Responses, Dialect::Chat, plain_request(Dialect::Responses));
    let long = json!({"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]});
    let response = codex.response(long).unwrap();
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let refused = json!({"choices": [{"message": {"refusal": "No."}, "finish_reason": "stop"}]});
    assert_eq!(
        codex.response(refused).unwrap()["output"][0]["content"][0],
        json!({"type": "refusal", "refusal": "No."})
    );
}
