//! Arguments of `export`.

use std::path::PathBuf;

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use rollout::{hub::RepoName, model::Advantage, record::notes::NoteTag};

const EXAMPLES: &str = "\
Examples:
  rollout export csv jobs/nightly -o tables         Write tables of all trials and conversations
  rollout export inspect jobs/nightly -o logs       Write logs for Inspect
  rollout export eee jobs/nightly -o out --push-to-hub my-team/results
                                                    Publish the scores on the Hugging Face Hub";

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(subcommand_value_name = "FORMAT", subcommand_help_heading = "Formats", after_help = EXAMPLES)]
pub(crate) struct Export {
    /// The export format
    #[command(subcommand)]
    pub what: ExportWhat,
}

/// The export formats.
#[derive(Debug, Subcommand)]
pub(crate) enum ExportWhat {
    /// Training samples from model turns: tokens, loss masks, log-probabilities and advantages
    Rl(ExportRl),
    /// Tables of trials and steps as CSV
    Csv(FromJob),
    /// Tables of trials and steps as Parquet
    Parquet(FromJob),
    /// Files of the verifiers library: results.jsonl and metadata.json
    Verifiers(FromJob),
    /// Conversations with a high reward, for supervised fine-tuning
    Sft(ExportSft),
    /// An eval log: one record per agent and dataset, and one per episode
    EvalLog(ExportEvalLog),
    /// Every Eval Ever: scores per agent and dataset, and one line per trial
    Eee(ExportEee),
    /// Logs for Inspect and its viewer
    Inspect(FromJob),
    /// Trajectories in the Agent Trajectory Interchange Format, one file per model trial
    Atif(FromJob),
}

/// Arguments of every export.
#[derive(Debug, Args)]
pub(crate) struct FromJob {
    /// The job's directory
    #[arg(value_name = "JOB_DIR")]
    pub directory: PathBuf,

    /// The directory to write to
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,

    /// Leave out trials with this tag of `rollout note`; can be repeated
    #[arg(long, value_name = "TAG")]
    pub exclude_tag: Vec<NoteTag>,

    /// Push the files to a dataset on the Hugging Face Hub; HF_TOKEN contains the token
    #[arg(long, value_name = "OWNER/NAME")]
    pub push_to_hub: Option<RepoName>,

    /// Create the dataset as private
    #[arg(long, requires = "push_to_hub")]
    pub hub_private: bool,
}

/// Arguments of `export eee`.
#[derive(Debug, Args)]
pub(crate) struct ExportEee {
    #[command(flatten)]
    pub from: FromJob,

    /// The organization that ran the evaluation
    #[arg(long, value_name = "NAME")]
    pub organization: Option<String>,

    /// The relationship between that organization and the model's developer
    #[arg(long, value_name = "RELATIONSHIP", default_value = "other")]
    pub relationship: EeeRelationship,

    /// The model's developer; by default the part of the model's name before the slash
    #[arg(long, value_name = "NAME")]
    pub developer: Option<String>,
}

/// The relationship between the organization that ran the evaluation and the model's developer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum EeeRelationship {
    /// The organization developed the model
    FirstParty,
    /// The organization is independent of the developer
    ThirdParty,
    /// The organization worked with the developer
    Collaborative,
    /// Any other relationship
    Other,
}

/// Arguments of `export eval-log`.
#[derive(Debug, Args)]
pub(crate) struct ExportEvalLog {
    #[command(flatten)]
    pub from: FromJob,

    /// Also write the episodes of each agent and dataset to one file, episodes.jsonl
    #[arg(long)]
    pub jsonl: bool,

    /// Which field names to use
    #[arg(long, value_name = "DIALECT", default_value = "document")]
    pub dialect: EvalLogDialect,
}

/// The field names of an eval log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvalLogDialect {
    /// The names in the eval log specification
    Document,
    /// The names of cube-harness since May 2026, which can load the records unchanged
    #[value(alias = "eee-aligned")]
    CubeHarness,
}

/// Arguments of `export rl`.
#[derive(Debug, Args)]
pub(crate) struct ExportRl {
    #[command(flatten)]
    pub from: FromJob,

    /// The file format
    #[arg(long, value_name = "FORMAT", default_value = "jsonl")]
    pub format: ExportFormat,

    /// Also export rollouts that failed or timed out, and count them in the baseline of their group
    #[arg(long)]
    pub include_errors: bool,

    /// Recompute the advantages over all members of each group; by default the recorded advantages are exported
    ///
    /// group_mean: the reward minus the mean of the group. leave_one_out: the reward minus the mean of the other
    /// members. normalised: group_mean divided by the standard deviation of the group.
    #[arg(long, value_name = "NAME", value_parser = advantage())]
    pub advantage: Option<Advantage>,
}

/// Parses the name of an advantage estimator.
fn advantage() -> impl TypedValueParser<Value = Advantage> {
    let names = Advantage::ALL.map(Advantage::as_str);
    PossibleValuesParser::new(names).map(|name| {
        let known = Advantage::ALL.into_iter().find(|advantage| advantage.as_str() == name);
        known.expect("the parser takes only these names")
    })
}

/// The file format of training samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// One JSON object per line
    Jsonl,
    /// A Parquet file, compressed with Zstandard
    Parquet,
}

/// Arguments of `export sft`.
#[derive(Debug, Args)]
pub(crate) struct ExportSft {
    #[command(flatten)]
    pub from: FromJob,

    /// Minimum reward of a conversation
    #[arg(long, value_name = "REWARD", default_value_t = 1.0, allow_negative_numbers = true)]
    pub min_reward: f64,

    /// Maximum number of conversations per task
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_per_task: Option<u32>,
}
