//! Reads the configuration of a benchmark, with the files that it needs before the first question.

use rollout_record::identity::{EXPANDED, PROMPT_HASH};
use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value as Json, json};

use super::{
    AgentConfig, AgentKind, JobConfig, LoadedJob, ModelAgentConfig, RetryConfig, RolloutConfig,
    benchmark::secrets, benchmark_forms::masked, load_job::COPY, tool_files::resolve,
};
use rollout_core::{address::is_loopback, name::JobName, redact::Redactor};
use rollout_model::Limits;
use rollout_settings::{
    Entry, Env, Node, Override, Reader, Section, Settings as _, SourceFiles, Value, Written,
    diagnostic::{Code, Diagnostic, Problems, Severity, nearest, quoted},
    read_text,
    record::{self, leave_out_unhashed, sha256},
    yaml,
};

/// A valid configuration of a benchmark.
#[derive(Clone)]
pub struct LoadedBenchmark {
    /// The settings of the file, completed from the environment.
    pub config: RolloutConfig,
    /// The file; empty for a configuration created in code.
    pub path: PathBuf,
    /// The content of config.json: every setting, `${VAR}` as written, literal secrets masked.
    /// [`load_benchmark_record`] reads it again.
    pub record: Json,
    /// `sha256:` and the hash of everything in the record that can change an answer or its score.
    pub hash: String,
    /// Values that must not appear in any output.
    pub secrets: Vec<String>,
    /// Warnings about likely mistakes.
    pub warnings: Vec<Diagnostic>,
}

impl std::fmt::Debug for LoadedBenchmark {
    /// Prints the record, without secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("LoadedBenchmark");
        out.field("path", &self.path).field("hash", &self.hash).field("record", &self.record);
        out.field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

impl LoadedBenchmark {
    /// Checks a configuration created in code. Missing settings are completed with variables from `vars`.
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
        let record = config.record_without_secrets();
        Ok(Self {
            hash: hash(&record),
            record,
            config,
            path: PathBuf::new(),
            secrets: secrets.into_iter().collect(),
            warnings: Vec::new(),
        })
    }

    /// The benchmark as a job: one agent, which is the model, without datasets.
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
            cache_install: None,
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

/// Reads and checks the configuration of a benchmark: JSON or YAML, depending on its file extension.
///
/// Variables for `${VAR}`, and for a missing key or URL (`OPENAI_API_KEY`, `OPENAI_BASE_URL`), come from `vars`.
/// Relative inputs start at the file or, if they do not exist there, at the working directory; those of `overrides`
/// only at the latter. Results are written relative to the working directory.
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
        return Err(refuse("a configuration must be JSON or YAML".to_owned(), Some(hint)));
    }
    let text = read_text(path).map_err(|message| refuse(message, None))?;
    load_benchmark_text(path, &text, overrides, vars)
}

/// Reads and checks the configuration of a benchmark, for callers that run its questions themselves.
pub fn load_config(path: &Path, vars: &dyn Fn(&str) -> Option<String>) -> Result<RolloutConfig, Problems> {
    load_benchmark(path, &[], vars).map(|loaded| loaded.config)
}

/// Whether a file is the configuration of a benchmark and not a job: it has keys of a benchmark and none that every job
/// has.
pub fn is_benchmark(path: &Path) -> bool {
    let tree = read_text(path)
        .ok()
        .and_then(|text| yaml::parse_at(path, text.trim_start_matches('\u{feff}'), 0).ok());
    let Some(Node { value: Value::Map(entries), .. }) = tree else { return false };
    let has = |keys: &[&str]| entries.iter().any(|entry| keys.contains(&entry.key.as_str()));
    has(&RolloutConfig::keys().iter().map(|key| key.name).collect::<Vec<_>>())
        && !has(&["agents", "datasets"])
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

/// Reads a configuration from its record, if the file at `path` no longer exists. Relative inputs start there. A record
/// with a masked secret is rejected.
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
    let mut sources = SourceFiles::default();
    let shown = path.display().to_string();
    let mut tree = yaml::parse_file(&mut sources, if is_record { COPY } else { &shown }, path, text)?;
    if let Value::Map(entries) = &mut tree.value {
        // Comments, because JSON has none, and the key for editors.
        entries.retain(|entry| !entry.key.starts_with('_') && entry.key != "$schema");
    }
    let refused: Vec<_> =
        overrides.iter().filter_map(|over| over.apply(&mut tree, &mut sources).err()).collect();
    let reader = Reader::new(&sources, path.parent().unwrap_or(Path::new("")), vars);
    refused.into_iter().for_each(|problem| reader.report(*problem));
    reader.check_duplicates(&tree);
    if is_record {
        reader.check_masks(&tree);
    }
    let read = read(&reader, &tree, vars);
    let mut secrets = reader.take_secrets();
    let (found, failed) = reader.finish();
    let Some(config) = read.filter(|_| !failed) else { return Err(Problems::new(found)) };
    secrets.extend(self::secrets(&config));
    let mut record = written(&config, &tree);
    let redactor = Redactor::new(secrets.iter().map(String::as_str));
    record::redact(&mut record, &redactor);
    let hash = hash(&record);
    if record["model_name"] != config.model_name.as_str() {
        // Not part of the hash: the expanded name is also the name of the agent.
        record[EXPANDED] = json!({ "model_name": redactor.text(&config.model_name) });
    }
    Ok(LoadedBenchmark {
        hash,
        record,
        config,
        path: path.to_owned(),
        secrets: secrets.into_iter().collect(),
        warnings: found,
    })
}

/// The default of `max_workers` with `parallel`.
const PARALLEL_WORKERS: NonZeroU32 = NonZeroU32::new(4).expect("it is not 0");

