//! task.toml.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::job::{VERIFIER_ENVIRONMENTS, VerifierEnvironment, check_absolute};
use rollout_core::quantity::{Bytes, Cpus};
use rollout_settings::{
    Entry, Form, Key, Node, Reader, Section, Settings as _, SourceFiles, Span, Value,
    diagnostic::{Code, Diagnostic, Problems, Severity, nearest, quoted},
    forms::{
        bytes_or_mebibytes, cpus, env, list, mapping, number_or_text, open_section, text, timeout, word,
    },
    toml_file,
};

/// The maximum size of a task.toml.
const MAX_BYTES: usize = 1 << 20;

/// The default memory and storage of an environment.
pub(super) const MEMORY: Bytes = Bytes(2_000_000_000);
const STORAGE: Bytes = Bytes(10_000_000_000);

/// A validated task.toml.
#[derive(Debug, Clone)]
pub struct TaskConfig {
    /// The version of the format; `1.0` when absent.
    pub version: String,
    /// The origin of the task, as its author describes it.
    pub source: Option<String>,
    /// The author's data under `[metadata]`.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Seconds that test.sh may take.
    pub verifier_timeout_sec: f64,
    /// Variables for test.sh, as written: `${VAR}` is expanded when a job is planned, so that a task can be loaded and
    /// validated even if the variables are not set.
    pub verifier_env: Vec<(String, String)>,
    /// Where test.sh runs, if the task sets it.
    pub verifier_environment: Option<VerifierEnvironment>,
    /// The image that test.sh runs in.
    pub verifier_image: Option<String>,
    /// The hostname of the agent's environment for test.sh.
    pub verifier_agent_hostname: Option<String>,
    /// Files that the agent leaves for tests in a separate environment.
    pub artifacts: Vec<String>,
    /// Seconds that installing the agent may take.
    pub agent_install_timeout_sec: f64,
    /// Seconds that the agent may take.
    pub agent_timeout_sec: f64,
    /// Seconds that building the image may take.
    pub build_timeout_sec: f64,
    /// A prebuilt image, used instead of environment/Dockerfile.
    pub docker_image: Option<String>,
    /// CPUs of the environment.
    pub cpus: Cpus,
    /// Memory of the environment.
    pub memory: Bytes,
    /// Storage of the environment.
    pub storage: Bytes,
    /// Unknown keys, by their dotted path.
    pub unknown: serde_json::Map<String, serde_json::Value>,
}

rollout_settings::settings! {
    /// The configuration of a task.
    pub(super) struct TaskKeys {
        /// The version of the task format.
        ///
        /// `schema_version` is another name for it. Anything but 1 or 1.x gives a warning, and is read as 1.0.
        version: String = number_or_text()
            .alias("schema_version", "Another spelling of `version`.", number_or_text().shown_default("1.0"))
            .read_by(|root, _| version(root))
            .kind("string or number")
            .default("1.0".to_owned()),
        /// The origin of the task.
        source: Option<String> = text().optional(),
        /// Any data of the author.
        metadata: Map<String, Json> = mapping()
            .read_by(|section, key| Some(section.mapping(key)?.entries.iter().map(plain_entry).collect())),
        /// Files and directories that the agent leaves for tests in a separate environment.
        ///
        /// Absolute paths; `/logs/artifacts` is always one of them.
        artifacts: Vec<String> = artifacts(),
        /// How an attempt is graded.
        verifier: TaskVerifier = open_section::<TaskVerifier>(),
        /// Limits of the agent.
        agent: TaskAgent = open_section::<TaskAgent>(),
        /// Where the task is attempted.
        environment: TaskEnvironment = open_section::<TaskEnvironment>(),
    }
}

rollout_settings::settings! {
    /// How an attempt is graded.
    pub(super) struct TaskVerifier {
        /// Seconds that test.sh may take.
        timeout_sec: f64 = timeout().default(600.0),
        /// Where test.sh runs.
        ///
        /// `shared`: in the agent's environment. `separate`: in a fresh environment, with the artifacts copied in. A
        /// job may override it.
        environment_mode: Option<VerifierEnvironment> =
            word(&VERIFIER_ENVIRONMENTS).optional().unset("`separate` where an image is given, else `shared`"),
        /// The image of a separate environment for test.sh.
        image: Option<String> = text().filter(|image| !image.is_empty()).check(|image, section, key| check_image(image, section, key)).optional().unset("the task's"),
        /// The hostname of the agent's environment for test.sh.
        ///
        /// Only for a separate environment; the agent's processes keep running.
        agent_hostname: Option<String> = text().check(|name, section, key| check_hostname(name, section, key)).optional(),
        /// Variables for test.sh. `${VAR}` and `${VAR:-default}` are expanded when a job is planned.
        ///
        /// See [variables](jobs.md#variables-and-secrets).
        env: Vec<(String, String)> = variables(),
    }
}

