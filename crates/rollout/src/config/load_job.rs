//! Reads a job file, with everything it names that must be known before a job can start.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    io::Read,
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use super::{
    AfterAgentError, AgentProcesses, DatasetSource, EnvironmentConfig, JobConfig, LogLevel, Override,
    PreservePolicy, RetryConfig, VerifierConfig,
    diagnostic::{Code, Diagnostic, Problems, quoted},
    expand::{ExpandError, Expanded, expand, names_a_secret},
    include::include,
    overrides,
    reader::{Reader, Section, above_zero},
    record,
    tree::{Node, Sources, Span, Value},
    yaml,
};
use crate::config::{Env, EnvValue};
use rollout_core::{name::JobName, redact::Redactor};
use rollout_core::{quantity::Bytes, result::JobMetric};
use rollout_env::EnvironmentKind;

/// The largest job file or script that is read.
pub(super) const MAX_BYTES: u64 = 16 << 20;

/// Growth beyond this is a slip of the pen, and could overflow the clocks.
pub(super) const MAX_MULTIPLIER: f64 = 1e6;

/// A day between two tries.
pub(super) const MAX_DELAY_MS: u64 = 86_400_000;

pub(super) const KEYS: [&str; 15] = [
    "name",
    "jobs_dir",
    "n_attempts",
    "n_concurrent_trials",
    "timeout_multiplier",
    "retry",
    "log_level",
    "eval_log",
    "instruction_path",
    "compat",
    "environment",
    "verifier",
    "metrics",
    "agents",
    "datasets",
];
pub(super) const RETRY_KEYS: [&str; 4] = ["max_attempts", "initial_delay_ms", "max_delay_ms", "multiplier"];
pub(super) const ENVIRONMENT_KEYS: [&str; 11] = [
    "type",
    "force_build",
    "cache_agent_install",
    "preserve_env",
    "preserveEnv",
    "provider_config",
    "override_cpus",
    "override_memory",
    "override_memory_mb",
    "override_storage",
    "override_storage_mb",
];
pub(super) const VERIFIER_KEYS: [&str; 7] = [
    "override_timeout_sec",
    "max_timeout_sec",
    "disable",
    "after_agent_error",
    "ignore_exit_code",
    "agent_processes",
    "env",
];
pub(super) const METRIC_KEYS: [&str; 1] = ["type"];

pub(super) const ENVIRONMENT_TYPES: [(&str, EnvironmentKind); 6] = [
    ("native", EnvironmentKind::Native),
    ("docker", EnvironmentKind::Docker),
    ("kubernetes", EnvironmentKind::Kubernetes),
    ("k8s", EnvironmentKind::Kubernetes),
    ("modal", EnvironmentKind::Modal),
    ("fly", EnvironmentKind::Fly),
];
pub(super) const PRESERVE_POLICIES: [(&str, PreservePolicy); 3] = [
    ("never", PreservePolicy::Never),
    ("always", PreservePolicy::Always),
    ("on_failure", PreservePolicy::OnFailure),
];
pub(super) const LOG_LEVELS: [(&str, LogLevel); 6] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("warning", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];
pub(super) const AFTER_AGENT_ERROR: [(&str, AfterAgentError); 2] =
    [("skip", AfterAgentError::Skip), ("run", AfterAgentError::Run)];
pub(super) const AGENT_PROCESSES: [(&str, AgentProcesses); 2] =
    [("keep", AgentProcesses::Keep), ("kill", AgentProcesses::Kill)];
pub(super) const METRICS: [(&str, JobMetric); 4] =
    [("sum", JobMetric::Sum), ("min", JobMetric::Min), ("max", JobMetric::Max), ("mean", JobMetric::Mean)];
pub(super) const COMPAT: [(&str, Compat); 1] = [("harbor", Compat::Harbor)];

/// Whose rules of grading a job follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compat {
    Harbor,
}

/// A job that can be started.
pub struct LoadedJob {
    /// What the job file says.
    pub config: JobConfig,
    /// The job file.
    pub path: PathBuf,
    /// What config.json holds: the job with its defaults filled in, `${VAR}` as written, literal
    /// secrets masked. [`load_job_record`] reads it again.
    pub record: serde_json::Value,
    /// What may not be as its author meant.
    pub warnings: Vec<Diagnostic>,
    /// `sha256:` and the hash of everything in the record that can change a result.
    pub hash: String,
    /// Values that must not appear in any output.
    pub secrets: Vec<String>,
}

