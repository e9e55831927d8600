//! Where results come from, trials that are run again, and tasks that do not always go the same way.

mod flakes;
mod record;
mod reproduce;

use rollout_testkit::TestJob;

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}
