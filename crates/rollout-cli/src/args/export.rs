//! What can be written after `rollout export`.

use std::path::PathBuf;

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use rollout::{hub::RepoName, model::Advantage};

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
    /// Make rows in the form of the verifiers library: results.jsonl and metadata.json
    Verifiers(FromJob),
    /// Make chats to imitate of the conversations that earned enough
    Sft(ExportSft),
    /// Make an eval log: a record of each agent on each dataset, and one of each episode
    EvalLog(ExportEvalLog),
    /// Make files of Every Eval Ever: scores of each agent on each dataset, and a line for each trial
    Eee(ExportEee),
    /// Make logs that Inspect reads and its viewer opens
    Inspect(FromJob),
    /// Make trajectories in the Agent Trajectory Interchange Format, one file for each trial of a model
    Atif(FromJob),
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

    /// Push the files to a dataset of the Hugging Face Hub, with the token in HF_TOKEN
    #[arg(long, value_name = "OWNER/NAME")]
    pub push_to_hub: Option<RepoName>,

    /// Let only its owner read the dataset
    #[arg(long, requires = "push_to_hub")]
    pub hub_private: bool,
}

/// Arguments of `export eee`.
#[derive(Debug, Args)]
pub(crate) struct ExportEee {
    #[command(flatten)]
    pub from: FromJob,

    /// Who ran the evaluation
    #[arg(long, value_name = "NAME")]
    pub organization: Option<String>,

    /// What they have to do with the model
    #[arg(long, value_name = "RELATIONSHIP", default_value = "other")]
    pub relationship: EeeRelationship,

    /// Who made the model, where its name does not begin with it
    #[arg(long, value_name = "NAME")]
    pub developer: Option<String>,
}

/// What those who ran an evaluation have to do with the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum EeeRelationship {
    /// They made it
    FirstParty,
    /// They have nothing to do with it
    ThirdParty,
    /// They worked with those who made it
    Collaborative,
    /// Anything else
    Other,
}

/// Arguments of `export eval-log`.
#[derive(Debug, Args)]
pub(crate) struct ExportEvalLog {
    #[command(flatten)]
    pub from: FromJob,

    /// Write all episodes of each agent on each dataset into one file as well, episodes.jsonl
    #[arg(long)]
    pub jsonl: bool,

    /// The names of the fields
    #[arg(long, value_name = "DIALECT", default_value = "document")]
    pub dialect: EvalLogDialect,
}

/// The names of fields in an eval log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvalLogDialect {
    /// Those of the document that describes eval logs
    Document,
    /// Those of cube-harness since May 2026, which loads the records as they are
    #[value(alias = "eee-aligned")]
    CubeHarness,
}

/// Arguments of `export rl`.
#[derive(Debug, Args)]
pub(crate) struct ExportRl {
    #[command(flatten)]
    pub from: FromJob,

    /// The form of the files
    #[arg(long, value_name = "FORMAT", default_value = "jsonl")]
    pub format: ExportFormat,

    /// Also export rollouts that failed or timed out, and count them in the baseline of their group
    #[arg(long)]
    pub include_errors: bool,

    /// Compute the advantages again, over all members of each group
    ///
    /// group_mean: the reward minus the mean of the group. leave_one_out: the reward minus the mean of the other
    /// members. normalised: group_mean divided by the standard deviation of the group. Without this option the recorded
    /// advantages are used.
    #[arg(long, value_name = "NAME", value_parser = advantage())]
    pub advantage: Option<Advantage>,
}

/// Reads the name of an estimator of advantages.
fn advantage() -> impl TypedValueParser<Value = Advantage> {
    let names = Advantage::ALL.map(Advantage::as_str);
    PossibleValuesParser::new(names).map(|name| {
        let known = Advantage::ALL.into_iter().find(|advantage| advantage.as_str() == name);
        known.expect("the parser takes only these names")
    })
}

/// The form of files with training samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// One JSON object per line
    Jsonl,
    /// Parquet, compressed with Zstandard
    Parquet,
}

/// Arguments of `export sft`.
#[derive(Debug, Args)]
pub(crate) struct ExportSft {
    #[command(flatten)]
    pub from: FromJob,

    /// The least reward of a conversation
    #[arg(long, value_name = "REWARD", default_value_t = 1.0, allow_negative_numbers = true)]
    pub min_reward: f64,

    /// The most conversations of one task
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_per_task: Option<u32>,
}
