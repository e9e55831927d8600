//! Arguments of `check`.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;

use super::Answer;

const EXAMPLES: &str = "\
Examples:
  rollout check tasks/sort               Check one task
  rollout check tasks/ --attempts 10     Check all tasks of a directory, with ten attempts of each agent
  rollout check terminal-bench@2.0       Check a dataset by name, as `rollout datasets list` shows it
  rollout check job.yaml --output json   Check the tasks of a job, in its environment
  rollout check jobs/check-2026-01-15__10-30-00
                                         Report the findings of a finished check again

A task fails the check if:
  its own solution (the agent oracle) does not pass every attempt;
  the agent nop, which does nothing, passes;
  the environment contains a file of solution/, or a script of tests/, which every agent could read, or any file
  in /tests, /solution or /oracle.
Warnings, which --strict turns into failures: no solution, an image or a package without a pinned version,
other files of tests/ in the environment.

Exit status:
  0    every task passed the check
  1    a task failed the check, or trials have no result
  2    the tasks could not be run
  130  cancelled";

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// A task directory, a directory of tasks, the name of a dataset, a job file, or the job directory of a check
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// Number of attempts per task, for each agent
    #[arg(long, value_name = "N", default_value = "3")]
    pub attempts: NonZeroU32,

    /// Number of trials that run at the same time
    #[arg(long, value_name = "N")]
    pub concurrency: Option<NonZeroU32>,

    /// Treat warnings as failures
    #[arg(long)]
    pub strict: bool,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub output: Answer,
}
