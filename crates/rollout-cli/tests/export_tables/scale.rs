//! Exports of many trials.

use rollout_testkit::{EXPORTS, LargeJob};

/// What an export may have in memory, however many trials there are.
const MAX_KILOBYTES: u64 = 200 << 10;

fn trials() -> u32 {
    if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 100_000 } else { 2_000 }
}

#[test]
fn memory_does_not_grow_with_the_number_of_rollouts() {
    let job = LargeJob::rollouts(trials());
    for command in EXPORTS {
        let peak = job.measure(env!("CARGO_BIN_EXE_rollout"), command).peak_kilobytes;
        assert!(peak < MAX_KILOBYTES, "{command:?} needed {peak} kilobytes");
    }
}

#[test]
fn memory_does_not_grow_with_the_number_of_container_tasks() {
    let job = LargeJob::containers(trials());
    for command in EXPORTS.into_iter().filter(|command| !["sft", "rl", "atif"].contains(&command[1])) {
        let peak = job.measure(env!("CARGO_BIN_EXE_rollout"), command).peak_kilobytes;
        assert!(peak < MAX_KILOBYTES, "{command:?} needed {peak} kilobytes");
    }
}
