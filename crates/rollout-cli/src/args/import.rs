//! Arguments of `import`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Answer;

const EXAMPLES: &str = "\
Examples:
  rollout import harbor ~/harbor/jobs/2026-01-15__10-30-00
                                         Import a job that Harbor ran, to jobs/2026-01-15__10-30-00
  rollout compare jobs/2026-01-15__10-30-00 jobs/mine
                                         Compare it with a job of the same tasks";

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The program that ran the job.
    #[command(subcommand)]
    pub from: ImportFrom,
}

/// The programs whose jobs can be imported.
#[derive(Debug, Subcommand)]
pub(crate) enum ImportFrom {
    /// Import a job directory of Harbor
    #[command(after_help = EXAMPLES)]
    Harbor(ImportHarbor),
}

/// Arguments of `import harbor`.
#[derive(Debug, Args)]
pub(crate) struct ImportHarbor {
    /// The job directory of Harbor; it is not changed
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// The parent directory of the new job
    #[arg(short = 'o', long, value_name = "DIR", default_value = "jobs")]
    pub jobs_dir: PathBuf,

    /// The name of the new job; by default the name of the Harbor directory
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub output: Answer,
}
