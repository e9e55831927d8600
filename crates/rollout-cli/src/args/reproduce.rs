//! Arguments of `reproduce`.

use std::path::PathBuf;

use clap::Args;

use super::Answer;

const EXAMPLES: &str = "\
Examples:
  rollout reproduce jobs/nightly/oracle/tasks/sort__1
                                         Run one trial again, and report what differs
  rollout reproduce jobs/sums/gpt/sums/17__2
                                         Run one model rollout again

Exit status:
  0    the reward and the error are the same
  1    the reward or the error differs
  2    the trial could not be run again
  130  cancelled";

/// Arguments of `reproduce`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Reproduce {
    /// The trial: JOB_DIR/<agent>/<dataset>/<task>__<attempt>
    #[arg(value_name = "TRIAL_DIR")]
    pub trial: PathBuf,

    /// The parent directory of the new job; by default the parent of the old job
    #[arg(short = 'o', long, value_name = "DIR")]
    pub jobs_dir: Option<PathBuf>,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub output: Answer,
}
