//! `rollout export inspect` and `rollout export atif`, with the files read by other programs.

mod atif;
mod inspect;

use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask, TokenCounts};
use serde_json::{Value, json};

/// What every response of the scripted models takes.
const COUNTS: TokenCounts =
    TokenCounts { prompt: 1000, cached: 600, cache_write: 0, completion: 50, reasoning: 0, cost: None };

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

fn model(server: &ModelServer) -> Value {
    let prices = json!({"input": 10, "output": 100, "cached_input": 5});
    json!({"name": "scripted", "base_url": server.url(), "max_retries": 0, "prices": prices})
}

/// Two tasks, one of which cannot be solved, for a model and a script.
fn containers(server: &ModelServer) -> TestJob {
    job()
        .task(TestTask::new("good"))
        .task(TestTask::new("broken").tests("exit 0\n"))
        .agent(json!({"name": "model", "model": model(server)}))
        .script("touch /app/done")
        .set("n_attempts", json!(2))
}

/// A model that solves a task with a tool.
fn solver() -> ModelServer {
    ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": "touch /app/done; echo made"})).usage(COUNTS),
        ModelReply::text("Done.").usage(COUNTS),
    ])
}

/// Three questions to a model that gets one right, one wrong, and is not allowed to answer the last.
fn rollouts(server: &ModelServer) -> TestJob {
    let sums: Vec<_> = (0..3)
        .map(|n| json!({"question": format!("What is {n}+1?"), "answer": (n + 1).to_string()}))
        .collect();
    let interaction =
        json!({"dataset": sums, "rubric": [{"match": "numeric"}], "system_prompt": "Be brief."});
    job()
        .agent(json!({"name": "gpt", "model": model(server)}))
        .set("datasets", json!([{"name": "small_sums", "interaction": interaction}]))
        .set("n_attempts", json!(2))
}

fn answerer() -> ModelServer {
    ModelServer::scripted(|request| match &*request.last_text() {
        "What is 0+1?" => ModelReply::text("1").usage(COUNTS),
        "What is 1+1?" => ModelReply::text("5").usage(COUNTS),
        _ => ModelReply::error(400, "no such model"),
    })
}

/// A benchmark with a right answer, a wrong one, a question without an answer, and one that fails.
fn benchmark(server: &ModelServer) -> TestJob {
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(),
        "model_name": "m", "max_retries": 0,
    });
    let questions = [
        json!({"id": "q/1", "question": "What is 0+1?", "answer": "1"}),
        json!({"id": "q2", "question": "What is 1+1?", "answer": "2"}),
        json!({"id": "问题", "question": "What is 0+1?"}),
        json!({"id": "q4", "question": "What is 4+4?", "answer": "8"}),
    ];
    let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
    job().file("questions.jsonl", &lines).file("config.json", &config.to_string())
}

/// A rollout in which nothing is as it should be, and the output of a tool that is in it.
fn hostile(server: &ModelServer) -> (TestJob, String) {
    let job = rollouts(server).set("n_attempts", json!(1));
    job.run().expect(1);
    let path = job.dir().join("outputs.jsonl");
    let rows = std::fs::read_to_string(&path).unwrap();
    let mut rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let row = rows.iter_mut().find(|row| row["example_id"] == 0).unwrap();
    let output = "\u{0}\u{1b}[31m\u{7f}\u{202e}\u{feff}</script>\r\n".repeat(100_000);
    row["prompt"] = json!([
        {"role": "system", "content": "\u{0}"},
        {"role": "wizard", "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
            {"type": "image_url", "image_url": {"url": "https://host/a.webp?size=1"}},
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            {"type": "image_url", "image_url": 4},
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "ogg"}},
        ]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "0", "name": "old", "arguments": "{}"}]},
    ]);
    row["completion"] = json!([
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "../../1", "name": "a/b", "arguments": "{\"x\": \"\\ud800\"}"},
            {"id": "2", "name": "", "arguments": "[1]"},
        ]},
        {"role": "tool", "tool_call_id": "../../1", "content": output},
        {"role": "tool", "tool_call_id": "unknown", "content": [{"type": "text", "text": "?"}]},
        {"role": "tool", "content": null},
        {"role": "user", "content": "go on", "name": {"first": 1}},
        {"role": "tool", "tool_call_id": "2", "content": "late"},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "thing", "value": [1]}]},
    ]);
    row["tool_defs"] = json!([
        {"name": "a/b", "description": "", "parameters": {"type": 4, "properties": {"x": {"type": "whole", "items": 1}}}},
    ]);
    row["info"] = json!({"\u{0}": {"deep": [null]}});
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(&path, lines).unwrap();
    (job, output)
}
