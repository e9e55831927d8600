//! What exports cost on this machine: each format, made of the rollouts of a model and of tasks in containers.
//!
//! `cargo bench -p rollout-cli --bench export` prints one table: 100,000 trials, or as many as stand after `--`.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use rollout_testkit::{EXPORTS, LargeJob};

fn main() {
    let trials = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(100_000);
    println!("{trials} trials");
    println!("{:<32} {:>10} {:>8} {:>8} {:>8}", "command", "of", "s", "CPU s", "peak MB");
    for (kind, job) in
        [("rollouts", LargeJob::rollouts(trials)), ("containers", LargeJob::containers(trials))]
    {
        for command in EXPORTS.into_iter().filter(|command| kind == "rollouts" || !needs_a_model(command)) {
            let measured = job.measure(env!("CARGO_BIN_EXE_rollout"), command);
            println!(
                "{:<32} {kind:>10} {:>8.2} {:>8.2} {:>8.1}",
                command.join(" "),
                measured.time.as_secs_f64(),
                measured.cpu.as_secs_f64(),
                measured.peak_kilobytes as f64 / 1024.0,
            );
        }
    }
}

/// Whether there is nothing to export of agents that are scripts.
fn needs_a_model(command: &[&str]) -> bool {
    ["sft", "rl", "atif"].contains(&command[1])
}
