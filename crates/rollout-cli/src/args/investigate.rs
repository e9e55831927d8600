//! Arguments of `investigate`.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  rollout investigate jobs/nightly --model gpt-4.1 --base-url https://api.openai.com/v1
                                         Ask a model why trials of a job were not solved
  rollout investigate jobs/nightly --model local --base-url http://127.0.0.1:8000/v1 --only all --limit 20
                                         Investigate 20 trials with any reward

The model's server receives instructions, conversations, and the output of agents and tests.
The findings are written to the job's eval log, such as jobs/nightly/eval-log, which is created if it is missing.

Exit status:
  0    every investigated trial has findings
  1    the model returned no usable answer for a trial, or its server rejected the key
  2    the command or the job directory is invalid";

/// Arguments of `investigate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Investigate {
    /// The job's directory
    #[arg(value_name = "JOB_DIR")]
    pub directory: PathBuf,

    /// The model that investigates trials, by its name on the server
    #[arg(long, value_name = "NAME")]
    pub model: String,

    /// The URL of the model's server; by default OPENAI_BASE_URL
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,

    /// The environment variable that contains the API key; by default OPENAI_API_KEY
    #[arg(long, value_name = "VARIABLE")]
    pub api_key_var: Option<String>,

    /// Which trials to investigate
    #[arg(long, value_name = "WHICH", default_value = "unsolved")]
    pub only: InvestigateOnly,

    /// Maximum number of trials
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// Number of trials to investigate at the same time
    #[arg(long, value_name = "N", default_value = "8")]
    pub concurrency: NonZeroUsize,

    /// Also investigate trials that have findings, and replace the findings
    #[arg(long)]
    pub again: bool,
}

/// Which trials `investigate` covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InvestigateOnly {
    /// Trials without a reward, or with a reward below the pass_threshold of their dataset
    Unsolved,
    /// All trials
    All,
}
