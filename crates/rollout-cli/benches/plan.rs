//! What a large plan costs: many questions of a benchmark, and many rollouts of an interaction, run and then resumed.
//!
//! `cargo bench -p rollout-cli --bench plan` prints one table for 100,000 of each, with `-- --full` also for 1,000,000
//! questions. The scripted model is a process of its own.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

#[path = "support/process.rs"]
mod process;

use std::{
    fs::{self, File},
    io::{BufWriter, Read as _, Write as _},
    path::Path,
    process::Command,
};

use process::{Server, Usage};
use rollout_testkit::{ModelReply, ModelServer, Script};
use serde_json::json;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "serve") {
        return serve();
    }
    println!("{:>22} {:>8} {:>9} {:>9} {:>9}", "", "s", "CPU s", "peak MB", "written");
    measure("questions", 100_000);
    measure("rollouts", 100_000);
    if arguments.iter().any(|argument| argument == "--full") {
        measure("questions", 1_000_000);
    }
}

fn measure(kind: &str, count: u32) {
    let dir = tempfile::tempdir().expect("make a directory");
    let mut model =
        Server::start(Command::new(std::env::current_exe().expect("know this program")).arg("serve"));
    let first = match kind {
        "questions" => {
            write_questions(dir.path(), &model.url, count);
            ["eval", "config.json"]
        }
        _ => {
            write_rollouts(dir.path(), &model.url, count);
            ["run", "job.yaml"]
        }
    };
    run(dir.path(), &format!("{count} {kind}"), &first);
    run(dir.path(), "resumed", &["resume", "results"]);
    model.stop();
}

fn run(dir: &Path, name: &str, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollout"));
    command.args(arguments).args(["--output", "json"]).current_dir(dir);
    let before = journal(dir);
    let (seconds, usage) = Usage::of_run(&mut command);
    let written = if journal(dir) == before { "nothing" } else { "yes" };
    let cpu = usage.cpu.as_secs_f64();
    println!("{name:>22} {seconds:>8.1} {cpu:>9.1} {:>9.1} {written:>9}", usage.megabytes());
}

fn journal(dir: &Path) -> u64 {
    fs::metadata(dir.join("results/journal.jsonl")).map_or(0, |file| file.len())
}

fn write_questions(dir: &Path, model: &str, count: u32) {
    let line = |number| json!({"id": format!("task_{number}"), "question": format!("What is {number}+1?"), "answer": "4"});
    write_lines(&dir.join("questions.jsonl"), count, line);
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "results", "base_url": model, "model_name": "scripted",
        "parallel": true, "max_workers": 32,
    });
    fs::write(dir.join("config.json"), config.to_string()).expect("write the configuration");
}

fn write_rollouts(dir: &Path, model: &str, count: u32) {
    let line = |number| json!({"question": format!("What is {number}+1?"), "answer": "4"});
    write_lines(&dir.join("examples.jsonl"), count, line);
    fs::write(dir.join("sums.yaml"), "dataset: examples.jsonl\nrubric: [{match: exact}]\n")
        .expect("write the interaction");
    let job = json!({
        "name": "results", "jobs_dir": ".", "n_concurrent_trials": 32,
        "agents": [{"name": "model", "model": {"name": "scripted", "base_url": model}}],
        "datasets": [{"interaction": "sums.yaml"}],
    });
    fs::write(dir.join("job.yaml"), job.to_string()).expect("write the job");
}

fn write_lines(path: &Path, count: u32, line: impl Fn(u32) -> serde_json::Value) {
    let mut file = BufWriter::new(File::create(path).expect("make a file"));
    for number in 0..count {
        writeln!(file, "{}", line(number)).expect("write a line");
    }
    file.flush().expect("write a line");
}

/// Plays the model until its input ends.
fn serve() {
    let server = ModelServer::start(Script::fixed_turns([ModelReply::text("4")]));
    println!("serving at {}", server.url());
    std::io::stdin().read_to_end(&mut Vec::new()).expect("wait for the end");
}
