//! The configuration of a benchmark: questions for a model, its tools, and how its answers are scored.

use rollout_core::address::is_loopback;
use rollout_record::identity::PROMPT_HASH;
use std::{
    collections::BTreeSet,
    fmt,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::{
    ModelConfig,
    benchmark_forms::{filled, input, is_filled, key, maps, metric, prompt, text, texts, url, values},
    is_hub_address,
    model::MOST_RETRIES,
};
use rollout_core::{
    name::{AgentName, DatasetName},
    redact::Redactor,
    result::DEFAULT_PASS_THRESHOLD,
};
use rollout_model::metric::Metric;
use rollout_settings::{
    Code, EnvValue, Override, Settings as _, Written,
    expand::{has_password, is_secret_header},
    forms::{count, finite, flag, hash, number, seconds, whole},
    record::redact,
};

rollout_settings::settings! {
    /// A benchmark: questions for a model, its tools, and how its answers are scored.
    ///
    /// The names are those of the configuration file.
    #[derive(Clone, PartialEq)]
    pub struct RolloutConfig {
        /// The file of the questions, .jsonl or .json, relative to this file or else to the working directory.
        ///
        /// Or rows on a hub, as `hf:owner/name[/config][:split][@revision]`. See [questions](#questions).
        pub data_path: Option<PathBuf> = input(|_| true),
        /// The directory of the results, relative to the working directory.
        ///
        /// A directory that already has [results](#results) is rejected.
        pub output_dir: Option<PathBuf> = filled()
            .kind("path")
            .map(PathBuf::from, |path| path.to_string_lossy().into_owned())
            .optional()
            .shown_default(RESULTS)
            .unhashed(),
        /// The name of the model on its server.
        pub model_name: String = text().default("gpt-4.1-2025-04-14".to_owned()),
        /// The API key of the model. A server on this machine needs none.
        pub api_key: Option<EnvValue> = key().unset("the variable `OPENAI_API_KEY`").unhashed(),
        /// The base URL of the model's server.
        pub base_url: String = url().or_empty().unset("the variable `OPENAI_BASE_URL`").unhashed(),
        /// The maximum number of turns per question.
        pub max_turns: NonZeroU32 = count(100),
        /// How often a failed request to the model is retried.
        ///
        /// The waits are 0.5 s, 1 s, 2 s and so on.
        pub max_retries: u32 = whole(0..=MOST_RETRIES).default(3).unhashed(),
        /// How many questions run at the same time with `parallel`, by default 4. Without `parallel`, it has no effect.
        pub max_workers: NonZeroU32 = count(1).unset("4 with `parallel`").unhashed(),
        /// The tools that the model may use, such as `web:search` or `vm:*`.
        ///
        /// See [tools](#tools).
        pub available_tools: Vec<String> = texts().or_empty(),
        /// The system prompt, as text or as a list of lines. Rollout's default prompt when empty.
        pub system_prompt: String = prompt().or_empty().unset("Rollout's default prompt"),
        /// A file with the system prompt, which replaces `system_prompt`. It is found in the same way as `data_path`.
        ///
        /// If the file does not exist, there is a warning.
        pub system_prompt_file: Option<PathBuf> = input(|_| false).beside(
            PROMPT_HASH,
            "The hash that the file must have, as config.json records it.",
            hash(),
        ),
        /// Whether answers are scored.
        pub evaluate_results: bool = flag(true),
        /// The metric that scores answers.
        pub evaluation_metric: Metric = metric().default(Metric::ExactMatch),
        /// The lowest score that counts as solved.
        pub pass_threshold: f64 = finite().default(DEFAULT_PASS_THRESHOLD),
        /// The judge for `llm_judgement`.
        pub evaluator_model_name: Option<String> = filled().optional().unset("`model_name`"),
        /// The API key of the judge.
        pub evaluator_api_key: Option<EnvValue> = key().unset("`api_key`").unhashed(),
        /// The base URL of the judge's server.
        pub evaluator_base_url: Option<String> = url().filter(|text| is_filled(text)).optional().unset("`base_url`").unhashed(),
        /// The judge's temperature.
        pub evaluator_temperature: f64 = number(..)
            .refine(|schema| (schema["minimum"], schema["maximum"]) = (json!(0), json!(2)))
            .kind("0 to 2")
            .default(0.0),
        /// How often a failed request to the judge is retried.
        pub evaluator_max_retries: u32 = whole(0..=MOST_RETRIES).default(3).unhashed(),
        /// Further parameters for the judge.
        ///
        /// For example `max_tokens`.
        pub evaluator_extra_params: Map<String, Value> = values(),
        /// Whether the judge also sees the question.
        pub evaluator_include_question: bool = flag(false),
        /// The kinds of tools for which each question gets a session, such as `doc` or `code`.
        pub resource_types: Vec<String> = texts().or_empty(),
        /// The settings of these sessions: for each kind, a mapping with the settings under `content`.
        ///
        /// Relative paths start at this file; if they do not exist there, the tool server resolves them.
        pub resource_init_configs: IndexMap<String, Map<String, Value>> = maps(),
        /// The URL of the tool server. Not used with `sandbox_auto_start`, which rejects the URL of another machine.
        pub sandbox_server_url: String = url().filter(|text| is_filled(text)).default("http://127.0.0.1:18890".to_owned()).unhashed(),
        /// The token of the tool server, if it requires one.
        pub sandbox_token: Option<EnvValue> = key().unhashed(),
        /// Whether a tool server is started for the run.
        ///
        /// It has its own free port and token, exits with the run, and may read the paths in `resource_init_configs`,
        /// and paths in questions if they are below the folder of the file of questions.
        pub sandbox_auto_start: bool = flag(false).unhashed(),
        /// The configuration of the tool server that `sandbox_auto_start` starts. It is found in the same way as
        /// `data_path`.
        pub sandbox_config_path: Option<PathBuf> = input(|root| {
            root.node("sandbox_auto_start").is_some_and(|node| matches!(node.value, rollout_settings::Value::Bool(true)))
        })
        .unhashed(),
        /// Seconds that one tool call may take.
        pub sandbox_timeout: Duration = seconds().default(Duration::from_secs(120)).shown_default(120),
        /// The name of the benchmark in results.
        pub benchmark_name: Option<String> = filled().optional().unset("the name of the file of questions"),
        /// The maximum number of questions.
        ///
        /// Applied after `task_ids`; the first ones are taken.
        pub number_of_tasks: Option<usize> = whole(1..=u64::MAX)
            .refine(|schema| *schema = json!({ "type": "integer", "minimum": 1 }))
            .optional()
            .unset("all"),
        /// Only the questions with these ids.
        ///
        /// An unknown id is an error.
        pub task_ids: Option<Vec<String>> = texts()
            .refine(|schema| schema["items"]["type"] = json!(["string", "number"]))
            .filter(|ids| !ids.is_empty())
            .optional()
            .unset("all"),
        /// Whether several questions run at the same time.
        pub parallel: bool = flag(false).unhashed(),
        /// Whether answers are saved.
        ///
        /// Without them there is only the summary, and the run cannot be resumed.
        pub save_results: bool = flag(true),
        /// Whether conversations are saved with the answers.
        pub save_trajectories: bool = flag(true),
        /// Whether only conversations are saved. Nothing is scored then.
        pub trajectory_only: bool = flag(false),
        /// Whether a summary is saved.
        pub save_summary: bool = flag(true).unhashed(),
    }
}

/// The default directory of the results.
const RESULTS: &str = "rollout_results";

impl Default for RolloutConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of a benchmark has a default")
    }
}

