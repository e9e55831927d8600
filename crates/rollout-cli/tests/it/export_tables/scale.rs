//! Exports of many trials.

use rollout_testkit::{LargeJob, READERS};

/// What a reader of a whole job may have in memory, however many trials there are. The benchmark holds them to it with
/// 100,000, which takes this build too long.
const MAX_KILOBYTES: u64 = 200 << 10;

fn trials() -> u32 {
    if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 20_000 } else { 2_000 }
}

#[test]
fn memory_does_not_grow_with_the_number_of_rollouts() {
    let job = LargeJob::rollouts(trials());
    for command in READERS {
        let peak = job.measure(env!("CARGO_BIN_EXE_rollout"), command).peak_kilobytes;
        assert!(peak < MAX_KILOBYTES, "{command:?} needed {peak} kilobytes");
    }
}

#[test]
fn memory_does_not_grow_with_the_number_of_container_tasks() {
    let job = LargeJob::containers(trials());
    for command in
        READERS.into_iter().filter(|command| !command.iter().any(|word| ["sft", "rl", "atif"].contains(word)))
    {
        let peak = job.measure(env!("CARGO_BIN_EXE_rollout"), command).peak_kilobytes;
        assert!(peak < MAX_KILOBYTES, "{command:?} needed {peak} kilobytes");
    }
}
