//! Small logs of each form, and logs that are no logs.

use serde_json::{Value, json};

use super::*;
use crate::agent::trajectory::Trajectory;

const ALL: [LogFormat; 10] = [
    LogFormat::Claude,
    LogFormat::Cline,
    LogFormat::Codex,
    LogFormat::Copilot,
    LogFormat::Gemini,
    LogFormat::Goose,
    LogFormat::Kimi,
    LogFormat::MiniSweAgent,
    LogFormat::Opencode,
    LogFormat::Openhands,
];

fn lines(events: &[Value]) -> Vec<u8> {
    events.iter().map(|event| format!("{event}\n")).collect::<String>().into_bytes()
}

/// The conversation in one line for each message.
fn shown(log: &OwnLog) -> String {
    let answers = |messages: &Messages| messages.iter().map(|message| one(message)).collect::<String>();
    let turns = log.turns.iter().map(|turn| one(&turn.response.message) + &answers(&turn.answers));
    answers(&log.prompt) + &turns.collect::<String>()
}

fn one(message: &Message) -> String {
    let thought = message.reasoning_content.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
    let calls: String = message
        .tool_calls
        .iter()
        .map(|call| format!(" {}={}{}", call.id, call.name, call.arguments))
        .collect();
    let of = message.tool_call_id.as_ref().map(|id| format!(" {id}")).unwrap_or_default();
    format!("{}{of}:{thought} {}{calls}\n", message.role.as_str(), message.text())
}

fn used(input: u64, output: u64, cached: u64, cost_usd: Option<f64>) -> Option<AgentUsage> {
    let (input_tokens, output_tokens, cached_tokens) = (Some(input), Some(output), Some(cached));
    Some(AgentUsage { input_tokens, output_tokens, cached_tokens, cost_usd })
}

#[test]
fn blocks_of_one_response_of_claude_code_are_one_turn_and_sub_agents_are_left_out() {
    let said = |id: &str, block: Value| {
        json!({"type": "assistant", "parent_tool_use_id": null, "message": {"id": id, "role": "assistant",
            "model": "m", "content": [block], "usage": {"input_tokens": 6, "cache_read_input_tokens": 4,
            "output_tokens": 1}}})
    };
    let mut sub_agent = said("s", json!({"type": "text", "text": "I am another"}));
    sub_agent["parent_tool_use_id"] = json!("a");
    let log = read(
        LogFormat::Claude,
        &lines(&[
            json!({"type": "system", "subtype": "init", "model": "m"}),
            said("1", json!({"type": "thinking", "thinking": "hm", "signature": "x"})),
            said("1", json!({"type": "text", "text": "I look."})),
            said("1", json!({"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": "ls"}})),
            sub_agent,
            json!({"type": "user", "message": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "f"}]}]}}),
            said("2", json!({"type": "text", "text": "Done."})),
            json!({"type": "result", "total_cost_usd": 0.5, "usage": {"input_tokens": 1, "output_tokens": 1},
            "modelUsage": {"m": {"inputTokens": 12, "outputTokens": 7, "cacheReadInputTokens": 8,
            "cacheCreationInputTokens": 1}, "n": {"inputTokens": 3, "outputTokens": 2}}}),
        ]),
    )
    .unwrap();
    insta::assert_snapshot!(shown(&log), @r#"
    assistant: (hm) I look. a=Bash{"command":"ls"}
    tool a: f
    assistant: Done.
    "#);
    assert_eq!(log.usage, used(24, 9, 8, Some(0.5)));
    assert_eq!(log.turns[0].response.usage.unwrap().input_tokens(), 10);
    assert_eq!(log.model, "m");
}

#[test]
fn qwen_code_counts_cached_tokens_among_those_of_the_input() {
    let result = json!({"type": "result", "usage": {"input_tokens": 2000, "output_tokens": 40,
        "cache_read_input_tokens": 800, "total_tokens": 2040}});
    assert_eq!(read(LogFormat::Claude, &lines(&[result])).unwrap().usage, used(2000, 40, 800, None));
}