impl fmt::Debug for RolloutConfig {
    /// Prints the record, without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RolloutConfig").field(&self.record_without_secrets()).finish()
    }
}

/// The JSON Schema of the configuration of a benchmark.
pub fn benchmark_schema() -> Value {
    let mut schema = rollout_settings::titled::<RolloutConfig>("Rollout benchmark");
    schema["properties"].as_object_mut().into_iter().flat_map(Map::values_mut).for_each(nullable);
    // Other programs may have their own keys here, and keys that start with an underscore are comments.
    schema["additionalProperties"] = json!(true);
    schema
}

/// Null means the same as absent.
fn nullable(schema: &mut Value) {
    if schema["type"].is_string() {
        schema["type"] = json!([schema["type"].take(), "null"]);
    }
    for key in ["enum", "anyOf"] {
        if let Some(list) = schema.get_mut(key).and_then(Value::as_array_mut) {
            list.push(if key == "enum" { Value::Null } else { json!({ "type": "null" }) });
        }
    }
}

/// Overrides of the configuration file for a single run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutOverrides {
    /// The file of the questions, relative to the working directory.
    pub data_path: Option<PathBuf>,
    /// The directory of the results.
    pub output_dir: Option<PathBuf>,
    /// The name of the model on its server.
    pub model_name: Option<String>,
    /// The maximum number of questions.
    pub max_tasks: Option<usize>,
    /// Only these questions.
    pub task_ids: Option<Vec<String>>,
    /// Whether answers are scored.
    pub evaluate: Option<bool>,
    /// The metric that scores answers.
    pub metric: Option<Metric>,
}

