//! Arguments of `score`.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;
use rollout::model::metric::Metric;

const EXAMPLES: &str = "\
Metrics:
  exact_match, f1_score, contains_answer, numeric_match, similarity, llm_judgement
  char_f1 (for text without spaces: Chinese, Japanese, Thai), edit_similarity, math_equal, multiple_choice

Examples:
  rollout score results/my_eval --metric char_f1
                                         Score the answers of a benchmark with another metric
  rollout score results.jsonl --metric llm_judgement --evaluator-model gpt-4.1-mini \\
      --evaluator-base-url https://api.openai.com/v1 --evaluator-api-key-var OPENAI_API_KEY
                                         Let a model judge the answers
  rollout score results.jsonl --config config.json
                                         Use the metric and judge of a benchmark configuration
  rollout score jobs/sums --rubric sums.yaml
                                         Score conversations with the rubric of an interaction

Exit status:
  0    every answer that can have a score has one
  1    a judge or a rubric function failed for some answers, which score 0;
       or a judge's server rejected the key, and nothing was written
  2    the command or a file is invalid";

/// Arguments of `score`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Score {
    /// A file of answers or a job directory; evaluation.json is written next to the answers
    #[arg(value_name = "RESULTS|JOB_DIR")]
    pub results: PathBuf,

    /// The metric; optional with --config
    #[arg(long, value_name = "METRIC", required_unless_present_any = ["config", "rubric"])]
    pub metric: Option<Metric>,

    /// Score conversations with the rubric of this interaction file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["metric", "config", "model", "base_url", "api_key_var"])]
    pub rubric: Option<PathBuf>,

    /// Number of answers to judge at the same time
    #[arg(long, value_name = "N", default_value = "16")]
    pub concurrency: NonZeroUsize,

    /// Use the metric and the judge of this benchmark configuration; other options override it
    #[arg(long, value_name = "FILE", help_heading = "Judge of llm_judgement")]
    pub config: Option<PathBuf>,

    /// The judge model, by its name on the server
    #[arg(
        id = "model",
        long = "evaluator-model",
        value_name = "NAME",
        help_heading = "Judge of llm_judgement"
    )]
    pub model: Option<String>,

    /// The URL of the judge's server; by default OPENAI_BASE_URL
    #[arg(
        id = "base_url",
        long = "evaluator-base-url",
        value_name = "URL",
        help_heading = "Judge of llm_judgement"
    )]
    pub base_url: Option<String>,

    /// The environment variable that contains the judge's API key; by default OPENAI_API_KEY
    #[arg(
        id = "api_key_var",
        long = "evaluator-api-key-var",
        value_name = "VARIABLE",
        help_heading = "Judge of llm_judgement"
    )]
    pub api_key_var: Option<String>,

    /// The judge's temperature, from 0 to 2; by default 0
    #[arg(
        long = "evaluator-temperature",
        value_name = "T",
        value_parser = temperature,
        help_heading = "Judge of llm_judgement"
    )]
    pub temperature: Option<f64>,

    /// Number of retries if the judge fails; by default 3
    #[arg(long = "evaluator-max-retries", value_name = "N", help_heading = "Judge of llm_judgement")]
    pub max_retries: Option<u32>,

    /// Also send the question to the judge
    #[arg(long, help_heading = "Judge of llm_judgement")]
    pub include_question: bool,
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(temperature) if (0.0..=2.0).contains(&temperature) => Ok(temperature),
        _ => Err("expected a number from 0 to 2".to_owned()),
    }
}
