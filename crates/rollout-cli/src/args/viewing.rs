//! Arguments of the commands that show results: `list`, `show` and `logs`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(super) const LIST_EXAMPLES: &str = "\
Examples:
  rollout list                                   List the jobs in jobs/
  rollout list jobs/nightly                      List the trials of a job
  rollout list jobs/nightly --status failed --status unsolved
                                                 List the trials to look into
  rollout list jobs/nightly --sort cost --json | jq -s '.[:10]'
                                                 Find the ten most expensive trials";

pub(super) const SHOW_EXAMPLES: &str = "\
Examples:
  rollout show jobs/nightly/codex/tasks/hello__1     Show one trial
  rollout show 'jobs/nightly/*/*/hello__*'           Show a trial by a pattern, or list those that match";

pub(super) const LOGS_EXAMPLES: &str = "\
Examples:
  rollout logs jobs/nightly/codex/tasks/hello__1     Print what the agent printed
  rollout logs jobs/nightly/codex/tasks/hello__1 -f  Follow it until the trial ends
  rollout logs jobs/nightly/codex/tasks/hello__1 --phase verifier
                                                     Print what the tests printed
  rollout logs jobs/nightly/codex/tasks/hello__1 --conversation
                                                     Print the messages of the agent and its model";

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// A job directory, or a directory of jobs
    #[arg(value_name = "DIR", default_value = "jobs")]
    pub directory: PathBuf,

    /// Only trials of agents whose name matches; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Trials of a job")]
    pub agent: Vec<String>,

    /// Only trials of tasks whose name matches; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Trials of a job")]
    pub task: Vec<String>,

    /// Only trials with this status; can be repeated
    #[arg(long, value_name = "STATUS", help_heading = "Trials of a job")]
    pub status: Vec<StatusFilter>,

    /// The order of the trials
    #[arg(long, value_name = "BY", default_value = "plan", help_heading = "Trials of a job")]
    pub sort: SortBy,

    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// The status of a trial, as a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusFilter {
    /// The reward reaches the pass_threshold of the dataset
    Solved,
    /// The reward is lower
    Unsolved,
    /// Completed without a reward, because none was asked for
    Unscored,
    /// An error prevented a reward
    Failed,
    /// Running now
    Running,
    /// Without a result
    Missing,
}

/// The order of trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// Agents, datasets and tasks in the order of the job
    Plan,
    /// The status
    Status,
    /// The lowest reward first
    Reward,
    /// The longest trial first
    Time,
    /// The most expensive trial first
    Cost,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The trial: <job directory>/<agent>/<dataset>/<task>__<attempt>, or a pattern with *
    #[arg(value_name = "TRIAL")]
    pub trial: PathBuf,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The trial: <job directory>/<agent>/<dataset>/<task>__<attempt>, or a pattern with *
    #[arg(value_name = "TRIAL")]
    pub trial: PathBuf,

    /// Print new output as it is written, until the trial ends
    #[arg(short, long, conflicts_with = "conversation")]
    pub follow: bool,

    /// The part of the trial
    #[arg(long, value_name = "PHASE", default_value = "agent", conflicts_with = "conversation")]
    pub phase: LogPhase,

    /// Print the messages between the agent and its model
    #[arg(long)]
    pub conversation: bool,
}

/// A part of a trial that has output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogPhase {
    /// The build of the image
    Build,
    /// The install script of the agent
    Install,
    /// The agent
    Agent,
    /// The tests
    Verifier,
}