impl RolloutOverrides {
    /// The same, as settings of the file.
    pub fn settings(&self) -> Result<Vec<Override>, NotText> {
        let text =
            |path: &PathBuf| path.to_str().map(|text| json!(text)).ok_or_else(|| NotText(path.clone()));
        // The run may be resumed from another directory.
        let absolute = |path: &PathBuf| match path.to_str().is_some_and(is_hub_address) {
            true => path.clone(),
            false => std::path::absolute(path).unwrap_or(path.clone()),
        };
        let data_path = self.data_path.as_ref().map(absolute);
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

/// A path that cannot be written in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the path {} is not UTF-8, so it cannot be recorded in the configuration; rename it", .0.display())]
pub struct NotText(pub PathBuf);

/// A violated rule of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    /// The key to change.
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
            max_retries: self.max_retries,
            ..ModelConfig::defaults().expect("every other setting of a model has a default")
        }
    }

    /// The judge. Settings that are not given are those of the model that answers.
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

    /// The name of the benchmark: its own name, or that of the file of its questions.
    pub fn name(&self) -> String {
        let file = || self.data_path.as_deref().and_then(Path::file_stem).and_then(|stem| stem.to_str());
        let name = self.benchmark_name.as_deref().or_else(file).unwrap_or_default();
        if name.trim().is_empty() { "benchmark".to_owned() } else { name.to_owned() }
    }

    /// [Its name](Self::name) as the name of a dataset.
    pub fn dataset_name(&self) -> DatasetName {
        DatasetName::new(flat(&self.name()))
            .unwrap_or_else(|_| DatasetName::new("benchmark").expect("a word is a name"))
    }

    /// The name of the model as the name of an agent.
    pub fn agent_name(&self) -> AgentName {
        AgentName::new(flat(&self.model_name))
            .unwrap_or_else(|_| AgentName::new("model").expect("a word is a name"))
    }

    /// The directory of the results: `output_dir`, or `rollout_results`.
    pub(crate) fn results_dir(&self) -> &Path {
        self.output_dir.as_deref().unwrap_or(Path::new(RESULTS))
    }

    /// How many questions run at the same time.
    pub fn workers(&self) -> NonZeroU32 {
        if self.parallel { self.max_workers } else { NonZeroU32::MIN }
    }

    /// All settings, with secrets masked.
    pub(super) fn record_without_secrets(&self) -> Value {
        let mut record = Self::record(self, Written::NOWHERE).into();
        redact(&mut record, &Redactor::new(secrets(self).iter().map(String::as_str)));
        record
    }

    /// Fills missing settings from the environment, and makes dependent settings consistent.
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

    /// Every violated rule that types do not enforce.
    pub(super) fn broken(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        let mut note = |key, code, message: String, hint| broken.push(Broken { key, code, message, hint });
        if self.model_name.trim().is_empty() {
            let hint = "set the name of the model on its server";
            note("model_name", Code::InvalidValue, "`model_name` must not be empty".to_owned(), hint);
        }
        if self.base_url.is_empty() {
            let hint = "write the base URL of the model's server, or set OPENAI_BASE_URL: \
                        `https://api.openai.com/v1`, `http://127.0.0.1:8000/v1`";
            note("base_url", Code::Missing, "`base_url` is missing".to_owned(), hint);
        }
        let judged = self.evaluate_results && self.evaluation_metric == Metric::LlmJudgement;
        for (key, url, hint) in [
            ("base_url", Some(&self.base_url), A_MODEL),
            ("evaluator_base_url", self.evaluator_base_url.as_ref(), A_MODEL),
            ("sandbox_server_url", Some(&self.sandbox_server_url), "such as `http://127.0.0.1:18890`"),
        ] {
            // The URL may contain a secret, so it is not shown.
            if url.is_some_and(|url| !url.is_empty() && !is_url(url)) {
                note(key, Code::InvalidValue, format!("`{key}` must be an `http` or `https` URL"), hint);
            }
        }
        if self.api_key.is_none() && is_url(&self.base_url) && !is_loopback(&self.base_url) {
            let hint =
                "write it as `${VAR}`, or set OPENAI_API_KEY; only a server on this machine needs no key";
            note("api_key", Code::Missing, "`api_key` is missing".to_owned(), hint);
        } else if judged
            && let Some(url) = &self.evaluator_base_url
            && self.api_key.is_none()
            && self.evaluator_api_key.is_none()
            && is_url(url)
            && !is_loopback(url)
        {
            let hint = "write it as `${VAR}`; only a server on this machine needs no key";
            note("evaluator_api_key", Code::Missing, "`evaluator_api_key` is missing".to_owned(), hint);
        }
        for (key, value) in [
            ("api_key", &self.api_key),
            ("evaluator_api_key", &self.evaluator_api_key),
            ("sandbox_token", &self.sandbox_token),
        ] {
            if value.as_ref().is_some_and(|value| value.value.contains(char::is_control)) {
                let message = format!("`{key}` contains a control character");
                note(key, Code::InvalidValue, message, "the likely cause is a line break at its end");
            }
        }
        if !(0.0..=2.0).contains(&self.evaluator_temperature) {
            let message =
                format!("`evaluator_temperature` must be from 0 to 2, not {}", self.evaluator_temperature);
            note(
                "evaluator_temperature",
                Code::InvalidValue,
                message,
                "write a number from 0 to 2; 0 gives the most consistent scores",
            );
        }
        for key in ["model", "messages", "stream", "n", "tools"] {
            if self.evaluator_extra_params.contains_key(key) {
                let message = format!("`evaluator_extra_params.{key}` must not be set");
                let hint = "set the model of the judge with `evaluator_model_name`; the other parts of the request are fixed";
                note("evaluator_extra_params", Code::Conflict, message, hint);
            }
        }
        if let Some(name) = &self.benchmark_name
            && let Err(error) = DatasetName::new(name.as_str())
        {
            let message = format!("invalid `benchmark_name`: {error}");
            note("benchmark_name", Code::InvalidName, message, "it is part of the names of result files");
        }
        broken
    }

    /// Whether the judge gets the key of the model that answers, but has another server.
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

