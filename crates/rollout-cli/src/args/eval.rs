//! Arguments of the commands that ask questions: `eval` and `ask`.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;
use rollout::model::metric::Metric;

use super::Output;

/// Arguments of `eval`.
#[derive(Debug, Args)]
pub(crate) struct Eval {
    /// The configuration of the benchmark: JSON or YAML
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,

    /// Take the questions from this file, instead of data_path
    #[arg(long, value_name = "FILE", help_heading = "What is asked")]
    pub data_path: Option<PathBuf>,

    /// Ask at most this many questions, instead of number_of_tasks
    #[arg(long, value_name = "N", help_heading = "What is asked")]
    pub max_tasks: Option<usize>,

    /// Ask only the questions with these ids, instead of task_ids
    #[arg(long, value_name = "ID,…", value_delimiter = ',', help_heading = "What is asked")]
    pub task_ids: Option<Vec<String>>,

    /// Ask this model, instead of model_name
    #[arg(long, value_name = "NAME", help_heading = "How it runs")]
    pub model: Option<String>,

    /// Replace any other value of the configuration; can be given several times
    #[arg(long, value_name = "KEY=VALUE", help_heading = "How it runs")]
    pub set: Vec<String>,

    /// Score answers by this metric, instead of evaluation_metric
    #[arg(long, value_name = "METRIC", help_heading = "How it is scored")]
    pub metric: Option<Metric>,

    /// Score nothing
    #[arg(long, help_heading = "How it is scored")]
    pub no_evaluate: bool,

    /// Write the results into this directory, instead of output_dir
    #[arg(long, value_name = "DIR", help_heading = "What comes out")]
    pub output_dir: Option<PathBuf>,

    /// Choose who reads the output
    #[arg(
        long,
        value_name = "FOR",
        default_value = "human",
        hide_default_value = true,
        help_heading = "What comes out"
    )]
    pub output: Output,
}

/// Arguments of `ask`.
#[derive(Debug, Args)]
pub(crate) struct Ask {
    /// The question; - reads it from stdin
    #[arg(value_name = "QUESTION")]
    pub question: String,

    /// Let the model use these tools of the tool server, such as web:search or doc:*
    #[arg(long, value_name = "TOOL,…", value_delimiter = ',')]
    pub tools: Vec<String>,

    /// Ask this model
    #[arg(long, value_name = "NAME", default_value = "gpt-4.1-2025-04-14")]
    pub model: String,

    /// The address of the model's server
    #[arg(long, value_name = "URL", env = "OPENAI_BASE_URL")]
    pub base_url: Option<String>,

    /// The most turns that the model takes
    #[arg(long, value_name = "N", default_value = "10")]
    pub max_turns: NonZeroU32,

    /// The address of the tool server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:18890")]
    pub sandbox_url: String,

    /// The file with the token of the tool server
    #[arg(long, value_name = "FILE")]
    pub sandbox_token_file: Option<PathBuf>,

    /// Tell the model this before the question; '' for nothing. Without it, a text of Rollout's own, which
    /// --show-trajectory shows
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// Show the whole conversation, on standard error
    #[arg(long)]
    pub show_trajectory: bool,

    /// Output format; json is one JSON object
    #[arg(long, value_name = "FORMAT", default_value = "human", hide_default_value = true)]
    pub output: Output,
}
