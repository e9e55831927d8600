//! Arguments of `datasets`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Answer;

const EXAMPLES: &str = "\
Examples:
  rollout datasets list                      List the known datasets
  rollout datasets list 'swe*'               List the datasets whose name matches
  rollout datasets show gsm8k                Show what it measures, its source, size and licence
  rollout datasets download terminal-bench@2.0
                                             Fetch its tasks, so that jobs can run with --offline
  rollout datasets download gsm8k -o questions.jsonl
                                             Write its questions and answers to a file

A DATASET is one of:
  NAME[@VERSION]                             a built-in benchmark, or a dataset of a registry
  hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]  a dataset on the Hugging Face Hub
  git+URL[@REVISION][#PATH]                  tasks in a git repository

Variables:
  ROLLOUT_REGISTRIES   paths and URLs of registries; `default` stands for the public ones
  HF_ENDPOINT          the address of the hub
  HF_TOKEN             a token for private datasets; otherwise the file of `hf auth login`";

/// Arguments of `datasets`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Datasets {
    /// What to do.
    #[command(subcommand)]
    pub what: DatasetsCommand,
}

/// What `datasets` does.
#[derive(Debug, Subcommand)]
pub(crate) enum DatasetsCommand {
    /// List the datasets that can be run by name
    List {
        /// Only datasets whose name matches
        #[arg(value_name = "GLOB")]
        pattern: Option<String>,

        /// Use no network; read only registries that are on this machine or in the cache
        #[arg(long)]
        offline: bool,

        /// Output format
        #[arg(long, value_name = "FORMAT", default_value = "human")]
        output: Answer,
    },
    /// Show what a dataset is, where it is from, and how large it is
    Show {
        /// The dataset
        dataset: String,

        /// Use no network
        #[arg(long)]
        offline: bool,

        /// Output format
        #[arg(long, value_name = "FORMAT", default_value = "human")]
        output: Answer,
    },
    /// Fetch datasets, so that jobs need no network for them
    Download {
        /// The datasets
        #[arg(required = true, value_name = "DATASET")]
        datasets: Vec<String>,

        /// Write the rows of a dataset of questions to a new file, as JSON lines
        #[arg(short, long, value_name = "FILE")]
        out: Option<PathBuf>,

        /// Use no network; report missing files
        #[arg(long)]
        offline: bool,

        /// Output format
        #[arg(long, value_name = "FORMAT", default_value = "human")]
        output: Answer,
    },
}