/// A name without directories.
fn flat(name: &str) -> String {
    name.replace(['/', '\\'], "--")
}

fn is_url(text: &str) -> bool {
    let plain = !text.contains(|char: char| char.is_whitespace() || char.is_control());
    let url = reqwest::Url::parse(text).ok().filter(|_| plain);
    url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

/// The secrets of a configuration.
pub(super) fn secrets(config: &RolloutConfig) -> BTreeSet<String> {
    let keys = [&config.api_key, &config.evaluator_api_key, &config.sandbox_token];
    let mut secrets: BTreeSet<_> = keys.into_iter().flatten().map(|key| key.value.clone()).collect();
    let urls = [Some(&config.base_url), config.evaluator_base_url.as_ref(), Some(&config.sandbox_server_url)];
    secrets.extend(urls.into_iter().flatten().filter(|url| has_password(url)).cloned());
    for values in config.resource_init_configs.values().chain([&config.evaluator_extra_params]) {
        values.iter().for_each(|(key, value)| literal_secrets(key, value, &mut secrets));
    }
    secrets
}

/// The texts under keys that name a secret.
fn literal_secrets(key: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if is_secret_header(key) || has_password(text) => _ = found.insert(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| literal_secrets(key, item, found)),
        Value::Object(entries) => {
            entries.iter().for_each(|(key, value)| literal_secrets(key, value, found));
        }
        _ => {}
    }
}
