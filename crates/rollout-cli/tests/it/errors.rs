//! Tasks that cannot be run, where the command is to refuse them.

use rollout_testkit::{TestJob, TestTask};

#[test]
fn strict_refuses_a_job_with_an_invalid_task() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("good"))
        .task(TestTask::new("bad").without("instruction.md"))
        .oracle();
    let finished = job.rollout(&["run", "job.yaml", "--strict"]).expect(2);
    assert!(finished.stderr().contains("instruction.md"), "{}", finished.stderr());
    assert!(!job.dir().exists());
}
