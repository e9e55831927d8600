//! What a large plan costs: many questions of a benchmark, and many rollouts of an interaction, run and then resumed.
//!
//! `cargo bench -p rollout-cli --bench plan` prints one table for 100,000 of each, with `-- --full` also for 1,000,000
//! questions, and fails if one of them takes more memory than it may, or if a resume with nothing to do writes something.
//! The scripted model is a process of its own.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

#[path = "support/process.rs"]
mod process;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::SystemTime,
};

use process::{Server, Usage};
use rollout_testkit::{ModelReply, ModelServer, Script};
use serde_json::json;

/// The most megabytes that 100,000 questions or rollouts may take.
const MOST: f64 = 150.0;
/// The most megabytes that 1,000,000 questions may take.
const MOST_OF_A_MILLION: f64 = 500.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "serve") {
        serve();
        return ExitCode::SUCCESS;
    }
    println!(
        "{:>22} {:>8} {:>12} {:>9} {:>9} {:>9}",
        "", "s", "CPU ms each", "peak MB", "at most", "written"
    );
    let mut is_fine = measure("questions", 100_000, MOST);
    is_fine &= measure("rollouts", 100_000, MOST);
    if arguments.iter().any(|argument| argument == "--full") {
        is_fine &= measure("questions", 1_000_000, MOST_OF_A_MILLION);
    }
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs and resumes a plan. Returns whether both took no more memory than they may, and the resume wrote nothing.
fn measure(kind: &str, count: u32, most: f64) -> bool {
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
    let started = run(dir.path(), &first, count);
    started.print(&format!("{count} {kind}"), most);
    let resumed = run(dir.path(), &["resume", "results"], count);
    resumed.print("resumed", most);
    model.stop();
    started.megabytes <= most && resumed.megabytes <= most && !resumed.has_written
}

/// What a command took.
struct Measured {
    seconds: f64,
    /// For each question or rollout, in milliseconds.
    cpu: f64,
    megabytes: f64,
    has_written: bool,
}

impl Measured {
    fn print(&self, name: &str, most: f64) {
        let Self { seconds, cpu, megabytes, has_written } = self;
        let written = if *has_written { "yes" } else { "nothing" };
        println!("{name:>22} {seconds:>8.1} {cpu:>12.3} {megabytes:>9.1} {most:>9} {written:>9}");
    }
}

fn run(dir: &Path, arguments: &[&str], count: u32) -> Measured {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollout"));
    command.args(arguments).args(["--output", "json"]).current_dir(dir);
    let before = files(&dir.join("results"));
    let (seconds, usage) = Usage::of_run(&mut command);
    Measured {
        seconds,
        cpu: usage.cpu.as_secs_f64() * 1e3 / f64::from(count),
        megabytes: usage.megabytes(),
        has_written: files(&dir.join("results")) != before,
    }
}

/// The files below a directory, each with its length and when it was written.
fn files(dir: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![dir.to_owned()];
    while let Some(directory) = directories.pop() {
        // Before the run, there is none.
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let entry = entry.expect("read a directory");
            let about = entry.metadata().expect("read the metadata of a file");
            match about.is_dir() {
                true => directories.push(entry.path()),
                false => {
                    let written = about.modified().expect("this system has times of files");
                    found.insert(entry.path(), (about.len(), written));
                }
            }
        }
    }
    found
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
