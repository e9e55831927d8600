//! Reads the configuration of a benchmark, with everything it names that must be known before a question is asked.

use rollout_record::identity::PROMPT_HASH;
use std::{
    cell::RefCell,
    collections::BTreeSet,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::{
    AgentConfig, AgentKind, Env, EnvValue, JobConfig, LoadedJob, ModelAgentConfig, Override, RetryConfig,
    RolloutConfig,
    diagnostic::{Code, Diagnostic, Problems, nearest, quoted},
    expand::{Expanded, expand, has_password, names_a_secret},
    load_job::{COPY, Loader, read_text},
    load_model::{MOST_RETRIES, is_secret_header},
    overrides,
    reader::{MAX_TIMEOUT_SEC, Reader, Section, above_zero, scalar_text},
    record::{self, sha256},
    record_benchmark,
    tree::{Entry, Node, Sources, Span, Value},
    yaml,
};
use rollout_core::{name::JobName, redact::Redactor};
use rollout_model::{Limits, metric::Metric};

pub(super) const KEYS: [&str; 36] = [
    "data_path",
    "output_dir",
    "model_name",
    "api_key",
    "base_url",
    "max_turns",
    "max_retries",
    "max_workers",
    "available_tools",
    "system_prompt",
    "system_prompt_file",
    PROMPT_HASH,
    "evaluate_results",
    "evaluation_metric",
    "evaluator_model_name",
    "evaluator_api_key",
    "evaluator_base_url",
    "evaluator_temperature",
    "evaluator_max_retries",
    "evaluator_extra_params",
    "evaluator_include_question",
    "resource_types",
    "resource_init_configs",
    "sandbox_server_url",
    "sandbox_token",
    "sandbox_auto_start",
    "sandbox_config_path",
    "sandbox_timeout",
    "benchmark_name",
    "number_of_tasks",
    "task_ids",
    "parallel",
    "save_results",
    "save_trajectories",
    "trajectory_only",
    "save_summary",
];

/// The configuration of a benchmark that can be run.
#[derive(Clone)]
pub struct LoadedBenchmark {
    /// What the file says, with what the environment adds to it.
    pub config: RolloutConfig,
    /// The file; empty for a configuration that was made in code.
    pub path: PathBuf,
    /// What config.json holds: every setting, `${VAR}` as written, literal secrets masked. [`load_benchmark_record`] reads
    /// it again.
    pub record: Json,
    /// `sha256:` and the hash of everything in the record that can change an answer or its score.
    pub hash: String,
    /// Values that must not appear in any output.
    pub secrets: Vec<String>,
    /// What may not be as its author meant.
    pub warnings: Vec<Diagnostic>,
}

impl std::fmt::Debug for LoadedBenchmark {
    /// Shows what the record shows, and no secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("LoadedBenchmark");
        out.field("path", &self.path).field("hash", &self.hash).field("record", &self.record);
        out.field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

impl LoadedBenchmark {
    /// Takes a configuration that was made in code. Variables that take the place of what it does not say come from
    /// `vars`.
    pub fn new(mut config: RolloutConfig, vars: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problems> {
        config.complete(vars);
        let broken = config.broken();
        if !broken.is_empty() {
            let problem = |broken: super::benchmark::Broken| {
                Diagnostic::about_file("the configuration", broken.code, broken.message).hint(broken.hint)
            };
            return Err(Problems::new(broken.into_iter().map(problem).collect()));
        }
        let secrets = secrets(&config);
        let record = record_benchmark::clean(&config);
        Ok(Self {
            hash: record_benchmark::hash(&record),
            record,
            config,
            path: PathBuf::new(),
            secrets: secrets.into_iter().collect(),
            warnings: Vec::new(),
        })
    }

    /// The benchmark as a job: one agent, which is the model, and no dataset yet.
    pub fn job(&self) -> LoadedJob {
        let Self { config, path, record, hash, secrets, warnings } = self.clone();
        let dir = config.results_dir();
        let name = dir.file_name().and_then(|name| name.to_str()).and_then(|name| JobName::new(name).ok());
        let jobs_dir = match &name {
            Some(_) => dir.parent().unwrap_or(Path::new("")),
            None => dir,
        };
        let agent = ModelAgentConfig {
            model: config.model(),
            system_prompt: None,
            limits: Limits { max_turns: Some(config.max_turns.get()), ..Limits::default() },
        };
        let agent = AgentConfig {
            name: config.agent_name(),
            description: None,
            env: Env::new(),
            kind: AgentKind::Model(Box::new(agent)),
        };
        let retry = RetryConfig { max_attempts: NonZeroU32::MIN.saturating_add(1), ..RetryConfig::default() };
        let job = JobConfig {
            jobs_dir: jobs_dir.to_owned(),
            name,
            n_concurrent_trials: config.workers(),
            retry,
            agents: vec![agent],
            ..JobConfig::default()
        };
        LoadedJob { config: job, path, record, warnings, hash, secrets }
    }
}

/// Reads and checks the configuration of a benchmark: JSON, or YAML, by the ending of its name.
///
/// Variables for `${VAR}`, and for a key and an address that are not given (`OPENAI_API_KEY`, `OPENAI_BASE_URL`), come from
/// `vars`. Relative inputs are found beside the file or, if they are not there, in the working directory; those of
/// `overrides` only in the latter. Results go where the working directory is.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("config.json");
/// std::fs::write(&path, r#"{"base_url": "http://127.0.0.1:8000/v1", "max_turns": 5}"#)?;
/// let more = "max_turns=7".parse()?;
/// let loaded = rollout::config::load_benchmark(&path, &[more], &|_| None)?;
/// assert_eq!(loaded.config.max_turns.get(), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load_benchmark(
    path: &Path,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedBenchmark, Problems> {
    let refuse = |message: String, hint: Option<&str>| {
        let problem = Diagnostic::about_file(path.display().to_string(), Code::Unreadable, message);
        let problem = hint.into_iter().fold(problem, Diagnostic::hint);
        Problems::new(vec![problem])
    };
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if !matches!(extension.as_str(), "json" | "yaml" | "yml") {
        let hint = "name the file .json, .yaml or .yml";
        return Err(refuse("a configuration is JSON or YAML".to_owned(), Some(hint)));
    }
    let text = read_text(path).map_err(|message| refuse(message, None))?;
    load_benchmark_text(path, &text, overrides, vars)
}

/// Reads and checks the configuration of a benchmark, for those who run its questions themselves.
pub fn load_config(path: &Path, vars: &dyn Fn(&str) -> Option<String>) -> Result<RolloutConfig, Problems> {
    load_benchmark(path, &[], vars).map(|loaded| loaded.config)
}

/// Whether a file is the configuration of a benchmark, and no job: it has keys of the one and none of those that every
/// other has.
pub fn is_benchmark(path: &Path) -> bool {
    let tree = read_text(path).ok().and_then(|text| yaml::parse(text.trim_start_matches('\u{feff}'), 0).ok());
    let Some(Node { value: Value::Map(entries), .. }) = tree else { return false };
    let has = |keys: &[&str]| entries.iter().any(|entry| keys.contains(&entry.key.as_str()));
    has(&KEYS) && !has(&["agents", "datasets"])
}

/// Reads and checks a configuration from text, as if it were the content of the file at `path`.
pub fn load_benchmark_text(
    path: &Path,
    text: &str,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedBenchmark, Problems> {
    load(path, text, overrides, vars, false)
}

/// Reads a configuration from its record, for when the file at `path` is gone. Inputs are found as if it were there; a
/// record in which a secret was masked is refused.
pub fn load_benchmark_record(
    path: &Path,
    record: &Json,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedBenchmark, Problems> {
    load(path, &format!("{record:#}"), &[], vars, true)
}

fn load(
    path: &Path,
    text: &str,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
    is_record: bool,
) -> Result<LoadedBenchmark, Problems> {
    let text = text.trim_start_matches('\u{feff}');
    let mut sources = Sources::default();
    let shown = path.display().to_string();
    let source = sources.add(if is_record { COPY } else { &shown }, text);
    let mut tree = yaml::parse(text, source).map_err(|error| {
        let span = error.span.unwrap_or(Span { source, start: 0, end: 0 });
        let yaml = path.extension().is_some_and(|extension| extension != "json");
        let message = format!("this is not {}: {}", if yaml { "YAML" } else { "JSON" }, error.message);
        Problems::new(vec![Diagnostic::error(&sources, span, Code::Syntax, message)])
    })?;
    if let Value::Map(entries) = &mut tree.value {
        // Comments, in a format that has none, and what editors look for.
        entries.retain(|entry| !entry.key.starts_with('_') && entry.key != "$schema");
    }
    let mut refused = Vec::new();
    for over in overrides {
        if let Err(problem) = overrides::apply(&mut tree, over, &mut sources) {
            refused.push(*problem);
        }
    }
    let reader = Reader::new(&sources);
    refused.into_iter().for_each(|problem| reader.report(problem));
    reader.check_duplicates(&tree);
    if is_record {
        reader.check_masks(&tree);
    }
    let dir = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    let loader = Benchmark {
        loader: Loader { reader: &reader, vars, dir, secrets: RefCell::default() },
        file: source,
        noted: RefCell::default(),
    };
    let read = loader.read(&tree);
    let mut secrets = loader.loader.secrets.into_inner();
    let (found, failed) = reader.finish();
    let Some(config) = read.filter(|_| !failed) else { return Err(Problems::new(found)) };
    secrets.extend(self::secrets(&config));
    let mut record = record_benchmark::written(&config, &tree);
    record::redact(&mut record, &Redactor::new(secrets.iter().map(String::as_str)));
    Ok(LoadedBenchmark {
        hash: record_benchmark::hash(&record),
        record,
        config,
        path: path.to_owned(),
        secrets: secrets.into_iter().collect(),
        warnings: found,
    })
}

/// What must not be shown of a configuration.
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
fn literal_secrets(key: &str, value: &Json, found: &mut BTreeSet<String>) {
    match value {
        Json::String(text) if is_secret_header(key) || has_password(text) => _ = found.insert(text.clone()),
        Json::Array(items) => items.iter().for_each(|item| literal_secrets(key, item, found)),
        Json::Object(entries) => {
            entries.iter().for_each(|(key, value)| literal_secrets(key, value, found));
        }
        _ => {}
    }
}

/// What reading a configuration needs besides its tree.
struct Benchmark<'a> {
    loader: Loader<'a>,
    /// The text that is the file; other texts came from the command line.
    file: usize,
    /// Keys of which something wrong has been told already.
    noted: RefCell<BTreeSet<String>>,
}

impl Benchmark<'_> {
    fn read(&self, tree: &Node) -> Option<RolloutConfig> {
        let reader = self.loader.reader;
        let root = reader.mapping(tree, "")?;
        root.entries.iter().for_each(|entry| self.warn_of_unknown(entry));
        let default = RolloutConfig::default();
        let count = |key: &str, range, default: u32| {
            root.integer(key, range).and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
        };
        let positive = |key: &str, default: NonZeroU32| {
            NonZeroU32::new(count(key, 1..=u32::MAX.into(), default.get())).unwrap_or(default)
        };
        let flag = |key: &str, default: bool| root.bool(key).unwrap_or(default);
        let retries = |key: &str, default| count(key, 0..=MOST_RETRIES, default);
        let (system_prompt, system_prompt_file) = self.system_prompt(&root);
        let sandbox_auto_start = flag("sandbox_auto_start", default.sandbox_auto_start);
        let mut config = RolloutConfig {
            data_path: self.input(&root, "data_path", true),
            output_dir: self.filled(&root, "output_dir").map(PathBuf::from),
            model_name: self.text(&root, "model_name").unwrap_or(default.model_name),
            api_key: self.secret(&root, "api_key"),
            base_url: self.text(&root, "base_url").unwrap_or_default(),
            max_turns: positive("max_turns", default.max_turns),
            max_retries: retries("max_retries", default.max_retries),
            max_workers: positive("max_workers", default.max_workers),
            available_tools: self.texts(&root, "available_tools").unwrap_or_default(),
            system_prompt,
            system_prompt_file,
            evaluate_results: flag("evaluate_results", default.evaluate_results),
            evaluation_metric: self.metric(&root).unwrap_or(default.evaluation_metric),
            evaluator_model_name: self.filled(&root, "evaluator_model_name"),
            evaluator_api_key: self.secret(&root, "evaluator_api_key"),
            evaluator_base_url: self.filled(&root, "evaluator_base_url"),
            evaluator_temperature: root.number("evaluator_temperature", ..).unwrap_or_default(),
            evaluator_max_retries: retries("evaluator_max_retries", default.evaluator_max_retries),
            evaluator_extra_params: self.map(&root, "evaluator_extra_params"),
            evaluator_include_question: flag(
                "evaluator_include_question",
                default.evaluator_include_question,
            ),
            resource_types: self.texts(&root, "resource_types").unwrap_or_default(),
            resource_init_configs: self.resources(&root),
            sandbox_server_url: self
                .filled(&root, "sandbox_server_url")
                .unwrap_or(default.sandbox_server_url),
            sandbox_token: self.secret(&root, "sandbox_token"),
            sandbox_auto_start,
            sandbox_config_path: self.input(&root, "sandbox_config_path", sandbox_auto_start),
            sandbox_timeout: root
                .number("sandbox_timeout", above_zero(MAX_TIMEOUT_SEC))
                .map_or(default.sandbox_timeout, Duration::from_secs_f64),
            benchmark_name: self.filled(&root, "benchmark_name"),
            number_of_tasks: root
                .integer("number_of_tasks", 1..=u64::MAX)
                .map(|number| usize::try_from(number).unwrap_or(usize::MAX)),
            task_ids: self.texts(&root, "task_ids").filter(|ids| !ids.is_empty()),
            parallel: flag("parallel", default.parallel),
            save_results: flag("save_results", default.save_results),
            save_trajectories: flag("save_trajectories", default.save_trajectories),
            trajectory_only: flag("trajectory_only", default.trajectory_only),
            save_summary: flag("save_summary", default.save_summary),
        };
        config.complete(self.loader.vars);
        for broken in config.broken() {
            if !self.noted.borrow().contains(broken.key) {
                let span = root.value_span(broken.key);
                reader.error_with_hint(span, broken.code, broken.message, broken.hint);
            }
        }
        self.warn(&root, &config);
        Some(config)
    }

    fn warn_of_unknown(&self, entry: &Entry) {
        if KEYS.contains(&entry.key.as_str()) {
            return;
        }
        let reader = self.loader.reader;
        let message = format!("{} is not known here, and has no effect", quoted(&entry.key));
        let warning = Diagnostic::warning(reader.sources, entry.key_span, Code::UnknownKey, message);
        let known: Vec<&str> = KEYS.into_iter().filter(|key| *key != PROMPT_HASH).collect();
        reader.report(warning.hint(match nearest(&entry.key, &known) {
            Some(key) => format!("did you mean `{key}`?"),
            None => "keys that begin with `_` are taken as comments".to_owned(),
        }));
    }

    fn warn(&self, root: &Section<'_>, config: &RolloutConfig) {
        let reader = self.loader.reader;
        let warn = |key: &str, message: &str, hint: &str| {
            let span = root.value_span(key);
            reader.report(Diagnostic::warning(reader.sources, span, Code::Conflict, message).hint(hint));
        };
        if !config.parallel && config.max_workers.get() > 1 {
            let message = "`max_workers` has no effect: questions are asked one after the other";
            warn("max_workers", message, "write `\"parallel\": true`");
        }
        if config.shares_key() {
            let message = "the judge's server gets the key of the model that answers";
            warn("evaluator_base_url", message, "write `evaluator_api_key`");
        }
    }

    /// Expands a text. None if that is not possible, which is noted.
    fn expand(&self, key: &str, written: &str, node: &Node) -> Option<Expanded> {
        if let Ok(expanded) = expand(written, self.loader.vars) {
            let named = std::iter::once(key).chain(expanded.names()).any(names_a_secret);
            if named || is_secret_header(key) || has_password(&expanded.text) {
                self.loader.secrets.borrow_mut().extend(expanded.secrets());
            }
            return Some(expanded);
        }
        self.loader.expand(written, node);
        None
    }

    fn text(&self, root: &Section<'_>, key: &str) -> Option<String> {
        let node = root.node(key)?;
        let expanded = root.string(key).and_then(|written| self.expand(key, written, node));
        if expanded.is_none() {
            self.noted.borrow_mut().insert(key.to_owned());
        }
        expanded.map(|expanded| expanded.text)
    }

    /// A text; an empty one is none.
    fn filled(&self, root: &Section<'_>, key: &str) -> Option<String> {
        self.text(root, key).filter(|text| !text.trim().is_empty())
    }

    fn metric(&self, root: &Section<'_>) -> Option<Metric> {
        let text = self.filled(root, "evaluation_metric")?;
        let found = Metric::ALL.into_iter().find(|metric| metric.as_str() == text);
        if found.is_none() {
            let names = Metric::ALL.map(Metric::as_str);
            let list = names.map(|name| format!("`{name}`")).join(", ");
            let hint = match nearest(&text, &names) {
                Some(name) => format!("did you mean `{name}`? it can be one of {list}"),
                None => format!("it can be one of {list}"),
            };
            let message = format!("`evaluation_metric` cannot be {}", quoted(&text));
            root.invalid_with_hint("evaluation_metric", message, hint);
        }
        found
    }

    fn secret(&self, root: &Section<'_>, key: &str) -> Option<EnvValue> {
        self.filled(root, key).map(|value| EnvValue { value, secret: true })
    }

    /// A list of texts. A number is the text that it was written as.
    fn texts(&self, root: &Section<'_>, key: &str) -> Option<Vec<String>> {
        let mut texts = Vec::new();
        for (index, node) in root.list(key)?.iter().enumerate() {
            match scalar_text(self.loader.reader.sources, node) {
                Some(written) => texts.extend(self.expand(key, &written, node).map(|text| text.text)),
                None => self.loader.reader.wrong_type(node, &format!("{key}.{index}"), "a string"),
            }
        }
        Some(texts)
    }

    fn map(&self, root: &Section<'_>, key: &str) -> Map<String, Json> {
        root.mapping(key).map(|section| self.json(&section)).unwrap_or_default()
    }

    fn resources(&self, root: &Section<'_>) -> IndexMap<String, Map<String, Json>> {
        let Some(kinds) = root.mapping("resource_init_configs") else { return IndexMap::new() };
        let kind = |entry: &Entry| (entry.key.clone(), self.map(&kinds, &entry.key));
        kinds.entries.iter().map(kind).collect()
    }

    /// A mapping as JSON, its texts expanded.
    fn json(&self, section: &Section<'_>) -> Map<String, Json> {
        let mut text = |key: &str, written: &str, node: &Node| {
            self.expand(key, written, node).map_or(Json::Null, |expanded| Json::String(expanded.text))
        };
        let entries = section.entries.iter();
        entries.map(|entry| (entry.key.clone(), entry.node.to_json(&entry.key, &mut text))).collect()
    }

    /// The path of an input: beside the file, else where the command works.
    fn input(&self, root: &Section<'_>, key: &str, needed: bool) -> Option<PathBuf> {
        let path = PathBuf::from(self.filled(root, key)?);
        let beside = self.loader.dir.join(&path);
        let from_file = root.node(key).is_some_and(|node| node.span.source == self.file);
        if from_file && beside.exists() {
            return Some(beside);
        }
        if needed && !path.exists() {
            let hint = match from_file && path.is_relative() {
                true => "the path is relative to this file, else to the working directory",
                false => "the path is relative to the working directory",
            };
            let message = format!("`{key}`: there is no such file");
            self.loader.reader.error_with_hint(root.value_span(key), Code::Unreadable, message, hint);
        }
        Some(path)
    }

    /// What the model is told first, and the file that it was read from.
    fn system_prompt(&self, root: &Section<'_>) -> (String, Option<PathBuf>) {
        let reader = self.loader.reader;
        let written = match root.node("system_prompt").map(|node| &node.value) {
            Some(Value::List(_)) => self.texts(root, "system_prompt").map(|lines| lines.join("\n")),
            _ => self.text(root, "system_prompt"),
        };
        let own = (written.unwrap_or_default(), None);
        let Some(path) = self.input(root, "system_prompt_file", false) else { return own };
        let span = root.value_span("system_prompt_file");
        if !path.exists() {
            let message = "`system_prompt_file`: there is no such file, so `system_prompt` is used";
            reader.report(Diagnostic::warning(reader.sources, span, Code::Unreadable, message));
            return own;
        }
        let text = match read_text(&path) {
            Ok(text) => text,
            Err(message) => {
                reader.error(span, Code::Unreadable, format!("`system_prompt_file`: {message}"));
                return own;
            }
        };
        if root.string(PROMPT_HASH).is_some_and(|expected| expected != sha256(text.as_bytes())) {
            let message = "`system_prompt_file` has changed since this was recorded";
            reader.error(span, Code::InvalidValue, message);
        }
        (text, Some(path))
    }
}
