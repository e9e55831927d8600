//! The configuration of a benchmark: questions for a model, the tools it may use, and how its answers are scored.

use std::{
    fmt,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::{EnvValue, ModelConfig, Override, diagnostic::Code, load_model, record_benchmark};
use rollout_core::{
    address::is_loopback,
    name::{AgentName, DatasetName},
};
use rollout_model::{
    client::{Dialect, RateLimit},
    metric::Metric,
};

/// Everything that can be said of a benchmark. The names are those of the configuration file.
#[derive(Clone, PartialEq)]
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
    /// The file that it was read from, if it was.
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

impl fmt::Debug for RolloutConfig {
    /// Shows what a record shows, and no secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RolloutConfig").field(&record_benchmark::clean(self)).finish()
    }
}

/// What a single run may say in place of the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutOverrides {
    /// The file of the questions, relative to the working directory.
    pub data_path: Option<PathBuf>,
    /// Where results go.
    pub output_dir: Option<PathBuf>,
    /// The server's name for the model.
    pub model_name: Option<String>,
    /// At most this many questions.
    pub max_tasks: Option<usize>,
    /// Only these questions.
    pub task_ids: Option<Vec<String>>,
    /// Whether answers are scored.
    pub evaluate: Option<bool>,
    /// How answers are scored.
    pub metric: Option<Metric>,
}

impl RolloutOverrides {
    /// The same as settings of the file.
    pub fn settings(&self) -> Result<Vec<Override>, NotText> {
        let text =
            |path: &PathBuf| path.to_str().map(|text| json!(text)).ok_or_else(|| NotText(path.clone()));
        // Whoever resumes the run may be elsewhere.
        let data_path = self.data_path.as_ref().map(|path| std::path::absolute(path).unwrap_or(path.clone()));
        let settings = [
            ("data_path", data_path.as_ref().map(text).transpose()?),
            ("output_dir", self.output_dir.as_ref().map(text).transpose()?),
            ("model_name", self.model_name.as_ref().map(|name| json!(name))),
            ("number_of_tasks", self.max_tasks.map(|number| json!(number))),
            ("task_ids", self.task_ids.as_ref().map(|ids| json!(ids))),
            ("evaluate_results", self.evaluate.map(|evaluate| json!(evaluate))),
            ("evaluation_metric", self.metric.map(|metric| json!(metric.as_str()))),
        ];
        let setting = |(key, value): (&str, Option<Value>)| {
            Some(Override { key: key.to_owned(), value: value?.to_string() })
        };
        Ok(settings.into_iter().filter_map(setting).collect())
    }
}

/// A path that cannot stand in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the path {} is not UTF-8, and so cannot stand in a configuration; give it another name", .0.display())]
pub struct NotText(pub PathBuf);

/// A rule that a configuration breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    /// The key that has to be changed.
    pub(super) key: &'static str,
    pub(super) code: Code,
    pub(super) message: String,
    pub(super) hint: &'static str,
}

const A_MODEL: &str = "such as `https://api.openai.com/v1` or `http://127.0.0.1:8000/v1`";

impl RolloutConfig {
    /// The model that answers.
    pub fn model(&self) -> ModelConfig {
        ModelConfig {
            name: self.model_name.clone(),
            base_urls: vec![self.base_url.clone()],
            api_key: self.api_key.clone(),
            dialect: Dialect::default(),
            sampling: Map::new(),
            extra_body: Map::new(),
            headers: IndexMap::new(),
            stream: false,
            token_ids: false,
            max_seq_len: None,
            timeout: Duration::from_secs_f64(load_model::TIMEOUT_SEC),
            connect_timeout: Duration::from_secs_f64(load_model::CONNECT_TIMEOUT_SEC),
            max_retries: self.max_retries,
            rate_limit: RateLimit::default(),
            price: None,
        }
    }

    /// The model that judges. What is not said of it is as for the model that answers.
    pub fn evaluator(&self) -> ModelConfig {
        let mut sampling = Map::from_iter([("temperature".to_owned(), json!(self.evaluator_temperature))]);
        sampling.extend(self.evaluator_extra_params.clone());
        ModelConfig {
            name: self.evaluator_model_name.as_ref().unwrap_or(&self.model_name).clone(),
            base_urls: vec![self.evaluator_base_url.as_ref().unwrap_or(&self.base_url).clone()],
            api_key: self.evaluator_api_key.as_ref().or(self.api_key.as_ref()).cloned(),
            sampling,
            max_retries: self.evaluator_max_retries,
            ..self.model()
        }
    }

    /// Names the benchmark: by its own name, else by the file of its questions.
    pub fn name(&self) -> String {
        let file = || self.data_path.as_deref().and_then(Path::file_stem).and_then(|stem| stem.to_str());
        let name = self.benchmark_name.as_deref().or_else(file).unwrap_or_default();
        if name.trim().is_empty() { "benchmark".to_owned() } else { name.to_owned() }
    }

    /// [Its name](Self::name) as the dataset of a job.
    pub fn dataset_name(&self) -> DatasetName {
        DatasetName::new(flat(&self.name()))
            .unwrap_or_else(|_| DatasetName::new("benchmark").expect("a word is a name"))
    }

    /// The model as the agent of a job.
    pub fn agent_name(&self) -> AgentName {
        AgentName::new(flat(&self.model_name))
            .unwrap_or_else(|_| AgentName::new("model").expect("a word is a name"))
    }

