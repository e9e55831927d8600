//! The events of `codex exec --json`.
//!
//! They have no bounds of turns: what the model says after the end of a call is the next turn.

use serde_json::{Value, json};

use super::{Builder, count, string, text_of};
use rollout_core::result::AgentUsage;

pub(super) fn event(log: &mut Builder, event: &Value) {
    match string(&event["type"]) {
        "item.started" => item(log, &event["item"], false),
        "item.completed" => item(log, &event["item"], true),
        "turn.completed" if event["usage"].is_object() => {
            let usage = &event["usage"];
            log.usage(AgentUsage {
                input_tokens: Some(count(&usage["input_tokens"])),
                output_tokens: Some(count(&usage["output_tokens"])),
                cached_tokens: Some(count(&usage["cached_input_tokens"])),
                cost_usd: None,
            });
        }
        _ => {}
    }
}

fn item(log: &mut Builder, item: &Value, ended: bool) {
    let id = string(&item["id"]);
    let kind = string(&item["type"]);
    match kind {
        "agent_message" if ended => log.text(string(&item["text"])),
        "reasoning" if ended => log.reasoning(string(&item["text"])),
        "command_execution" => {
            log.call(id, kind, &json!({ "command": item["command"] }));
            if ended {
                let mut output = string(&item["aggregated_output"]).to_owned();
                if let Some(code) = item["exit_code"].as_i64().filter(|code| *code != 0) {
                    output.push_str(&format!("\nexit code {code}"));
                }
                log.answer(id, output);
            }
        }
        "file_change" => {
            log.call(id, kind, &json!({ "changes": item["changes"] }));
            if ended {
                log.answer(id, string(&item["status"]).to_owned());
            }
        }
        "mcp_tool_call" => {
            let name = format!("{}.{}", string(&item["server"]), string(&item["tool"]));
            log.call(id, &name, &item["arguments"]);
            if ended {
                let result = &item["result"];
                let answer = if result.is_null() { &item["error"]["message"] } else { &result["content"] };
                log.answer(id, text_of(answer));
            }
        }
        "web_search" => log.call(id, kind, &json!({ "query": item["query"] })),
        _ => {}
    }
}
