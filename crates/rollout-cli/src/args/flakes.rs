//! Arguments of `flakes`.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;

use super::Answer;

const EXAMPLES: &str = "\
Examples:
  rollout flakes tasks/                  Attempt every task five times with its own solution (the agent
                                         oracle), and five times without doing anything (the agent nop)
  rollout flakes job.yaml --attempts 20  Do the same for the tasks of a job, in its environment
  rollout flakes jobs/nightly            Check the existing oracle and nop trials of a job

Exit status:
  0    every oracle trial passed and no nop trial passed;
       a note is printed if a job has only one of these agents
  1    an oracle trial did not pass, a nop trial passed, or trials have no result
  2    the tasks could not be run
  130  cancelled";

/// Arguments of `flakes`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flakes {
    /// A job file, a task directory, a directory of tasks, the name of a dataset, or a job directory
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// Number of attempts per task, for each of the two agents
    #[arg(long, value_name = "N", default_value = "5")]
    pub attempts: NonZeroU32,

    /// Number of trials that run at the same time
    #[arg(long, value_name = "N")]
    pub concurrency: Option<NonZeroU32>,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub output: Answer,
}
