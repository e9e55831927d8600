//! Arguments of the commands that show results: `list`, `show`, `logs`, `note` and `view`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use rollout::record::notes::NoteTag;

pub(super) const LIST_EXAMPLES: &str = "\
Examples:
  rollout list                                   List the jobs in jobs/
  rollout list jobs/nightly                      List the trials of a job
  rollout list jobs/nightly --status failed,unsolved
                                                 List the trials to look into
  rollout list jobs/nightly --sort cost --json | jq -s '.[:10]'
                                                 Find the ten most expensive trials";

pub(super) const SHOW_EXAMPLES: &str = "\
Examples:
  rollout show jobs/nightly/codex/tasks/hello__1     Show one trial
  rollout show 'jobs/nightly/*/*/hello__*'           Show the one trial that matches";

pub(super) const LOGS_EXAMPLES: &str = "\
Examples:
  rollout logs jobs/nightly/codex/tasks/hello__1     Print what the agent printed
  rollout logs jobs/nightly/codex/tasks/hello__1 -f  Follow it until the trial ends
  rollout logs jobs/nightly/codex/tasks/hello__1 --phase verifier
                                                     Print what the tests printed
  rollout logs jobs/nightly/codex/tasks/hello__1 --conversation
                                                     Print the messages of the agent and its model";

pub(super) const NOTE_EXAMPLES: &str = "\
Examples:
  rollout note jobs/nightly/codex/tasks/hello__1 'The tests need the network.' --tag broken
                                                     Comment and tag a trial
  rollout note 'jobs/nightly/*/*/hello__*' --tag broken
                                                     Tag all trials of a task
  rollout note jobs/nightly                          List the notes of a job
  rollout compare jobs/before jobs/nightly --exclude-tag broken
                                                     Compare without the trials that have a tag";

pub(super) const VIEW_EXAMPLES: &str = "\
Examples:
  rollout view                                   Open the printed address to see the jobs in jobs/
  rollout view jobs/nightly --export report      Write the pages of a job, to publish them";

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

    /// Only trials with these statuses, separated by commas
    #[arg(long, value_name = "STATUS", value_delimiter = ',', help_heading = "Trials of a job")]
    pub status: Vec<StatusFilter>,

    /// Only trials with this tag of `rollout note`; can be repeated
    #[arg(long, value_name = "TAG", help_heading = "Trials of a job")]
    pub tag: Vec<NoteTag>,

    /// Leave out trials with this tag of `rollout note`, also in pass rates; can be repeated
    #[arg(long, value_name = "TAG")]
    pub exclude_tag: Vec<NoteTag>,

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
    /// Completed without a reward, because scoring is off or there is no expected answer
    Unscored,
    /// Without a reward because of an error
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

    /// Print new output or messages as they are written, until the trial ends
    #[arg(short, long)]
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

/// Arguments of `note`.
#[derive(Debug, Args)]
pub(crate) struct Note {
    /// The trial: <job directory>/<agent>/<dataset>/<task>__<attempt>, a pattern with * for several
    /// trials, or a job directory to list all notes
    #[arg(value_name = "TRIAL")]
    pub trial: PathBuf,

    /// A comment
    #[arg(value_name = "COMMENT")]
    pub comment: Option<String>,

    /// Add a tag; can be repeated
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<NoteTag>,

    /// Remove a tag; can be repeated
    #[arg(long, value_name = "TAG")]
    pub untag: Vec<NoteTag>,

    /// Print the notes as one JSON object per trial and line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `view`.
#[derive(Debug, Args)]
pub(crate) struct View {
    /// A job directory, or a directory of jobs
    #[arg(value_name = "DIR", default_value = "jobs")]
    pub directory: PathBuf,

    /// The address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub bind: SocketAddr,

    /// Leave out trials with this tag of `rollout note` in rates and comparisons; can be repeated
    #[arg(long, value_name = "TAG")]
    pub exclude_tag: Vec<NoteTag>,

    /// Write the pages to a new directory instead of serving them
    #[arg(long, value_name = "DIR", conflicts_with = "bind")]
    pub export: Option<PathBuf>,
}
