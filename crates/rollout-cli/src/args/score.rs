//! What can be written after `rollout score`.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;
use rollout::model::metric::Metric;

const EXAMPLES: &str = "\
Metrics:
  exact_match, f1_score, contains_answer, numeric_match, similarity, llm_judgement
  char_f1 (words are not separated: Chinese, Japanese, Thai), edit_similarity, math_equal, multiple_choice

Examples:
  rollout score results/my_eval --metric char_f1
                                         Score the answers of a benchmark by another metric
  rollout score results.jsonl --metric llm_judgement --evaluator-model gpt-4.1-mini \\
      --evaluator-base-url https://api.openai.com/v1 --evaluator-api-key-var OPENAI_API_KEY
                                         Have a model judge them
  rollout score results.jsonl --config config.json
                                         Score them as a benchmark's configuration says
  rollout score jobs/sums --rubric sums.yaml
                                         Score conversations by the rubric of an interaction

Exit status:
  0    every answer that can have a score has one
  1    a judge or a function of the rubric failed for some, which count as 0
       or the key of a judge is refused, and nothing is written
  2    the command or a file is wrong";

/// Arguments of `score`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Score {
    /// A file of answers, or the directory of a job; evaluation.json is written beside the answers
    #[arg(value_name = "RESULTS|JOB_DIR")]
    pub results: PathBuf,

    /// The metric; with --config it may be left out
    #[arg(long, value_name = "METRIC", required_unless_present_any = ["config", "rubric"])]
    pub metric: Option<Metric>,

    /// Score conversations by the rubric of this interaction file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["metric", "config", "model", "base_url", "api_key_var"])]
    pub rubric: Option<PathBuf>,

    /// Judge this many answers at the same time
    #[arg(long, value_name = "N", default_value = "16")]
    pub concurrency: NonZeroUsize,

    /// Take the metric and the judge from the configuration of a benchmark; options win over it
    #[arg(long, value_name = "FILE", help_heading = "The judge of llm_judgement")]
    pub config: Option<PathBuf>,

    /// The server's name for the model that judges
    #[arg(
        id = "model",
        long = "evaluator-model",
        value_name = "NAME",
        help_heading = "The judge of llm_judgement"
    )]
    pub model: Option<String>,

    /// Where its server answers; OPENAI_BASE_URL if not given
    #[arg(
        id = "base_url",
        long = "evaluator-base-url",
        value_name = "URL",
        help_heading = "The judge of llm_judgement"
    )]
    pub base_url: Option<String>,

    /// The variable that holds its key; OPENAI_API_KEY if not given. Keys are never written on a command line
    #[arg(
        id = "api_key_var",
        long = "evaluator-api-key-var",
        value_name = "VARIABLE",
        help_heading = "The judge of llm_judgement"
    )]
    pub api_key_var: Option<String>,

    /// Its temperature, from 0 to 2; 0 if not given
    #[arg(
        long = "evaluator-temperature",
        value_name = "T",
        value_parser = temperature,
        help_heading = "The judge of llm_judgement"
    )]
    pub temperature: Option<f64>,

    /// How often it is asked again if it fails; 3 if not given
    #[arg(long = "evaluator-max-retries", value_name = "N", help_heading = "The judge of llm_judgement")]
    pub max_retries: Option<u32>,

    /// Show it the question too
    #[arg(long, help_heading = "The judge of llm_judgement")]
    pub include_question: bool,
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(temperature) if (0.0..=2.0).contains(&temperature) => Ok(temperature),
        _ => Err("it is a number from 0 to 2".to_owned()),
    }
}
