//! What can be written after `rollout flakes`.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;

use super::Answer;

const EXAMPLES: &str = "\
Examples:
  rollout flakes tasks/                  Attempt every task five times with the oracle, five times with nop
  rollout flakes job.yaml --attempts 20  The same for the tasks of a job, in its environment
  rollout flakes jobs/nightly            Look at the oracle and nop of a job that was run

Exit status:
  0    every trial of the oracle passed, and none of nop; it is said if a job has only one of them
  1    some task is flaky, or gives nop a reward of 1, or trials have no result
  2    the tasks could not be attempted
  130  cancelled";

/// Arguments of `flakes`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flakes {
    /// A job file, a task directory, a directory of tasks, or the directory of a job
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// Attempt each task this often with the oracle, and this often with nop
    #[arg(long, value_name = "N", default_value = "5")]
    pub attempts: NonZeroU32,

    /// Run this many trials at the same time
    #[arg(long, value_name = "N")]
    pub concurrency: Option<NonZeroU32>,

    /// Choose who reads the output
    #[arg(long, value_name = "FOR", default_value = "human")]
    pub output: Answer,
}