fn read(reader: &Reader<'_>, tree: &Node, vars: &dyn Fn(&str) -> Option<String>) -> Option<RolloutConfig> {
    let root = reader.mapping(tree, "")?;
    warn_of_unknown(&root);
    let mut config = RolloutConfig::read(&root)?;
    read_system_prompt(&root, &mut config);
    if config.parallel && root.node("max_workers").is_none_or(Node::is_null) {
        config.max_workers = PARALLEL_WORKERS;
    }
    config.complete(vars);
    if config.sandbox_auto_start || is_loopback(&config.sandbox_server_url) {
        config.resource_init_configs.values_mut().for_each(|values| resolve(values, &reader.dir));
    }
    for broken in config.broken() {
        // The invalid value was reported.
        if !root.node(broken.key).is_some_and(|node| reader.reported(node.span)) {
            let span = root.value_span(broken.key);
            reader.error_with_hint(span, broken.code, broken.message, broken.hint);
        }
    }
    warn(&root, &config);
    Some(config)
}

fn warn_of_unknown(root: &Section<'_>) {
    let known: Vec<&str> = RolloutConfig::keys().iter().map(|key| key.name).collect();
    let guesses: Vec<&str> = known.iter().copied().filter(|key| *key != PROMPT_HASH).collect();
    let unknown = |entry: &&Entry| !known.contains(&entry.key.as_str());
    for entry in root.entries.iter().filter(unknown) {
        let message = format!("unknown key {}, which is ignored", quoted(&entry.key));
        let warning = Diagnostic::warning(root.reader.sources, entry.key_span, Code::UnknownKey, message);
        root.reader.report(warning.hint(match nearest(&entry.key, &guesses) {
            Some(key) => format!("did you mean `{key}`?"),
            None => "keys that start with `_` are comments".to_owned(),
        }));
    }
}

fn warn(root: &Section<'_>, config: &RolloutConfig) {
    let warn = |key: &str, message: &str, hint: &str| {
        let span = root.value_span(key);
        root.reader
            .report(Diagnostic::warning(root.reader.sources, span, Code::Conflict, message).hint(hint));
    };
    if !config.parallel && config.max_workers.get() > 1 {
        let message = "`max_workers` has no effect without `parallel`";
        warn("max_workers", message, "write `\"parallel\": true`");
    }
    if let Some(Node { value: Value::Map(entries), .. }) = root.node("resource_init_configs") {
        let known: Vec<&str> = config.resource_types.iter().map(String::as_str).collect();
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let key = quoted(&entry.key);
            let message = format!(
                "{key} in `resource_init_configs` has no effect, because it is not in `resource_types`"
            );
            let file = &root.reader.sources.get(entry.key_span.source).name;
            // Without the line, which may contain a secret.
            let mut warning = Diagnostic::about_file(file.as_str(), Code::Conflict, message);
            warning.severity = Severity::Warning;
            root.reader.report(match nearest(&entry.key, &known) {
                Some(kind) => warning.hint(format!("did you mean `{kind}`?")),
                None => warning,
            });
        }
    }
    if config.shares_key() {
        let message = "the server of the judge gets the key of the model that answers";
        warn("evaluator_base_url", message, "set `evaluator_api_key`");
    }
}

/// Reads the system prompt from its file, if there is one.
fn read_system_prompt(root: &Section<'_>, config: &mut RolloutConfig) {
    let Some(path) = config.system_prompt_file.take() else { return };
    let reader = root.reader;
    let span = root.value_span("system_prompt_file");
    if !path.exists() {
        let message = "`system_prompt_file`: the file does not exist, so `system_prompt` is used";
        reader.report(Diagnostic::warning(reader.sources, span, Code::Unreadable, message));
        return;
    }
    match read_text(&path) {
        Ok(text) => {
            if root.string(PROMPT_HASH).is_some_and(|expected| expected != sha256(text.as_bytes())) {
                let message = "`system_prompt_file` has changed since this was recorded";
                reader.error(span, Code::InvalidValue, message);
            }
            (config.system_prompt, config.system_prompt_file) = (text, Some(path));
        }
        Err(message) => reader.error(span, Code::Unreadable, format!("`system_prompt_file`: {message}")),
    }
}

/// The settings as written, with defaults filled in. Values from the environment are not included, so that they are
/// read again.
fn written(config: &RolloutConfig, tree: &Node) -> Json {
    let mut defaults = RolloutConfig::record(&RolloutConfig::default(), Written::NOWHERE);
    let mut record = Map::new();
    for key in RolloutConfig::keys() {
        let value = match tree.get(key.name).filter(|node| !node.is_null()) {
            Some(node) => node.to_json(key.name, &mut |key, text, _| Json::String(masked(key, text))),
            None => defaults.remove(key.name).unwrap_or_default(),
        };
        record.insert(key.name.to_owned(), value);
    }
    if tree.get("max_workers").is_none_or(Node::is_null) {
        record.insert("max_workers".to_owned(), json!(config.max_workers));
    }
    // Older benchmarks are resumed by the hash of a record without it.
    if tree.get("pass_threshold").is_none() {
        record.shift_remove("pass_threshold");
    }
    if config.system_prompt_file.is_some() {
        record.insert(PROMPT_HASH.to_owned(), json!(sha256(config.system_prompt.as_bytes())));
    } else {
        record.shift_remove(PROMPT_HASH);
    }
    Json::Object(record)
}

/// The hash of the settings that affect answers and scores.
fn hash(record: &Json) -> String {
    let mut record = record.clone();
    leave_out_unhashed::<RolloutConfig>(&mut record);
    record::hash(record)
}
