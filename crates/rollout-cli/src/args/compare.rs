//! What can be written after `rollout compare`.

use std::path::PathBuf;

use clap::Args;

use super::Answer;

pub(super) const EXAMPLES: &str = "\
Examples:
  rollout compare jobs/before jobs/after
                                           See what a change did to each agent
  rollout compare jobs/leaderboard --agent baseline --agent ours --svg difference.svg
                                           Compare two agents of a job, also as a picture";

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Job directories; agents are compared with those of the same name in earlier ones
    #[arg(value_name = "JOB_DIR", required = true)]
    pub directories: Vec<PathBuf>,

    /// Compare only this agent; can be given several times, and in one job the first is the baseline
    #[arg(long, value_name = "NAME")]
    pub agent: Vec<String>,

    /// Choose who reads the output
    #[arg(long, value_name = "FOR", default_value = "human")]
    pub output: Answer,

    /// Draw the differences to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
