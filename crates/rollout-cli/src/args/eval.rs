//! Arguments of the commands that ask questions: `eval` and `ask`.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;
use rollout::model::metric::Metric;

use super::{Answer, Output};

pub(super) const EVAL_EXAMPLES: &str = "\
Examples:
  rollout eval config.json                 Ask all questions and score the answers
  rollout eval config.json --max-tasks 10 --output-dir results/try
                                           Ask only 10 questions
  rollout eval config.json --metric f1_score --set max_workers=16 --set parallel=true
                                           Use another metric, and ask 16 questions at a time
  rollout resume results/my_eval           Continue after Ctrl-C or a crash";

pub(super) const ASK_EXAMPLES: &str = "\
Examples:
  rollout ask 'What is the capital of France?'
                                           Ask the model at OPENAI_BASE_URL, with the key in OPENAI_API_KEY
  rollout ask 'What is new in Rust?' --tools web:search,web:browse
                                           Let the model use tools of `rollout tools serve`";

/// Arguments of `eval`.
#[derive(Debug, Args)]
pub(crate) struct Eval {
    /// The benchmark configuration, JSON or YAML
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,

    /// Read the questions from this file; overrides data_path
    #[arg(long, value_name = "FILE", help_heading = "Questions")]
    pub data_path: Option<PathBuf>,

    /// Maximum number of questions; overrides number_of_tasks
    #[arg(long, value_name = "N", help_heading = "Questions")]
    pub max_tasks: Option<usize>,

    /// Ask only the questions with these ids; overrides task_ids
    #[arg(long, value_name = "ID,…", value_delimiter = ',', help_heading = "Questions")]
    pub task_ids: Option<Vec<String>>,

    /// The model; overrides model_name
    #[arg(long, value_name = "NAME", help_heading = "Execution")]
    pub model: Option<String>,

    /// Override a setting of the configuration, such as max_workers=16; can be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Execution")]
    pub set: Vec<String>,

    /// The metric, such as exact_match or llm_judgement; overrides evaluation_metric
    #[arg(long, value_name = "METRIC", help_heading = "Scoring")]
    pub metric: Option<Metric>,

    /// Do not score the answers
    #[arg(long, help_heading = "Scoring")]
    pub no_evaluate: bool,

    /// The directory for results; overrides output_dir
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub output_dir: Option<PathBuf>,

    /// Output format
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "human",
        hide_default_value = true,
        help_heading = "Output"
    )]
    pub output: Output,
}

/// Arguments of `ask`.
#[derive(Debug, Args)]
pub(crate) struct Ask {
    /// The question, or - to read it from stdin
    #[arg(value_name = "QUESTION")]
    pub question: String,

    /// Let the model use these tools of the tool server, such as web:search or doc:*
    #[arg(long, value_name = "TOOL,…", value_delimiter = ',')]
    pub tools: Vec<String>,

    /// The model
    #[arg(long, value_name = "NAME", default_value = "gpt-4.1-2025-04-14")]
    pub model: String,

    /// The URL of the model's server
    #[arg(long, value_name = "URL", env = "OPENAI_BASE_URL")]
    pub base_url: Option<String>,

    /// Maximum number of turns of the model
    #[arg(long, value_name = "N", default_value = "10")]
    pub max_turns: NonZeroU32,

    /// The URL of the tool server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:18890")]
    pub sandbox_url: String,

    /// The file with the token of the tool server
    #[arg(long, value_name = "FILE")]
    pub sandbox_token_file: Option<PathBuf>,

    /// The system prompt; '' sends none. --show-trajectory prints the default prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// Print the whole conversation to stderr
    #[arg(long)]
    pub show_trajectory: bool,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "human", hide_default_value = true)]
    pub output: Answer,
}