#[test]
fn the_cli_of_cursor_prints_its_calls_as_events_of_their_own() {
    let call = |subtype: &str, call: Value| json!({"type": "tool_call", "subtype": subtype, "call_id": "c", "tool_call": {"readToolCall": call}});
    let text = |text: &str| json!({"role": "assistant", "content": [{"type": "text", "text": text}]});
    let log = read(LogFormat::Claude, &lines(&[
        json!({"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "do it"}]}}),
        json!({"type": "assistant", "message": text("I read.")}),
        call("started", json!({"args": {"path": "f"}})),
        call("completed", json!({"args": {"path": "f"}, "result": {"success": {"content": "x"}}})),
        json!({"type": "assistant", "message": text("Done.")}),
        json!({"type": "result", "subtype": "success", "result": "Done."}),
    ]))
    .unwrap();
    insta::assert_snapshot!(shown(&log), @r#"
    user: do it
    assistant: I read. c=read{"path":"f"}
    tool c: {"success":{"content":"x"}}
    assistant: Done.
    "#);
}

#[test]
fn calls_of_codex_that_never_ended_have_no_answer() {
    let command = |kind: &str, id: &str, code: Value| {
        json!({"type": kind, "item": {"id": id, "type": "command_execution", "command": "ls",
            "aggregated_output": if code.is_null() { "" } else { "f" }, "exit_code": code}})
    };
    let log = read(LogFormat::Codex, &lines(&[
        json!({"type": "thread.started", "thread_id": "t"}),
        json!({"type": "item.completed", "item": {"id": "i0", "type": "reasoning", "text": "hm"}}),
        command("item.started", "i1", Value::Null),
        command("item.completed", "i1", json!(2)),
        json!({"type": "item.completed", "item": {"id": "i2", "type": "mcp_tool_call", "server": "s", "tool": "t",
            "arguments": {"a": 1}, "result": {"content": [{"type": "text", "text": "r"}]}, "error": null}}),
        json!({"type": "item.completed", "item": {"id": "i3", "type": "agent_message", "text": "Once more."}}),
        command("item.started", "i4", Value::Null),
        json!({"type": "turn.completed", "usage": {"input_tokens": 20, "cached_input_tokens": 8, "output_tokens": 4}}),
    ]))
    .unwrap();
    insta::assert_snapshot!(shown(&log), @r#"
    assistant: (hm)  i1=command_execution{"command":"ls"}
    tool i1: f
    exit code 2
    assistant:  i2=s.t{"a":1}
    tool i2: r
    assistant: Once more. i4=command_execution{"command":"ls"}
    "#);
    assert_eq!(log.usage, used(20, 4, 8, None));
}

#[test]
fn messages_of_gemini_cli_are_in_pieces() {
    let piece = |text: &str| json!({"type": "message", "role": "assistant", "content": text, "delta": true});
    let log = read(LogFormat::Gemini, &lines(&[
        json!({"type": "init", "model": "m"}),
        json!({"type": "message", "role": "user", "content": "do it"}),
        json!({"type": "tool_use", "tool_name": "shell", "tool_id": "a", "parameters": {"command": "ls"}}),
        json!({"type": "tool_result", "tool_id": "a", "status": "success", "output": "f"}),
        piece("All "),
        piece("done."),
        json!({"type": "result", "stats": {"input_tokens": 20, "output_tokens": 4, "cached": 8, "input": 12}}),
    ]))
    .unwrap();
    insta::assert_snapshot!(shown(&log), @r#"
    user: do it
    assistant:  a=shell{"command":"ls"}
    tool a: f
    assistant: All done.
    "#);
    assert_eq!(log.usage, used(20, 4, 8, None));
}

#[test]
fn steps_of_opencode_are_turns_with_tokens_and_cost() {
    let tokens = json!({"total": 1020, "input": 600, "output": 15, "reasoning": 5, "cache": {"write": 0, "read": 400}});
    let finish = json!({"type": "step_finish", "part": {"tokens": tokens, "cost": 0.25}});
    let log = read(
        LogFormat::Opencode,
        &lines(&[
            json!({"type": "step_start", "part": {}}),
            json!({"type": "tool_use", "part": {"tool": "bash", "callID": "a",
            "state": {"status": "error", "input": {"command": "ls"}, "error": "denied"}}}),
            finish.clone(),
            json!({"type": "step_start", "part": {}}),
            json!({"type": "text", "part": {"text": "Done."}}),
            finish,
        ]),
    )
    .unwrap();
    insta::assert_snapshot!(shown(&log), @r#"
    assistant:  a=bash{"command":"ls"}
    tool a: denied
    assistant: Done.
    "#);
    assert_eq!(log.usage, used(2000, 40, 800, Some(0.5)));
    assert_eq!(log.turns[1].response.usage.unwrap().total_tokens(), 1020);
}

#[test]
fn the_file_of_mini_swe_agent_has_the_answer_to_the_last_call() {
    let said = |id: &str| {
        json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": id, "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
            "extra": {"cost": 0.0, "response": {"model": "m", "usage": {"prompt_tokens": 10, "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 4}}}}})
    };
    let file = json!({"trajectory_format": "mini-swe-agent-1.1", "info": {}, "messages": [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "do it"},
        said("a"), {"role": "tool", "tool_call_id": "a", "content": "f"},
        said("b"), {"role": "tool", "tool_call_id": "b", "content": "submitted"}, {"role": "exit", "content": ""},
    ]});
    let log = read(LogFormat::MiniSweAgent, file.to_string().as_bytes()).unwrap();
    insta::assert_snapshot!(shown(&log), @r"
    system: be brief
    user: do it
    assistant:  a=bash{}
    tool a: f
    assistant:  b=bash{}
    tool b: submitted
    ");
    assert_eq!(log.usage, used(20, 4, 8, None));
    assert_eq!(log.answers_to(&[ToolCall::new("b", "bash", "{}")], 2)[0].text(), "submitted");
}

#[test]
fn messages_of_goose_kimi_cline_copilot_and_openhands_are_read() {
    let logs = [
        (
            LogFormat::Goose,
            vec![
                json!({"type": "message", "message": {"id": "1", "role": "assistant", "content": [
                {"type": "toolRequest", "id": "a", "toolCall": {"value": {"name": "shell", "arguments": {}}}}]}}),
                json!({"type": "message", "message": {"id": "2", "role": "user", "content": [{"type": "toolResponse",
                "id": "a", "toolResult": {"value": {"content": [{"type": "text", "text": "f"}]}}}]}}),
                json!({"type": "message", "message": {"id": "3", "role": "assistant", "content": [{"type": "text", "text": "Do"}]}}),
                json!({"type": "message", "message": {"id": "3", "role": "assistant", "content": [{"type": "text", "text": "ne."}]}}),
                json!({"type": "complete", "input_tokens": 20, "output_tokens": 4, "cache_read_input_tokens": 8}),
            ],
        ),
        (
            LogFormat::Kimi,
            vec![
                json!({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "shell", "arguments": "{}"}}]}),
                json!({"role": "tool", "tool_call_id": "a", "content": "f"}),
                json!({"role": "assistant", "content": "Done."}),
                json!({"type": "usage.record", "usage": {"inputOther": 6, "output": 2, "inputCacheRead": 4}}),
                json!({"type": "usage.record", "usage": {"inputOther": 6, "output": 2, "inputCacheRead": 4}}),
            ],
        ),
        (
            LogFormat::Cline,
            vec![
                json!({"type": "agent_event", "event": {"type": "iteration_start"}}),
                json!({"type": "agent_event", "event": {"type": "content_start", "contentType": "tool", "toolCallId": "a",
                "toolName": "shell", "input": {}}}),
                json!({"type": "agent_event", "event": {"type": "content_end", "contentType": "tool", "toolCallId": "a",
                "toolName": "shell", "output": "f"}}),
                json!({"type": "agent_event", "event": {"type": "iteration_start"}}),
                json!({"type": "agent_event", "event": {"type": "content_start", "contentType": "text", "text": "Do"}}),
                json!({"type": "agent_event", "event": {"type": "content_end", "contentType": "text", "text": "Done."}}),
                json!({"type": "run_result", "usage": {"inputTokens": 20, "outputTokens": 4, "cacheReadTokens": 8}}),
            ],
        ),
        (
            LogFormat::Copilot,
            vec![
                json!({"type": "assistant.turn_start", "data": {}}),
                json!({"type": "assistant.message", "data": {"content": "", "toolRequests": [
                {"toolCallId": "a", "name": "shell", "arguments": {}}]}}),
                json!({"type": "tool.execution_complete", "data": {"toolCallId": "a", "result": {"content": "f"}}}),
                json!({"type": "assistant.turn_start", "data": {}}),
                json!({"type": "assistant.message", "data": {"content": "Done.", "toolRequests": []}}),
                json!({"type": "session.usage_record", "data": {"usage": {"inputTokens": 20, "outputTokens": 4,
                "cacheReadTokens": 8, "cost": 0.0}}}),
            ],
        ),
        (
            LogFormat::Openhands,
            vec![
                json!({"kind": "ActionEvent", "source": "agent", "llm_response_id": "1", "tool_call_id": "a",
                "tool_call": {"name": "shell", "arguments": "{}"}, "thought": []}),
                json!({"kind": "ObservationEvent", "tool_call_id": "a", "observation": {"content": [{"text": "f"}]}}),
                json!({"kind": "MessageEvent", "source": "agent", "llm_response_id": "2",
                "llm_message": {"role": "assistant", "content": [{"type": "text", "text": "Done."}]}}),
                json!({"id": "c", "stats": {"usage_to_metrics": {"agent": {"model_name": "m", "accumulated_cost": 0.0,
                "accumulated_token_usage": {"prompt_tokens": 20, "completion_tokens": 4, "cache_read_tokens": 8}}}}}),
            ],
        ),
    ];
    for (format, events) in logs {
        let log = read(format, &lines(&events)).unwrap();
        assert_eq!(shown(&log), "assistant:  a=shell{}\ntool a: f\nassistant: Done.\n", "{format:?}");
        assert_eq!(log.usage, used(20, 4, 8, None), "{format:?}");
    }
}

#[test]
fn a_call_with_another_id_is_found_by_its_place_if_there_are_as_many() {
    let command = |id: &str, output: &str| {
        json!({"type": "item.completed", "item": {"id": id, "type": "command_execution", "command": "ls",
            "aggregated_output": output, "exit_code": 0}})
    };
    let log = read(LogFormat::Codex, &lines(&[command("i1", "first"), command("i2", "second")])).unwrap();
    let calls = [ToolCall::new("call_b", "shell", "{}")];
    let answers = log.answers_to(&calls, 2);
    assert_eq!((answers[0].text().as_ref(), answers[0].tool_call_id.as_deref()), ("second", Some("call_b")));
    assert!(log.answers_to(&calls, 3).is_empty());
}

#[test]
fn whatever_is_in_a_log_reading_it_ends() {
    let deep = [b"{\"a\":".repeat(100_000), b"1".to_vec()].concat();
    let odd = ["type", "role", "kind"].map(|key| {
        let words = ["assistant", "user", "tool", "result", "message", "item.completed", "tool_call", "text",
            "agent_event", "usage.record", "step_finish", "tool_use", "run_result", "MessageEvent", "complete"];
        let values = [json!(null), json!(-1), json!("x"), json!([[]]), json!({"content": [1, {"type": "text", "text": 7}]})];
        words.map(|word| {
            values.clone().map(|value| {
                json!({key: word, "message": value, "item": value, "usage": value, "event": value, "data": value,
                    "part": value, "content": value, "tool_calls": value, "tool_call": value, "stats": value})
                .to_string()
            })
            .join("\n")
        })
        .join("\n")
    });
    let odd = odd.join("\n").into_bytes();
    let huge = json!({"type": "result", "usage": {"input_tokens": u64::MAX, "output_tokens": 1, "cache_read_input_tokens": u64::MAX}});
    for format in ALL {
        for bytes in
            [&b""[..], b"{", b"null", b"\xff\xfe{\"type\":\"\xff\"}", &deep, b"{\"messages\": [3, [], {}]}"]
        {
            assert!(read(format, bytes).is_err(), "{format:?} {:?}", &bytes[..bytes.len().min(20)]);
        }
        // Each is an error or a part of a conversation, but no panic.
        _ = read(format, &odd);
        _ = read(format, &lines(std::slice::from_ref(&huge)));
    }
}

#[test]
fn a_log_that_is_cut_gives_what_came_before() {
    let text = |text: &str| json!({"type": "text", "part": {"text": text}});
    let whole = lines(&[text("Hello"), text(" there")]);
    for end in 0..whole.len() {
        if let Ok(log) = read(LogFormat::Opencode, &whole[..end]) {
            assert!(shown(&log).starts_with("assistant: Hello"));
        }
    }
}

#[test]
fn a_conversation_is_kept_up_to_a_size_without_holes() {
    let text = "a".repeat(1 << 20);
    let mut log = Builder::default();
    for _ in 0..40 {
        log.turn(None);
        log.text(&text);
    }
    log.turn(None);
    log.text("small");
    let log = log.finish().unwrap();
    assert_eq!(log.turns.len(), 32);
    assert!(!shown(&log).contains("small"));
    // Empty messages take memory, too.
    let mut log = Builder::default();
    log.text("a");
    (0..600_000).for_each(|_| log.answer("", String::new()));
    assert_eq!(log.finish().unwrap().turns[0].answers.len(), (32 << 20) / 64 - 1);
}

#[test]
fn the_origin_of_a_conversation_is_recorded() {
    let log = read(LogFormat::Kimi, &lines(&[json!({"role": "assistant", "content": "Done."})])).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trajectory.json");
    let (started, time) = (jiff::Timestamp::UNIX_EPOCH, std::time::Duration::from_secs(2));
    Trajectory::of_log(log, started, time).write(&path, &rollout_core::redact::Redactor::default()).unwrap();
    let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(file["origin"], "agent_log");
    assert_eq!(
        file["agent_log"],
        json!({"turns": 1, "tool_calls": 0, "usage": null, "gave_last_answers": false})
    );
    assert_eq!(file["turns"][0]["response"]["message"]["content"], "Done.");
}

#[test]
fn the_error_of_a_log_quotes_nothing_of_it() {
    let log = format!("{{\n\"messages\": \"{}\"}}", "x".repeat(1 << 20));
    let error = read(LogFormat::MiniSweAgent, log.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("(line 2, column ") && !error.contains("xx"), "{}", error.len());
}
