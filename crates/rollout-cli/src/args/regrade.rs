//! Arguments of `regrade`.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;

use super::Answer;

const EXAMPLES: &str = "\
Examples:
  rollout regrade jobs/nightly --dry-run     Show which trials can be graded again, and why others cannot
  rollout regrade jobs/nightly               Run the current tests on the files that each trial left
  rollout regrade jobs/nightly --tests new-tests/ --task 'sort-*'
                                             Use the tests in new-tests/<task>/, for some tasks
  rollout regrade jobs/nightly --set verifier.environment=separate --set verifier.image=judge:2
                                             Use another verifier
  rollout resume jobs/nightly-regrade-1      Continue after Ctrl-C or a crash

What the tests run on:
  a copy of the preserved environment, if the job had `environment.preserve_env: always` (or on_failure);
  a new environment with the collected artifacts, if the tests run in a separate environment.
  Trials that failed before the tests keep their result. The finished job is never changed.
  Saved answers and model rollouts have no tests: `rollout score` scores them again.

Exit status:
  0    every trial was graded again, or failed before the tests
  1    a trial could not be graded again, or its tests failed
  2    nothing ran: the command, the job or the container engine has a problem
  130  cancelled";

/// Arguments of `regrade`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Regrade {
    /// The directory of the finished job
    #[arg(value_name = "JOB_DIR")]
    pub job: PathBuf,

    /// Use other tests: DIR/<task>/tests or DIR/<task> for one task, or DIR for all tasks; other tasks keep their tests
    #[arg(long, value_name = "DIR")]
    pub tests: Option<PathBuf>,

    /// Override a setting of the verifier, such as verifier.override_timeout_sec=600; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Also grade trials whose agent left processes running; these processes do not run during the new tests
    #[arg(long)]
    pub ignore_processes: bool,

    /// Show what would be graded again, without running anything
    #[arg(long)]
    pub dry_run: bool,

    /// Grade only agents whose name matches this pattern; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Selection")]
    pub agent: Vec<String>,

    /// Grade only tasks whose name matches this pattern; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Selection")]
    pub task: Vec<String>,

    /// Grade only datasets whose name matches this pattern; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Selection")]
    pub dataset: Vec<String>,

    /// The parent directory of the new job; by default the parent of the finished job
    #[arg(short = 'o', long, value_name = "DIR")]
    pub jobs_dir: Option<PathBuf>,

    /// Number of trials that are graded at the same time; by default as in the finished job
    #[arg(short = 'n', long, value_name = "N")]
    pub concurrency: Option<NonZeroU32>,

    /// Find datasets without a network; fail if a file is not on this machine
    #[arg(long)]
    pub offline: bool,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub output: Answer,
}
