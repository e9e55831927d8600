//! Arguments of `compare`.

use std::path::PathBuf;

use clap::Args;
use rollout::record::notes::NoteTag;

use super::Answer;

pub(super) const EXAMPLES: &str = "\
Examples:
  rollout compare jobs/before jobs/after
                                           Show what changed for each agent
  rollout compare jobs/leaderboard --agent baseline --agent ours --svg difference.svg
                                           Compare two agents of one job, and draw a chart";

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Job directories; each agent is compared with the agent of the same name in an earlier directory
    #[arg(value_name = "JOB_DIR", required = true)]
    pub directories: Vec<PathBuf>,

    /// Compare only this agent; can be repeated. Within one job, the first agent is the baseline
    #[arg(long, value_name = "NAME")]
    pub agent: Vec<String>,

    /// Leave out trials with this tag of `rollout note`; can be repeated
    #[arg(long, value_name = "TAG")]
    pub exclude_tag: Vec<NoteTag>,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub output: Answer,

    /// Write a chart of the differences to this SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
