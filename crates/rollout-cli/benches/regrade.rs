//! What grading again costs: the tests of finished trials, beside the trials themselves.
//!
//! `cargo bench -p rollout-cli --bench regrade` runs 1,000 trials of an agent that works like a command line agent, in the
//! native environment, changes the tests, grades all trials again, and prints the CPU time of both. It fails if grading
//! takes a tenth or more. `-- --trials N` runs another number of trials. Needs root and `python3`.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{fs, path::Path, process::ExitCode, time::Instant};

use rollout_testkit::{TestJob, TestTask};
use serde_json::{Value, json};

/// The most that grading again may cost, as a part of running.
const MOST: f64 = 0.1;

/// What a command line agent does besides waiting for its model: an interpreter that runs shell commands, sixty of them
/// here, and every second one runs the project's own tests. Real agents start a larger interpreter and need more.
const AGENT: &str = r#"cat > /tmp/agent.py <<'END'
import argparse, asyncio, http.client, json, re, ssl, subprocess, urllib.request
steps = ["grep -rn def /app", "python3 -m unittest -q", "sed -n 1,40p /app/words.py", "python3 -m unittest -q"]
history = []
for turn in range(60):
    run = subprocess.run(["bash", "-c", steps[turn % 4]], cwd="/app", capture_output=True, text=True)
    history.append({"turn": turn, "stdout": run.stdout, "stderr": run.stderr})
open("/logs/agent/history.json", "w").write(json.dumps(history))
open("/app/answer", "w").write("fine\n")
END
printf 'def count(text):\n    return len(text.split())\n' > /app/words.py
printf 'import unittest, words\nclass Test(unittest.TestCase):\n    def test(self):\n        self.assertEqual(words.count("a b"), 2)\n' > /app/test_words.py
python3 /tmp/agent.py
times > /logs/agent/times.txt"#;

/// Tests that start an interpreter too, and accept these words.
fn tests(words: &str) -> String {
    format!(
        "cd /app && python3 -m unittest -q\npython3 -c 'print(float(open(\"/app/answer\").read().strip() in {words}))' \
         > /logs/verifier/reward.txt\ntimes > /logs/verifier/times.txt\n"
    )
}

/// The CPU seconds of all children so far that ended. Processes of environments are not always among them.
fn cpu_of_children() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("read the usage of this process");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |place: usize| fields[place].parse::<f64>().expect("a number of ticks");
    (ticks(13) + ticks(14)) / 100.0
}

/// The CPU seconds that the scripts of a job's trials measured themselves.
fn cpu_of_scripts(job: &Path, log: &str, trials: u32) -> f64 {
    let of_trial = |attempt: u32| {
        let path = job.join(format!("agent/set/words__{attempt}/logs/{log}/times.txt"));
        let text = fs::read_to_string(path).expect("read the times of a script");
        let seconds = text.split_whitespace().map(|time| {
            let (minutes, seconds) = time.trim_end_matches('s').split_once('m').expect("a time of bash");
            let number = |text: &str| text.parse::<f64>().expect("a number");
            number(minutes) * 60.0 + number(seconds)
        });
        seconds.sum::<f64>()
    };
    (1..=trials).map(of_trial).sum()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let trials = arguments.iter().position(|argument| argument == "--trials");
    let trials = trials.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(1000);
    let task = TestTask::new("words").tests(&tests("[\"ok\"]"));
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(task)
        .script(AGENT)
        .set("n_attempts", json!(trials))
        .set("environment/preserve_env", json!("always"));
    let (before, began) = (cpu_of_children(), Instant::now());
    job.run().expect(0);
    let (run_command, run_time) = (cpu_of_children() - before, began.elapsed().as_secs_f64());
    let changed = job.root().join("set/words/tests/test.sh");
    fs::write(changed, tests("[\"ok\", \"fine\"]")).expect("change the tests");
    let (before, began) = (cpu_of_children(), Instant::now());
    let report = job.rollout(&["regrade", "jobs/job", "--output", "json"]).expect(0).stdout();
    let (regrade_command, regrade_time) = (cpu_of_children() - before, began.elapsed().as_secs_f64());
    let report: Value = serde_json::from_str(&report).expect("a report is JSON");
    assert_eq!(
        report["changed"].as_array().map(Vec::len),
        Some(trials as usize),
        "every trial has another reward"
    );
    // What of the scripts the kernel counts for the command too is counted only on the side of grading.
    let scripts =
        cpu_of_scripts(&job.dir(), "agent", trials) + cpu_of_scripts(&job.dir(), "verifier", trials);
    let regraded = job.root().join("jobs/job-regrade-1");
    let graded = regrade_command + cpu_of_scripts(&regraded, "verifier", trials);
    println!("{trials} trials     {:>10} {:>16} {:>16}", "s", "CPU s, scripts", "CPU s, command");
    println!("run          {run_time:>12.1} {scripts:>16.1} {run_command:>16.1}");
    println!("graded again {regrade_time:>12.1} {:>16.1} {regrade_command:>16.1}", graded - regrade_command);
    println!("graded again, all: {:.3} of the scripts of running; at most {MOST}", graded / scripts);
    if graded < scripts * MOST { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
