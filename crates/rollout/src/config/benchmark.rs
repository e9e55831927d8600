//! The configuration of a benchmark: questions for a model, the tools it may use, and how its answers are scored.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::EnvValue;
use crate::model::metric::Metric;

/// Everything that can be said of a benchmark. The names are those of the configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutConfig {
    /// The file of the questions.
    pub data_path: Option<PathBuf>,
    /// Where results go.
    pub output_dir: Option<PathBuf>,
    /// The server's name for the model.
    pub model_name: String,
    /// The model's key.
    pub api_key: Option<EnvValue>,
    /// The address of the model's server.
    pub base_url: String,
    /// The most turns that a question takes.
    pub max_turns: NonZeroU32,
    /// How often a request to the model is tried again.
    pub max_retries: u32,
    /// How many questions are worked on at the same time, if any two are.
    pub max_workers: NonZeroU32,
    /// The tools that the model may use, by name or by pattern: `web:search`, `vm:*`.
    pub available_tools: Vec<String>,
    /// What the model is told before the question; empty for a text of our own.
    pub system_prompt: String,
    /// Where to read it instead.
    pub system_prompt_file: Option<PathBuf>,
    /// Whether answers are scored.
    pub evaluate_results: bool,
    /// How answers are scored.
    pub evaluation_metric: Metric,
    /// The model that judges, if not the one that answers.
    pub evaluator_model_name: Option<String>,
    /// Its key.
    pub evaluator_api_key: Option<EnvValue>,
    /// The address of its server.
    pub evaluator_base_url: Option<String>,
    /// Its temperature, from 0 to 2.
    pub evaluator_temperature: f64,
    /// How often it is asked again.
    pub evaluator_max_retries: u32,
    /// What else is sent to it.
    pub evaluator_extra_params: Map<String, Value>,
    /// Whether it is shown the question beside the answers.
    pub evaluator_include_question: bool,
    /// The kinds of tools for which each question gets a session.
    pub resource_types: Vec<String>,
    /// What these sessions are opened with, by kind.
    pub resource_init_configs: IndexMap<String, Map<String, Value>>,
    /// The address of the tool server.
    pub sandbox_server_url: String,
    /// The token of the tool server, if it wants one.
    pub sandbox_token: Option<EnvValue>,
    /// Whether the tool server is started if it does not answer.
    pub sandbox_auto_start: bool,
    /// What it is then started with.
    pub sandbox_config_path: Option<PathBuf>,
    /// How long one call of a tool may take.
    pub sandbox_timeout: Duration,
    /// Names the benchmark in results.
    pub benchmark_name: Option<String>,
    /// At most this many questions.
    pub number_of_tasks: Option<usize>,
    /// Only these questions.
    pub task_ids: Option<Vec<String>>,
    /// Whether several questions are worked on at the same time.
    pub parallel: bool,
    /// Whether answers are saved.
    pub save_results: bool,
    /// Whether conversations are saved with them.
    pub save_trajectories: bool,
    /// Whether conversations are all that is saved. Nothing is scored then.
    pub trajectory_only: bool,
    /// Whether a summary is saved.
    pub save_summary: bool,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self {
            data_path: None,
            output_dir: None,
            model_name: "gpt-4.1-2025-04-14".to_owned(),
            api_key: None,
            base_url: String::new(),
            max_turns: NonZeroU32::new(100).expect("it is not 0"),
            max_retries: 3,
            max_workers: NonZeroU32::MIN,
            available_tools: Vec::new(),
            system_prompt: String::new(),
            system_prompt_file: None,
            evaluate_results: true,
            evaluation_metric: Metric::ExactMatch,
            evaluator_model_name: None,
            evaluator_api_key: None,
            evaluator_base_url: None,
            evaluator_temperature: 0.0,
            evaluator_max_retries: 3,
            evaluator_extra_params: Map::new(),
            evaluator_include_question: false,
            resource_types: Vec::new(),
            resource_init_configs: IndexMap::new(),
            sandbox_server_url: "http://127.0.0.1:18890".to_owned(),
            sandbox_token: None,
            sandbox_auto_start: false,
            sandbox_config_path: None,
            sandbox_timeout: Duration::from_secs(120),
            benchmark_name: None,
            number_of_tasks: None,
            task_ids: None,
            parallel: false,
            save_results: true,
            save_trajectories: true,
            trajectory_only: false,
            save_summary: true,
        }
    }
}