rollout_settings::settings! {
    /// Limits of the agent.
    pub(super) struct TaskAgent {
        /// Seconds that installing the agent may take.
        install_timeout_sec: f64 = timeout().default(300.0),
        /// Seconds that the agent may take.
        ///
        /// For the oracle, the timeout of the solution.
        timeout_sec: f64 = timeout().default(600.0),
    }
}

rollout_settings::settings! {
    /// Where the task is attempted.
    pub(super) struct TaskEnvironment {
        /// Seconds that building the image may take.
        ///
        /// Waiting time is included.
        build_timeout_sec: f64 = timeout().default(600.0),
        /// A prebuilt image, used instead of environment/Dockerfile.
        docker_image: Option<String> = text().filter(|image| !image.is_empty()).check(|image, section, key| check_image(image, section, key)).optional(),
        /// CPUs of the environment.
        cpus: Cpus = cpus().default(Cpus { millis: 1000 }),
        /// Memory of the environment.
        memory: Bytes = bytes_or_mebibytes("memory_mb", "Memory of the environment, in MiB.", amount).default(MEMORY),
        /// Storage of the environment.
        storage: Bytes = bytes_or_mebibytes("storage_mb", "Storage of the environment, in MiB.", amount).default(STORAGE),
    }
}

/// The JSON Schema of task.toml.
pub fn task_schema() -> Json {
    let mut schema = rollout_settings::titled::<TaskKeys>("Rollout task");
    schema["additionalProperties"] = json!(true);
    schema
}

/// Reads the text of a task.toml. The path is only for messages.
///
/// Unknown keys are kept; those that are known to other tools give warnings.
pub fn load_task_config(path: &Path, text: &str) -> Result<(TaskConfig, Vec<Diagnostic>), Problems> {
    let file = path.display().to_string();
    if text.len() > MAX_BYTES {
        let message = format!("the file has {} bytes; the limit is {MAX_BYTES}", text.len());
        return Err(Problems::new(vec![Diagnostic::about_file(file, Code::Unreadable, message)]));
    }
    let mut sources = SourceFiles::default();
    let source = sources.add(&file, text);
    let tree = toml_file::parse(text, source).map_err(|errors| {
        let error = |error: toml_file::TomlError| {
            let span = error.span.unwrap_or(Span { source, start: 0, end: 0 });
            let message = format!("invalid TOML: {}", error.message);
            let problem = Diagnostic::error(&sources, span, Code::Syntax, message);
            match error.first {
                Some(first) => problem.related(&sources, first, "first written here"),
                None => problem,
            }
        };
        Problems::new(errors.into_iter().map(error).collect())
    })?;
    let reader = Reader::new(&sources, "", &|_| None);
    let config = read(&reader, &tree);
    let (mut found, failed) = reader.finish();
    // Errors come first, because some callers show only the first line.
    found.sort_by_key(|found| found.severity != Severity::Error);
    match config {
        Some(config) if !failed => Ok((config, found)),
        _ => Err(Problems::new(found)),
    }
}

fn read(reader: &Reader<'_>, tree: &Node) -> Option<TaskConfig> {
    let root = reader.mapping(tree, "")?;
    let keys = TaskKeys::read(&root)?;
    let mut unknown = Map::new();
    let (verifier, agent, environment) =
        (root.inside("verifier"), root.inside("agent"), root.inside("environment"));
    note_unknown(&root, &TaskKeys::keys(), &mut unknown);
    note_unknown(&verifier, &TaskVerifier::keys(), &mut unknown);
    note_unknown(&agent, &TaskAgent::keys(), &mut unknown);
    note_unknown(&environment, &TaskEnvironment::keys(), &mut unknown);
    let TaskKeys { version, source, metadata, artifacts, verifier, agent, environment } = keys;
    Some(TaskConfig {
        version,
        source,
        metadata,
        verifier_timeout_sec: verifier.timeout_sec,
        verifier_env: verifier.env,
        verifier_environment: verifier.environment_mode,
        verifier_image: verifier.image,
        verifier_agent_hostname: verifier.agent_hostname,
        artifacts,
        agent_install_timeout_sec: agent.install_timeout_sec,
        agent_timeout_sec: agent.timeout_sec,
        build_timeout_sec: environment.build_timeout_sec,
        docker_image: environment.docker_image,
        cpus: environment.cpus,
        memory: environment.memory,
        storage: environment.storage,
        unknown,
    })
}