    /// Where results go: `output_dir`, or `rollout_results`.
    pub(crate) fn results_dir(&self) -> &Path {
        self.output_dir.as_deref().unwrap_or(Path::new("rollout_results"))
    }

    /// How many questions are worked on at the same time.
    pub fn workers(&self) -> NonZeroU32 {
        if self.parallel { self.max_workers } else { NonZeroU32::MIN }
    }

    /// Takes from outside what is not said, and makes settings that depend on each other agree.
    pub(super) fn complete(&mut self, vars: &dyn Fn(&str) -> Option<String>) {
        let filled = |name: &str| vars(name).filter(|value| !value.trim().is_empty());
        if self.api_key.is_none() {
            self.api_key = filled("OPENAI_API_KEY").map(|value| EnvValue { value, secret: true });
        }
        if self.base_url.is_empty() {
            self.base_url = filled("OPENAI_BASE_URL").unwrap_or_default();
        }
        if self.trajectory_only {
            self.evaluate_results = false;
            self.save_results = true;
            self.save_trajectories = true;
        }
    }

    /// Every rule that is broken and that types do not hold.
    pub(super) fn broken(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        let mut note = |key, code, message: String, hint| broken.push(Broken { key, code, message, hint });
        if self.model_name.trim().is_empty() {
            let hint = "write the name that the server knows the model by";
            note("model_name", Code::InvalidValue, "`model_name` must not be empty".to_owned(), hint);
        }
        if self.base_url.is_empty() {
            let hint = "write where the model's server answers, or set OPENAI_BASE_URL: \
                        `https://api.openai.com/v1`, `http://127.0.0.1:8000/v1`";
            note("base_url", Code::Missing, "`base_url` is missing".to_owned(), hint);
        }
        let judged = self.evaluate_results && self.evaluation_metric == Metric::LlmJudgement;
        for (key, url, hint) in [
            ("base_url", Some(&self.base_url), A_MODEL),
            ("evaluator_base_url", self.evaluator_base_url.as_ref(), A_MODEL),
            ("sandbox_server_url", Some(&self.sandbox_server_url), "such as `http://127.0.0.1:18890`"),
        ] {
            // The URL may hold a secret, so it is not told.
            if url.is_some_and(|url| !url.is_empty() && !is_url(url)) {
                note(key, Code::InvalidValue, format!("`{key}` must be an `http` or `https` URL"), hint);
            }
        }
        if self.api_key.is_none() && is_url(&self.base_url) && !is_loopback(&self.base_url) {
            let hint =
                "write it as `${VAR}`, or set OPENAI_API_KEY; only a server on this machine needs none";
            note("api_key", Code::Missing, "`api_key` is missing".to_owned(), hint);
        } else if judged
            && let Some(url) = &self.evaluator_base_url
            && self.api_key.is_none()
            && self.evaluator_api_key.is_none()
            && is_url(url)
            && !is_loopback(url)
        {
            let hint = "write it as `${VAR}`; only a server on this machine needs none";
            note("evaluator_api_key", Code::Missing, "`evaluator_api_key` is missing".to_owned(), hint);
        }
        for (key, value) in [
            ("api_key", &self.api_key),
            ("evaluator_api_key", &self.evaluator_api_key),
            ("sandbox_token", &self.sandbox_token),
        ] {
            if value.as_ref().is_some_and(|value| value.value.contains(char::is_control)) {
                let message = format!("`{key}` holds a control character");
                note(key, Code::InvalidValue, message, "a line break at its end is the likeliest");
            }
        }
        if !(0.0..=2.0).contains(&self.evaluator_temperature) {
            let message =
                format!("`evaluator_temperature` must be from 0 to 2, not {}", self.evaluator_temperature);
            note("evaluator_temperature", Code::InvalidValue, message, "0 gives the steadiest judge");
        }
        for key in ["model", "messages", "stream", "n", "tools"] {
            if self.evaluator_extra_params.contains_key(key) {
                let message = format!("`evaluator_extra_params.{key}` cannot be set");
                let hint = "the judge's model is `evaluator_model_name`; the rest of it is fixed";
                note("evaluator_extra_params", Code::Conflict, message, hint);
            }
        }
        if let Some(name) = &self.benchmark_name
            && let Err(error) = DatasetName::new(name.as_str())
        {
            let message = format!("`benchmark_name` cannot be used: {error}");
            note("benchmark_name", Code::InvalidName, message, "files of results have it in their names");
        }
        broken
    }

    /// Whether the judge gets the key of the model that answers, and is somewhere else.
    pub(super) fn shares_key(&self) -> bool {
        let host =
            |url: &str| reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
        let other = self.evaluator_base_url.as_deref().filter(|url| !is_loopback(url));
        self.evaluate_results
            && self.evaluation_metric == Metric::LlmJudgement
            && self.api_key.is_some()
            && self.evaluator_api_key.is_none()
            && other.is_some_and(|other| host(other) != host(&self.base_url))
    }
}

/// A name without directories in it.
fn flat(name: &str) -> String {
    name.replace(['/', '\\'], "--")
}

fn is_url(text: &str) -> bool {
    let plain = !text.contains(|char: char| char.is_whitespace() || char.is_control());
    let url = reqwest::Url::parse(text).ok().filter(|_| plain);
    url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}
