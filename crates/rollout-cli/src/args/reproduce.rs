//! What can be written after `rollout reproduce`.

use std::path::PathBuf;

use clap::Args;

use super::Answer;

const EXAMPLES: &str = "\
Examples:
  rollout reproduce jobs/nightly/oracle/tasks/sort__1
                                         Run one trial again, and see what differs
  rollout reproduce jobs/sums/gpt/sums/17__2
                                         The same for a rollout, which has no directory of its own

Exit status:
  0    the same reward, and the same error or none
  1    another outcome
  2    it could not be run again
  130  cancelled";

/// Arguments of `reproduce`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Reproduce {
    /// The trial: JOB_DIR/<agent>/<dataset>/<task>__<attempt>
    #[arg(value_name = "TRIAL_DIR")]
    pub trial: PathBuf,

    /// Where to make the directory of the new job, instead of beside the old one
    #[arg(short = 'o', long, value_name = "DIR")]
    pub jobs_dir: Option<PathBuf>,

    /// Choose who reads the output
    #[arg(long, value_name = "FOR", default_value = "human")]
    pub output: Answer,
}
