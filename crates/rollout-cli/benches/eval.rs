//! What a benchmark with tools costs on this machine: the command, its tool server and a scripted model, each a process.
//!
//! `cargo bench -p rollout-cli --bench eval` prints one table: 5,000 questions, each with three calls of a tool.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

#[path = "support/process.rs"]
mod process;

use std::{fs, io::Read as _, path::Path, process::Command};

use process::{Server, Usage};
use rollout_testkit::{ModelReply, ModelServer, Script};
use serde_json::json;

const QUESTIONS: u32 = 5_000;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("serve") => serve(),
        _ => table(),
    }
}

fn table() {
    println!("{QUESTIONS} questions with three calls of a tool each, answered, scored and saved");
    println!(
        "{:>9} {:>15} {:>13} {:>13} {:>13} {:>9} {:>14}",
        "at a time", "questions per s", "CPU s", "tools' CPU s", "model's CPU s", "peak MB", "tools' peak MB"
    );
    for workers in [16, 128] {
        let dir = tempfile::tempdir().expect("make a directory");
        let mut model =
            Server::start(Command::new(std::env::current_exe().expect("know this program")).arg("serve"));
        fs::create_dir(dir.path().join("documents")).expect("make a directory");
        fs::write(dir.path().join("documents/plan.md"), "# Plan\n\nThe deadline is in March.\n")
            .expect("write a document");
        let mut tools = Server::start(
            Command::new(env!("CARGO_BIN_EXE_rollout"))
                .args(["tools", "serve", "--port", "0", "--until-stdin-closes"])
                .current_dir(dir.path()),
        );
        write_benchmark(dir.path(), &model.url, &tools.url, workers);
        let (seconds, own) = run(dir.path());
        let (model, tools) = (model.stop(), tools.stop());
        println!(
            "{workers:>9} {:>15.0} {:>13.2} {:>13.2} {:>13.2} {:>9.1} {:>14.1}",
            f64::from(QUESTIONS) / seconds,
            own.cpu.as_secs_f64(),
            tools.cpu.as_secs_f64(),
            model.cpu.as_secs_f64(),
            own.megabytes(),
            tools.megabytes(),
        );
    }
}

/// Plays the model until its input ends: three calls, and an answer.
fn serve() {
    let call = ModelReply::tool_call("doc-search", &json!({"key_words": ["deadline"]}));
    let turns = [call.clone(), call.clone(), call, ModelReply::text("Final answer: in March")];
    let server = ModelServer::start(Script::fixed_turns(turns));
    println!("serving at {}", server.url());
    std::io::stdin().read_to_end(&mut Vec::new()).expect("wait for the end");
}

fn write_benchmark(dir: &Path, model: &str, tools: &str, workers: u32) {
    let line = |number| json!({"id": number, "question": "When is the deadline?", "answer": "in March"});
    let lines: String = (0..QUESTIONS).map(|number| format!("{}\n", line(number))).collect();
    fs::write(dir.join("questions.jsonl"), lines).expect("write the questions");
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "results", "base_url": model, "model_name": "scripted",
        "available_tools": ["doc:search"], "resource_types": ["doc"],
        "resource_init_configs": {"doc": {"content": {"seed_path": "documents"}}},
        "sandbox_server_url": tools, "parallel": true, "max_workers": workers,
    });
    fs::write(dir.join("config.json"), config.to_string()).expect("write the configuration");
}

/// Runs the command from its start to its end.
fn run(dir: &Path) -> (f64, Usage) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollout"));
    command.args(["eval", "config.json", "--output", "json"]).current_dir(dir);
    let (seconds, usage) = Usage::of_run(&mut command);
    let evaluation = fs::read_to_string(dir.join("results/evaluation.json")).expect("read the scores");
    let evaluation: serde_json::Value = serde_json::from_str(&evaluation).expect("scores are JSON");
    assert_eq!(evaluation["perfect_matches"], QUESTIONS, "every answer is right");
    (seconds, usage)
}