/// Keeps unknown keys, and warns about those that may matter.
fn note_unknown(section: &Section<'_>, keys: &[Key], unknown: &mut Map<String, Json>) {
    let keys: Vec<&str> = keys.iter().map(|key| key.name).collect();
    for entry in section.entries.iter().filter(|entry| !keys.contains(&entry.key.as_str())) {
        let path = section.at(&entry.key);
        warn_of_changed_meaning(section.reader, &path, entry.key_span, &entry.node);
        warn_of_typo(section, entry, &keys);
        unknown.insert(path, plain_json(&entry.node));
    }
}

fn version(root: &Section<'_>) -> Option<String> {
    let key = if root.node("version").is_some() { "version" } else { "schema_version" };
    let version = root.text(key)?;
    if version != "1" && !version.starts_with("1.") {
        let message = format!("unknown version {} of the task format", quoted(&version));
        root.reader.report(
            Diagnostic::warning(root.reader.sources, root.value_span(key), Code::Unsupported, message)
                .hint("the task is read as version 1.0"),
        );
    }
    Some(version)
}

/// Variables as they are written: a task can be loaded and validated where they are not set.
fn variables() -> Form<Vec<(String, String)>> {
    let read = |section: &Section<'_>, key: &str| {
        let variables = section.variables(key).into_iter();
        Some(variables.map(|(entry, text)| (entry.key.clone(), text)).collect())
    };
    env().read_into(read, |_, written| written.plain()).or_empty()
}

/// Paths, or the tables in which other tools write them as `source`.
fn artifacts() -> Form<Vec<String>> {
    let item = || json!({ "anyOf": [{ "type": "string" }, { "type": "object", "required": ["source"] }] });
    list(item, |section, key| {
        let Value::List(items) = &section.node(key)?.value else {
            section.invalid_with_hint(
                key,
                "`artifacts` must be a list",
                "write `artifacts = [\"/app/result.txt\"]`",
            );
            return None;
        };
        let mut paths = Vec::new();
        for item in items {
            let source = match &item.value {
                Value::Map(entries) => {
                    entries.iter().find(|entry| entry.key == "source").map(|entry| &entry.node)
                }
                _ => Some(item),
            };
            match source.map(|source| &source.value) {
                Some(Value::String(path)) => {
                    check_absolute(path, section, key);
                    paths.push(path.clone());
                }
                _ => section.invalid(key, "an entry of `artifacts` must be a path or a table with `source`"),
            }
        }
        Some(paths)
    })
}

fn check_image(image: &str, section: &Section<'_>, key: &str) {
    // A leading dash would be an option to a command that is given the image.
    if image.starts_with('-') || image.chars().any(|char| char.is_whitespace() || char.is_control()) {
        let message = format!("{} cannot be the name of an image", quoted(image));
        section.invalid_with_hint(key, message, "write it as `registry/name:tag` or `name@sha256:…`");
    }
}

fn check_hostname(name: &str, section: &Section<'_>, key: &str) {
    let label = |label: &str| {
        !label.is_empty() && label.chars().all(|char| char.is_ascii_alphanumeric() || char == '-')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        let message = format!("{} cannot be the name of a host", quoted(name));
        section.invalid_with_hint(key, message, "use letters, digits, `-` and `.`");
    }
}

/// An amount that can be given in two ways. The spec's own key wins, and a warning tells so.
fn amount(environment: &Section<'_>, key: &str, mebibytes_key: &str) -> Option<Bytes> {
    let (exact, mebibytes) = (environment.bytes(key), environment.mebibytes(mebibytes_key));
    if let (Some(exact), Some(mebibytes)) = (exact, mebibytes)
        && exact != mebibytes
    {
        let message = format!("`{mebibytes_key}` is {mebibytes} and `{key}` is {exact}: `{key}` is used");
        let span = environment.value_span(mebibytes_key);
        environment.reader.report(
            Diagnostic::warning(environment.reader.sources, span, Code::Conflict, message)
                .hint("keep one of them"),
        );
    }
    exact.or(mebibytes)
}

