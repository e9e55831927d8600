//! What can be written after `rollout investigate`.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  rollout investigate jobs/nightly --model gpt-4.1 --base-url https://api.openai.com/v1
                                         Have a model say why trials of a job were not solved
  rollout investigate jobs/nightly --model local --base-url http://127.0.0.1:8000/v1 --only all --limit 20
                                         Look into 20 trials, whatever their reward

The material goes to the server of the model: instructions, conversations, and what agents and tests printed.
What it says is written into the job's eval log, jobs/nightly/eval-log, which is made if it is not there.

Exit status:
  0    every trial that was looked into has findings
  1    the model gave no usable answer for some, or its key is refused
  2    the command or the job directory is wrong";

/// Arguments of `investigate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Investigate {
    /// The job's directory
    #[arg(value_name = "JOB_DIR")]
    pub directory: PathBuf,

    /// The server's name for the model that looks into trials
    #[arg(long, value_name = "NAME")]
    pub model: String,

    /// Where its server answers; OPENAI_BASE_URL if not given
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,

    /// The variable that holds its key; OPENAI_API_KEY if not given. Keys are never written on a command line
    #[arg(long, value_name = "VARIABLE")]
    pub api_key_var: Option<String>,

    /// Which trials to look into
    #[arg(long, value_name = "WHICH", default_value = "unsolved")]
    pub only: InvestigateOnly,

    /// Look into at most this many
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// Look into this many at the same time
    #[arg(long, value_name = "N", default_value = "8")]
    pub concurrency: NonZeroUsize,

    /// Look also into trials that have findings, and replace those
    #[arg(long)]
    pub again: bool,
}

/// Which trials `investigate` looks into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InvestigateOnly {
    /// Those with a reward below the pass_threshold of their dataset, or without one
    Unsolved,
    /// All of them
    All,
}
