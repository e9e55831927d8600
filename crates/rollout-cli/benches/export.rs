//! What it costs to read a whole job again on this machine: each format of exports, and a comparison, of the rollouts of a
//! model and of tasks in containers; and the statistics of a job.
//!
//! `cargo bench -p rollout-cli --bench export` prints one table: 100,000 trials, or as many as stand after `--`. A command
//! that needs more than 200 MB fails it.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use rollout_testkit::{LargeJob, READERS};

const MAX_KILOBYTES: u64 = 200 << 10;

fn main() {
    let trials = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(100_000);
    println!("{trials} trials");
    println!("{:<32} {:>10} {:>8} {:>8} {:>8}", "command", "of", "s", "CPU s", "peak MB");
    for (kind, job) in
        [("rollouts", LargeJob::rollouts(trials)), ("containers", LargeJob::containers(trials))]
    {
        for command in READERS.into_iter().filter(|command| kind == "rollouts" || !needs_a_model(command)) {
            let measured = job.measure(env!("CARGO_BIN_EXE_rollout"), command);
            println!(
                "{:<32} {kind:>10} {:>8.2} {:>8.2} {:>8.1}",
                command.join(" "),
                measured.time.as_secs_f64(),
                measured.cpu.as_secs_f64(),
                measured.peak_kilobytes as f64 / 1024.0,
            );
            assert!(measured.peak_kilobytes < MAX_KILOBYTES, "that is more than {MAX_KILOBYTES} kilobytes");
        }
    }
}

/// Whether there is nothing to export of agents that are scripts.
fn needs_a_model(command: &[&str]) -> bool {
    command.iter().any(|word| ["sft", "rl", "atif"].contains(word))
}