/// The effect of keys that other tools support and a task may depend on.
const CHANGED_MEANING: [(&str, &str); 26] = [
    ("steps", "only the task's own instruction.md is attempted, not its steps"),
    ("multi_step_reward_strategy", "rewards of several steps are not combined"),
    ("environment.gpus", "the environment gets no GPU"),
    ("environment.gpu_types", "the environment gets no GPU"),
    ("environment.tpu", "the environment gets no TPU"),
    ("environment.os", "only Linux environments are supported"),
    ("environment.healthcheck", "the agent starts without waiting for a health check"),
    ("environment.network_mode", "the provider decides about the network"),
    ("environment.allowed_hosts", "the provider decides about the network"),
    ("environment.allow_internet", "the provider decides about the network"),
    ("environment.mcp_servers", "the agent gets no MCP servers"),
    ("environment.skills_dir", "the agent gets no skills"),
    ("environment.env", "these variables are not set in the environment"),
    ("environment.workdir", "the working directory is the image's"),
    ("environment.docker_compose", "only a single container is started"),
    ("environment.extra_docker_compose", "only a single container is started"),
    ("agent.user", "the agent runs as the image's user"),
    ("agent.network_mode", "the provider decides about the network"),
    ("agent.allowed_hosts", "the provider decides about the network"),
    ("verifier.user", "the tests run as the image's user"),
    ("verifier.environment", "the tests run in the agent's environment"),
    ("verifier.collect", "only /logs is collected"),
    ("verifier.network_mode", "the provider decides about the network"),
    ("verifier.allowed_hosts", "the provider decides about the network"),
    ("solution.env", "the solution runs without these variables"),
    ("solution.user", "the solution runs as the image's user"),
];

fn warn_of_changed_meaning(reader: &Reader<'_>, path: &str, key_span: Span, node: &Node) {
    if path == "solution"
        && let Value::Map(entries) = &node.value
    {
        for entry in entries {
            let path = format!("solution.{}", entry.key);
            warn_of_changed_meaning(reader, &path, entry.key_span, &entry.node);
        }
        return;
    }
    let Some((_, effect)) = CHANGED_MEANING.iter().find(|(key, _)| *key == path) else { return };
    if asks_for_nothing(path, &node.value) {
        return;
    }
    reader.report(Diagnostic::warning(
        reader.sources,
        key_span,
        Code::Unsupported,
        format!("`{path}` is not supported: {effect}"),
    ));
}

/// Warns about an unknown key that is similar to a known one: unknown keys are kept and ignored, so a typo would
/// silently give the default.
fn warn_of_typo(section: &Section<'_>, entry: &Entry, keys: &[&str]) {
    let path = section.at(&entry.key);
    let Some(meant) = meant(section, &entry.key, keys) else { return };
    if CHANGED_MEANING.iter().any(|(key, _)| *key == path) {
        return;
    }
    let message = format!("unknown key {}, which is ignored", quoted(&path));
    section.reader.report(
        Diagnostic::warning(section.reader.sources, entry.key_span, Code::UnknownKey, message)
            .hint(format!("did you mean `{meant}`?")),
    );
}

/// The known key that an unknown one is most similar to, if it is not present as well.
fn meant(section: &Section<'_>, key: &str, keys: &[&str]) -> Option<String> {
    // A missing or written-out unit differs by more than a few letters: `timeout`, `timeout_seconds`.
    let stem =
        ["_seconds", "_secs", "_second", "_s"].iter().find_map(|unit| key.strip_suffix(unit)).unwrap_or(key);
    let longer = |known: &&&str| known.strip_prefix(stem).is_some_and(|rest| rest.starts_with('_'));
    let shorter = |known: &&&str| known.strip_suffix(key).is_some_and(|rest| rest.ends_with('_'));
    let own = nearest(key, keys)
        .or_else(|| keys.iter().find(longer).copied())
        .or_else(|| keys.iter().find(shorter).copied())
        .filter(|own| section.node(own).is_none());
    if own.is_some() || !section.path.is_empty() {
        return own.map(str::to_owned);
    }
    let sections: [(&str, Vec<Key>); 3] = [
        ("agent", TaskAgent::keys()),
        ("verifier", TaskVerifier::keys()),
        ("environment", TaskEnvironment::keys()),
    ];
    let of_section = |(name, keys): &(&str, Vec<Key>)| {
        keys.iter().any(|known| known.name == key).then(|| format!("{name}.{key}"))
    };
    sections.iter().find_map(of_section)
}

/// Whether a value is the same as the default behaviour.
fn asks_for_nothing(path: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => *value == path.ends_with("allow_internet"),
        Value::Int(value) => *value == 0,
        Value::Float(value) => *value == 0.0,
        Value::String(text) => {
            let usual = match path.rsplit_once('.').map_or(path, |(_, key)| key) {
                "os" => "linux",
                "network_mode" => "public",
                "environment_mode" => "shared",
                _ => "",
            };
            text.is_empty() || text.eq_ignore_ascii_case(usual)
        }
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
    }
}

fn plain_json(node: &Node) -> Json {
    node.to_json("", &mut |_, text, _| Json::String(text.to_owned()))
}

fn plain_entry(entry: &Entry) -> (String, Json) {
    (entry.key.clone(), plain_json(&entry.node))
}
