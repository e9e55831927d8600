//! What it costs to read a whole job again on this machine: each format of exports, and a comparison, of the rollouts of a
//! model and of tasks in containers; and to sum one up, as it is done when a run ends.
//!
//! `cargo bench -p rollout-cli --bench export` prints one table: 100,000 trials, or as many as stand after `--`. Whatever
//! needs more than 200 MB fails it.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use std::{
    io::{BufWriter, sink},
    process::Command,
};

use rollout::{
    result::{Standing, TrialSummary},
    stats::report::{Report, ReportTask, ReportTrial},
};
use rollout_testkit::{LargeJob, Measured, READERS};

const MAX_KILOBYTES: u64 = 200 << 10;

/// The first word for a process that only sums up trials; the number of trials and that of attempts come after it.
const STATISTICS: &str = "statistics";

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let [_, first, trials, attempts] = &words[..]
        && first == STATISTICS
    {
        let number = |word: &String| word.parse().expect("it is a number");
        return sum_up(number(trials), number(attempts));
    }
    let trials = words.iter().find_map(|argument| argument.parse().ok()).unwrap_or(100_000);
    println!("{trials} trials");
    println!("{:<32} {:>12} {:>8} {:>8} {:>8}", "command", "of", "s", "CPU s", "peak MB");
    for attempts in [10, 1] {
        let this = std::env::current_exe().expect("this program has a file");
        let numbers = [trials, attempts].map(|number: u32| number.to_string());
        let (measured, status) = Measured::of(Command::new(this).arg(STATISTICS).args(numbers));
        assert!(status.success(), "summing up failed with {status}");
        show("statistics of result.json", &format!("{} × {attempts}", trials / attempts), measured);
    }
    for (kind, job) in
        [("rollouts", LargeJob::rollouts(trials)), ("containers", LargeJob::containers(trials))]
    {
        for command in READERS.into_iter().filter(|command| kind == "rollouts" || !needs_a_model(command)) {
            show(&command.join(" "), kind, job.measure(env!("CARGO_BIN_EXE_rollout"), command));
        }
    }
}

fn show(command: &str, of: &str, measured: Measured) {
    println!(
        "{command:<32} {of:>12} {:>8.2} {:>8.2} {:>8.1}",
        measured.time.as_secs_f64(),
        measured.cpu.as_secs_f64(),
        measured.peak_kilobytes as f64 / 1024.0,
    );
    assert!(measured.peak_kilobytes < MAX_KILOBYTES, "that is more than {MAX_KILOBYTES} kilobytes");
}

/// Makes the statistics of a job, and writes them as its result.json has them.
fn sum_up(trials: u32, attempts: u32) {
    let task = |number: u32| ReportTask {
        dataset: "set".into(),
        name: format!("task-{number:06}").into(),
        category: Some(format!("category {}", number % 7).into()),
        difficulty: Some(["easy", "hard"][number as usize % 2].into()),
    };
    let trial = |number: u32| {
        let is_failed = number.is_multiple_of(50);
        let outcome = TrialSummary {
            standing: if is_failed { Standing::Failed } else { Standing::Completed },
            reward: (!is_failed).then_some(f64::from(number % 3) / 2.0),
            model_cost: Some(0.25),
            seconds: f64::from(number % 1000) / 10.0,
            ..TrialSummary::SKIPPED
        };
        ReportTrial { agent: 0, task: number / attempts, outcome }
    };
    let report = Report::new(
        vec!["agent".to_owned()],
        (0..trials.div_ceil(attempts)).map(task).collect(),
        (0..trials).map(trial),
    );
    let statistics = report.statistics();
    serde_json::to_writer_pretty(BufWriter::new(sink()), &report.file(&statistics))
        .expect("nothing fails to write");
}

/// Whether there is nothing to export of agents that are scripts.
fn needs_a_model(command: &[&str]) -> bool {
    command.iter().any(|word| ["sft", "rl", "atif"].contains(word))
}
