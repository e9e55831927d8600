//! Many episodes, in little memory.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use rollout_testkit::{ModelReply, ModelServer, TestJob};
use serde_json::json;

use super::{job, model};

/// The most memory that a process has had, in kilobytes.
fn peak(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Copies the one episode of a job so often, in its journal and its rows, that it has had this many examples.
fn multiply(job: &TestJob, episodes: u64) {
    let journal = fs::read_to_string(job.dir().join("journal.jsonl")).unwrap();
    let mut lines: Vec<serde_json::Value> =
        journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let task = lines[0]["tasks"][0].clone();
    let trial = lines.iter().find(|line| line["entry"] == "trial").unwrap().clone();
    let row: serde_json::Value = serde_json::from_str(
        fs::read_to_string(job.dir().join("outputs.jsonl")).unwrap().lines().next().unwrap(),
    )
    .unwrap();
    let name = |number: u64| format!("{number:06}");
    lines[0]["tasks"] = (0..episodes)
        .map(|number| {
            let mut task = task.clone();
            (task["name"], task["example_id"]) = (json!(name(number)), json!(number));
            task
        })
        .collect();
    lines.retain(|line| line["entry"] != "trial");
    let mut rows = String::new();
    for number in 0..episodes {
        let (mut trial, mut row) = (trial.clone(), row.clone());
        (trial["index"], trial["result"]["task_name"]) = (json!(number), json!(name(number)));
        row["example_id"] = json!(number);
        lines.push(trial);
        rows += &format!("{row}\n");
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(job.dir().join("journal.jsonl"), text).unwrap();
    fs::write(job.dir().join("outputs.jsonl"), rows).unwrap();
}

#[test]
fn memory_does_not_grow_with_the_number_of_episodes() {
    let episodes = if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 10_000 } else { 2_000 };
    let server = ModelServer::always(ModelReply::text("word ".repeat(4000)));
    let job = job().agent(model(&server)).set("datasets", super::sums(1));
    job.run().expect(0);
    multiply(&job, episodes);
    let mut command: Command = job.command(&["export", "eval-log", "jobs/job", "-o", "out", "--jsonl"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = peak(&child).unwrap_or(most);
        std::thread::yield_now();
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = fs::read_to_string(job.root().join("out/model/sums/episodes.jsonl")).unwrap();
    assert_eq!(lines.lines().count() as u64, episodes);
    // The conversations alone are 20 kB each.
    assert!(most > 0 && most < 60_000, "{most} kB for {episodes} episodes");
}