impl std::fmt::Debug for LoadedJob {
    /// Shows what the record shows, and no secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("LoadedJob");
        out.field("path", &self.path).field("hash", &self.hash).field("record", &self.record);
        out.field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

/// Reads and checks a job file, YAML or JSON, and the scripts that it names.
///
/// Variables for `${VAR}` come from `vars`. Relative inputs are found beside the job file.
pub fn load_job(
    path: &Path,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedJob, Problems> {
    let text = read_text(path).map_err(|message| {
        Problems::new(vec![Diagnostic::about_file(path.display().to_string(), Code::Unreadable, message)])
    })?;
    load_job_text(path, &text, overrides, vars)
}

/// Reads and checks a job from text, as if it were the content of the file at `path`.
pub fn load_job_text(
    path: &Path,
    text: &str,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedJob, Problems> {
    load(path, text, overrides, vars, Origin::Author)
}

/// Reads a job from its record, for when the job file at `path` is gone. Scripts and datasets are
/// found beside `path`; a record in which a secret was masked is refused.
pub fn load_job_record(
    path: &Path,
    record: &serde_json::Value,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedJob, Problems> {
    load(path, &format!("{record:#}"), &[], vars, Origin::Record)
}

/// What a job directory's copy of its configuration is called.
pub(super) const COPY: &str = "config.json";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Author,
    Record,
}

fn load(
    path: &Path,
    text: &str,
    overrides: &[Override],
    vars: &dyn Fn(&str) -> Option<String>,
    origin: Origin,
) -> Result<LoadedJob, Problems> {
    let mut sources = Sources::default();
    let source = match origin {
        Origin::Author => sources.add(&path.display().to_string(), text),
        // The lines are those of the copy, which may be all that is left.
        Origin::Record => sources.add(COPY, text),
    };
    let mut tree = yaml::parse(text, source).map_err(|error| {
        let span = error.span.unwrap_or(Span { source, start: 0, end: 0 });
        let format =
            if path.extension().is_some_and(|extension| extension == "json") { "JSON" } else { "YAML" };
        let message = format!("this is not {format}: {}", error.message);
        Problems::new(vec![Diagnostic::error(&sources, span, Code::Syntax, message)])
    })?;
    let dir = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    let mut refused = Vec::new();
    for over in overrides {
        if over.reaches_into_files() {
            // What cannot be included is told below, unless a later setting replaces it.
            let _ = include(&mut tree, &dir, &mut sources);
        }
        if let Err(problem) = overrides::apply(&mut tree, over, &mut sources) {
            refused.push(*problem);
        }
    }
    refused.extend(include(&mut tree, &dir, &mut sources));

    let reader = Reader::new(&sources);
    refused.into_iter().for_each(|problem| reader.report(problem));
    reader.check_duplicates(&tree);
    if origin == Origin::Record {
        reader.check_masks(&tree);
    }
    let loader = Loader { reader: &reader, vars, dir, secrets: RefCell::default() };
    let read = loader.job(&tree);
    let secrets = loader.secrets.into_inner();
    let (found, failed) = reader.finish();
    let Some((config, compat)) = read.filter(|_| !failed) else { return Err(Problems::new(found)) };
    let mut record = record::job(&config, compat, &tree, &sources);
    record::redact(&mut record, &Redactor::new(secrets.iter().map(String::as_str)));
    Ok(LoadedJob {
        hash: record::hash(&record),
        config,
        path: path.to_owned(),
        record,
        warnings: found,
        secrets: secrets.into_iter().collect(),
    })
}

/// The text of a regular file that is not too large; else why not.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot read this file: {error}");
    let file = std::fs::File::open(path).map_err(cannot)?;
    if file.metadata().map_err(cannot)?.is_dir() {
        return Err("this is a directory, not a file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("this file is larger than the {} MiB that are read", MAX_BYTES >> 20));
    }
    String::from_utf8(bytes).map_err(|error| {
        format!("this file is not UTF-8: the byte at offset {} is wrong", error.utf8_error().valid_up_to())
    })
}

/// Gives the containers of interactions what the job has for those of all tasks.
fn override_containers(config: &mut JobConfig) {
    for dataset in &mut config.datasets {
        if let DatasetSource::Interaction(interaction) = &mut dataset.source
            && let Some(container) = &mut interaction.environment
        {
            container.cpus = config.environment.override_cpus.unwrap_or(container.cpus);
            container.memory = config.environment.override_memory.unwrap_or(container.memory);
        }
    }
}

/// What reading a job needs besides its tree.
pub(super) struct Loader<'a> {
    pub(super) reader: &'a Reader<'a>,
    pub(super) vars: &'a dyn Fn(&str) -> Option<String>,
    /// Where relative inputs are found.
    pub(super) dir: PathBuf,
    pub(super) secrets: RefCell<BTreeSet<String>>,
}

impl Loader<'_> {
    fn job(&self, tree: &Node) -> Option<(JobConfig, Option<Compat>)> {
        let root = self.reader.section(tree, "", &KEYS)?;
        let section = |key: &str, keys: &[&str]| root.section(key, keys).unwrap_or_else(|| root.empty(key));
        let compat = root.word("compat", &COMPAT);
        let mut config = JobConfig {
            name: root.string("name").and_then(|name| match JobName::new(name) {
                Ok(name) => Some(name),
                Err(error) => {
                    let message = format!("{} cannot be the name of a job: {error}", quoted(name));
                    self.reader.error(root.value_span("name"), Code::InvalidName, message);
                    None
                }
            }),
            jobs_dir: root.filled_string("jobs_dir").unwrap_or("jobs").into(),
            n_attempts: self.count(&root, "n_attempts", 1),
            n_concurrent_trials: self.count(&root, "n_concurrent_trials", 4),
            timeout_multiplier: root.number("timeout_multiplier", above_zero(MAX_MULTIPLIER)).unwrap_or(1.0),
            log_level: root.word("log_level", &LOG_LEVELS).unwrap_or_default(),
            eval_log: root.bool("eval_log").unwrap_or_default(),
            instruction_path: self.instruction_path(&root),
            metrics: self.metrics(&root),
            agents: self.agents(&root),
            datasets: self.datasets(&root),
            retry: self.retry(&section("retry", &RETRY_KEYS)),
            environment: self.environment(&section("environment", &ENVIRONMENT_KEYS)),
            verifier: self.verifier(&section("verifier", &VERIFIER_KEYS), compat),
        };
        self.refuse_idle_agents(&root, &config);
        override_containers(&mut config);
        Some((config, compat))
    }

    fn count(&self, section: &Section<'_>, key: &str, default: u32) -> NonZeroU32 {
        let count = section.integer(key, 1..=u32::MAX.into()).and_then(|count| u32::try_from(count).ok());
        count.or(Some(default)).and_then(NonZeroU32::new).expect("the range and the defaults start at 1")
    }

    fn instruction_path(&self, root: &Section<'_>) -> String {
        let path = root.filled_string("instruction_path").unwrap_or("/tmp/instruction.md");
        let parts = || path.split('/').skip(1);
        let plain = path.starts_with('/')
            && parts().all(|part| !matches!(part, "" | "." | ".."))
            && !path.contains(char::is_control);
        if !plain {
            let message = format!("{} cannot hold the instruction", quoted(path));
            let hint = "write the absolute path of a file in the environment, such as `/tmp/instruction.md`";
            root.invalid_with_hint("instruction_path", message, hint);
        }
        path.to_owned()
    }

    fn retry(&self, section: &Section<'_>) -> RetryConfig {
        let default = RetryConfig::default();
        let initial = section.integer("initial_delay_ms", 0..=MAX_DELAY_MS);
        let most = section.integer("max_delay_ms", 0..=MAX_DELAY_MS);
        let initial_delay_ms = initial.unwrap_or(default.initial_delay_ms);
        let max_delay_ms = most.unwrap_or(default.max_delay_ms);
        if max_delay_ms < initial_delay_ms {
            let key = if most.is_some() { "max_delay_ms" } else { "initial_delay_ms" };
            let message = format!(
                "`max_delay_ms` ({max_delay_ms}) is less than `initial_delay_ms` ({initial_delay_ms})"
            );
            section.invalid(key, message);
        }
        RetryConfig {
            max_attempts: self.count(section, "max_attempts", default.max_attempts.get()),
            initial_delay_ms,
            max_delay_ms,
            multiplier: section.number("multiplier", 1.0..=MAX_MULTIPLIER).unwrap_or(default.multiplier),
        }
    }

    fn environment(&self, section: &Section<'_>) -> EnvironmentConfig {
        EnvironmentConfig {
            kind: section.word("type", &ENVIRONMENT_TYPES),
            force_build: section.bool("force_build").unwrap_or_default(),
            cache_agent_install: section.bool("cache_agent_install").unwrap_or_default(),
            preserve: self.preserve(section),
            provider_config: self.provider_config(section),
            override_cpus: section.cpus("override_cpus"),
            override_memory: self.amount(section, "override_memory", "override_memory_mb"),
            override_storage: self.amount(section, "override_storage", "override_storage_mb"),
        }
    }

    fn amount(&self, section: &Section<'_>, key: &str, mebibytes_key: &str) -> Option<Bytes> {
        self.exclude(section, key, mebibytes_key);
        section.bytes(key).or(section.mebibytes(mebibytes_key))
    }

    /// Notes when two keys are there that exclude each other.
    pub(super) fn exclude(&self, section: &Section<'_>, one: &str, other: &str) {
        if let (Some(one), Some(other)) = (section.entry(one), section.entry(other)) {
            let message = format!("`{}` and `{}` exclude each other", one.key, other.key);
            let sources = self.reader.sources;
            self.reader.report(
                Diagnostic::error(sources, other.key_span, Code::Conflict, message)
                    .related(sources, one.key_span, "also given here")
                    .hint("keep one of them"),
            );
        }
    }

    fn preserve(&self, section: &Section<'_>) -> PreservePolicy {
        let policy = |key: &str| match section.node(key)?.value {
            Value::Bool(true) => Some(PreservePolicy::Always),
            Value::Bool(false) => Some(PreservePolicy::Never),
            _ => section.word(key, &PRESERVE_POLICIES),
        };
        let (snake, camel) = (policy("preserve_env"), policy("preserveEnv"));
        if let (Some(snake), Some(camel)) = (snake, camel)
            && snake != camel
        {
            self.exclude(section, "preserve_env", "preserveEnv");
        }
        snake.or(camel).unwrap_or_default()
    }

    fn provider_config(&self, section: &Section<'_>) -> serde_json::Map<String, serde_json::Value> {
        let Some(settings) = section.mapping("provider_config") else { return serde_json::Map::new() };
        let mut text = |key: &str, written: &str, node: &Node| {
            let expanded = self.expand(written, node);
            if std::iter::once(key).chain(expanded.names()).any(names_a_secret) {
                self.secrets.borrow_mut().extend(expanded.secrets());
            }
            serde_json::Value::String(expanded.text)
        };
        let json =
            |entry: &super::tree::Entry| (entry.key.clone(), entry.node.to_json(&entry.key, &mut text));
        settings.entries.iter().map(json).collect()
    }

    fn verifier(&self, section: &Section<'_>, compat: Option<Compat>) -> VerifierConfig {
        let harbor = compat == Some(Compat::Harbor);
        let after_agent_error = if harbor { AfterAgentError::Run } else { AfterAgentError::Skip };
        VerifierConfig {
            override_timeout_sec: section.timeout("override_timeout_sec"),
            max_timeout_sec: section.timeout("max_timeout_sec"),
            disable: section.bool("disable").unwrap_or_default(),
            after_agent_error: section
                .word("after_agent_error", &AFTER_AGENT_ERROR)
                .unwrap_or(after_agent_error),
            ignore_exit_code: section.bool("ignore_exit_code").unwrap_or(harbor),
            agent_processes: section.word("agent_processes", &AGENT_PROCESSES).unwrap_or_default(),
            env: self.env(section),
        }
    }

    fn metrics(&self, root: &Section<'_>) -> Vec<JobMetric> {
        let mut metrics = Vec::new();
        for (index, node) in root.list("metrics").unwrap_or_default().iter().enumerate() {
            let Some(section) = self.reader.section(node, &format!("metrics.{index}"), &METRIC_KEYS) else {
                continue;
            };
            match section.word("type", &METRICS) {
                Some(metric) if !metrics.contains(&metric) => metrics.push(metric),
                None if section.node("type").is_none() => {
                    section.missing("type", "write `type: mean`, or `sum`, `min`, `max`");
                }
                _ => {}
            }
        }
        metrics
    }

    /// The `env` of a section, expanded.
    pub(super) fn env(&self, section: &Section<'_>) -> Env {
        let mut env = Env::new();
        for (entry, written) in section.variables() {
            let expanded = self.expand(&written, &entry.node);
            let secret = expanded.is_secret(&entry.key);
            if secret {
                self.secrets.borrow_mut().extend(expanded.secrets());
            }
            env.insert(entry.key.clone(), EnvValue { value: expanded.text, secret });
        }
        env
    }

    /// Expands a text, or notes at its place why that is not possible.
    pub(super) fn expand(&self, written: &str, node: &Node) -> Expanded {
        expand(written, self.vars).unwrap_or_else(|error| {
            let needle = match &error {
                ExpandError::Missing(name) => format!("${{{name}"),
                ExpandError::Form(inner) => format!("${{{inner}"),
                ExpandError::Unclosed => "${".to_owned(),
            };
            let at = self.reader.sources.slice(node.span).find(&needle);
            let span = at.map_or(node.span, |at| {
                let start = node.span.start + at;
                Span {
                    start,
                    end: start + needle.len() + usize::from(error != ExpandError::Unclosed),
                    ..node.span
                }
            });
            self.reader.error_with_hint(span, Code::Variable, error.to_string(), error.hint());
            Expanded { text: String::new(), variables: Vec::new() }
        })
    }
}
