//! Where results come from, trials that are run again, and tasks that do not always go the same way.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod flakes;
mod record;
mod reproduce;

use rollout_testkit::TestJob;

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}
