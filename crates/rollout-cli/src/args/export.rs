//! What can be written after `rollout export`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// What to make
    #[command(subcommand)]
    pub what: ExportWhat,
}

/// What `export` makes.
#[derive(Debug, Subcommand)]
pub(crate) enum ExportWhat {
    /// Make training samples of the turns of a model: tokens, loss masks, probabilities and advantages
    Rl(ExportRl),
    /// Make tables of the trials and their steps, as comma-separated values
    Csv(FromJob),
    /// Make tables of the trials and their steps, as Parquet files
    Parquet(FromJob),
}

/// What every export takes.
#[derive(Debug, Args)]
pub(crate) struct FromJob {
    /// The job's directory
    #[arg(value_name = "JOB_DIR")]
    pub directory: PathBuf,

    /// The directory to write to
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Arguments of `export rl`.
#[derive(Debug, Args)]
pub(crate) struct ExportRl {
    #[command(flatten)]
    pub from: FromJob,

    /// The form of the files
    #[arg(long, value_name = "FORMAT", default_value = "jsonl")]
    pub format: ExportFormat,
}

/// The form of files with training samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// One JSON object per line
    Jsonl,
    /// Parquet, compressed with Zstandard
    Parquet,
}
