//! Plays a model that answers the questions of the benchmark examples with tools of the tool server.

use serde_json::{Value, json};

use super::{ModelReply, ModelRequest};

/// A known question: its words, the tool, its arguments, and the texts around the answer in the tool's result.
type Known = (&'static str, &'static str, Value, [&'static str; 2]);

/// The reply to a question of the examples; `None` if the request offers other tools.
pub(super) fn reply(request: &ModelRequest, asked: &str) -> Option<ModelReply> {
    let tools = request.body["tools"].as_array()?;
    let offers = |tool: &str| tools.iter().any(|offered| offered["function"]["name"] == tool);
    if !offers("doc-search") {
        return None;
    }
    let known = known().into_iter().find(|(words, tool, ..)| asked.contains(words) && offers(tool));
    Some(match known {
        None => ModelReply::text("I do not know."),
        Some((_, tool, arguments, _)) if request.turns() == 0 => ModelReply::tool_call(tool, &arguments),
        Some((.., [before, after])) => {
            let result = request.last_text();
            let answer = result.split_once(before).map_or("", |(_, rest)| rest);
            let answer = answer.split_once(after).map_or(answer, |(answer, _)| answer);
            ModelReply::text(format!("Final answer: {}", answer.trim()))
        }
    })
}

fn known() -> [Known; 6] {
    let fibonacci = "a, b = 1, 1\nfor _ in range(18):\n    a, b = b, a + b\nprint(b)";
    let paid = "SELECT count(*) FROM orders WHERE month = 'March' AND paid = 1";
    [
        ("Fibonacci", "code-python", json!({"code": fibonacci}), ["", "\n"]),
        ("各位数字之和", "code-python", json!({"code": "print(sum(map(int, str(2 ** 100))))"}), ["", "\n"]),
        (
            "deadline",
            "doc-search",
            json!({"key_words": ["deadline", "books"]}),
            ["bringing them back is ", "."],
        ),
        ("截止日期", "doc-search", json!({"key_words": ["截止日期"]}), ["截止日期是", "。"]),
        ("paid", "sql-execute", json!({"sql": paid}), ["\n", "\n"]),
        (
            "总金额",
            "sql-execute",
            json!({"sql": "SELECT sum(amount) FROM orders WHERE month = 'April'"}),
            ["\n", "\n"],
        ),
    ]
}
