//! Streams of each dialect, whole and cut.

use serde_json::json;

use super::*;

fn assembled(dialect: Dialect, events: &[Value]) -> Assembled {
    let mut assembler = Assembler::new(dialect);
    events.iter().for_each(|event| assembler.feed(event));
    assembler.finish()
}

fn chat() -> Vec<Value> {
    vec![
        json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "prompt_token_ids": [1, 2],
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}),
        json!({"id": "c", "choices": [{"index": 0, "delta": {"reasoning_content": "H"}, "token_ids": [3]}]}),
        json!({"id": "c", "choices": [{"index": 0, "delta": {"reasoning_content": "m", "content": null},
            "token_ids": [4], "logprobs": {"content": [{"token": "m", "logprob": -0.5}]}}]}),
        json!({"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "type": "function",
            "function": {"name": "ls", "arguments": "{\"p\""}}]}}]}),
        json!({"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "",
            "function": {"name": "", "arguments": ": 1}"}}]},
            "logprobs": {"content": [{"token": "}", "logprob": -0.1}]}}]}),
        json!({"id": "c", "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "tool_calls"}]}),
        json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}),
    ]
}

#[test]
fn chunks_of_chat_completions_make_a_completion_with_its_token_ids() {
    let whole = assembled(Dialect::Chat, &chat());
    assert!(whole.is_complete);
    insta::assert_snapshot!(whole.body, @r#"{"id":"c","object":"chat.completion","created":1,"model":"m","prompt_token_ids":[1,2],"usage":{"prompt_tokens":2,"completion_tokens":3},"choices":[{"finish_reason":"tool_calls","token_ids":[3,4],"logprobs":{"content":[{"token":"m","logprob":-0.5},{"token":"}","logprob":-0.1}]},"index":0,"message":{"role":"assistant","content":null,"reasoning_content":"Hm","tool_calls":[{"id":"a","type":"function","function":{"name":"ls","arguments":"{\"p\": 1}"}}]}}]}"#);
    let cut = assembled(Dialect::Chat, &chat()[..4]);
    assert!(!cut.is_complete);
    insta::assert_snapshot!(cut.body["choices"][0]["message"], @r#"{"role":"assistant","content":null,"reasoning_content":"Hm","tool_calls":[{"id":"a","type":"function","function":{"name":"ls","arguments":"{\"p\""}}]}"#);
}

#[test]
fn events_of_messages_make_a_message() {
    let events = [
        json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [],
            "usage": {"input_tokens": 7, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "Eq"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block":
            {"type": "tool_use", "id": "t", "name": "ls", "input": {}}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{\"p\""}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ":1}"}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}),
        json!({"type": "message_stop"}),
    ];
    let whole = assembled(Dialect::Messages, &events);
    assert!(whole.is_complete);
    insta::assert_snapshot!(whole.body, @r#"{"id":"m","type":"message","role":"assistant","content":[{"type":"thinking","thinking":"Hm","signature":"Eq"},{"type":"tool_use","id":"t","name":"ls","input":{"p":1}}],"usage":{"input_tokens":7,"output_tokens":9},"stop_reason":"tool_use"}"#);
    let cut = assembled(Dialect::Messages, &events[..7]);
    assert!(!cut.is_complete);
    assert_eq!(cut.body["content"][1]["input"], "{\"p\"");
}

#[test]
fn events_of_responses_make_a_response_even_if_the_last_is_missing_or_empty() {
    let events = [
        json!({"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}}),
        json!({"type": "response.output_item.added", "output_index": 0, "item":
            {"type": "message", "id": "i", "content": []}}),
        json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "He"}),
        json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 900, "delta": "y"}),
        json!({"type": "response.output_item.added", "output_index": 1, "item":
            {"type": "function_call", "call_id": "c", "name": "ls", "arguments": ""}}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"}),
        json!({"type": "response.completed", "response": {"id": "r", "usage": {"input_tokens": 1}}}),
    ];
    let whole = assembled(Dialect::Responses, &events);
    assert!(whole.is_complete);
    insta::assert_snapshot!(whole.body, @r#"{"id":"r","usage":{"input_tokens":1},"output":[{"type":"message","id":"i","content":[{"type":"output_text","text":"He"},{"type":"output_text","text":"y"}]},{"type":"function_call","call_id":"c","name":"ls","arguments":"{}"}]}"#);
    let cut = assembled(Dialect::Responses, &events[..6]);
    assert!(!cut.is_complete);
    assert_eq!(cut.body["output"], whole.body["output"]);
}

#[test]
fn chunks_of_gemini_make_a_response() {
    let chunk = |parts: Value| {
        json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 1}})
    };
    let events = [
        chunk(json!([{"text": "H", "thought": true}])),
        chunk(json!([{"text": "m", "thought": true}, {"text": "Hel"}])),
        chunk(json!([{"text": "lo"}])),
        chunk(json!([{"functionCall": {"name": "ls", "args": {}}, "thoughtSignature": "Eq"}])),
        json!({"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"candidatesTokenCount": 5}}),
    ];
    let whole = assembled(Dialect::Gemini, &events);
    assert!(whole.is_complete);
    insta::assert_snapshot!(whole.body, @r#"{"usageMetadata":{"promptTokenCount":7,"candidatesTokenCount":5},"candidates":[{"finishReason":"STOP","content":{"role":"model","parts":[{"text":"Hm","thought":true},{"text":"Hello"},{"functionCall":{"name":"ls","args":{}},"thoughtSignature":"Eq"}]},"index":0}]}"#);
    assert!(!assembled(Dialect::Gemini, &events[..4]).is_complete);
}

#[test]
fn anything_is_survived() {
    for dialect in [Dialect::Chat, Dialect::Responses, Dialect::Messages, Dialect::Gemini] {
        for event in [
            json!(null),
            json!([]),
            json!({"choices": [7, {"delta": {"tool_calls": [7]}}]}),
            json!({"type": "content_block_delta", "index": 5, "delta": {}}),
            json!({"type": "message_start"}),
            json!({"type": "response.output_text.delta", "delta": "x"}),
            json!({"type": "response.output_item.added", "item": 7}),
            json!({"type": "response.refusal.delta", "delta": "x"}),
            json!({"candidates": [{"content": {"parts": [7]}}]}),
        ] {
            assembled(dialect, &[event.clone(), event]);
        }
        assembled(dialect, &[]);
    }
}
