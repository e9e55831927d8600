//! Reads task.toml.

use std::path::Path;

use serde_json::Value as Json;

use super::{
    TaskConfig,
    diagnostic::{Code, Diagnostic, Problems, nearest, quoted},
    reader::{Reader, Section},
    toml_file,
    tree::{Entry, Node, Sources, Span, Value},
};
use rollout_core::quantity::{Bytes, Cpus};

/// The largest task.toml that is read.
const MAX_BYTES: usize = 1 << 20;

pub(super) const KEYS: [&str; 7] =
    ["version", "schema_version", "source", "metadata", "verifier", "agent", "environment"];
pub(super) const VERIFIER_KEYS: [&str; 2] = ["timeout_sec", "env"];
pub(super) const AGENT_KEYS: [&str; 2] = ["install_timeout_sec", "timeout_sec"];
pub(super) const ENVIRONMENT_KEYS: [&str; 7] =
    ["build_timeout_sec", "docker_image", "cpus", "memory", "memory_mb", "storage", "storage_mb"];

pub(super) const VERIFIER_TIMEOUT_SEC: f64 = 600.0;
pub(super) const INSTALL_TIMEOUT_SEC: f64 = 300.0;
pub(super) const AGENT_TIMEOUT_SEC: f64 = 600.0;
pub(super) const BUILD_TIMEOUT_SEC: f64 = 600.0;
pub(super) const MEMORY: Bytes = Bytes(2_000_000_000);
pub(super) const STORAGE: Bytes = Bytes(10_000_000_000);

/// Reads the text of a task.toml, whose path is for messages only.
///
/// Keys without a meaning here are kept; those that mean something to other tools give warnings.
pub fn load_task_config(path: &Path, text: &str) -> Result<(TaskConfig, Vec<Diagnostic>), Problems> {
    let file = path.display().to_string();
    if text.len() > MAX_BYTES {
        let message = format!("the file has {} bytes, more than the {MAX_BYTES} that are read", text.len());
        return Err(Problems::new(vec![Diagnostic::about_file(file, Code::Unreadable, message)]));
    }
    let mut sources = Sources::default();
    let source = sources.add(&file, text);
    let tree = toml_file::parse(text, source).map_err(|errors| {
        let error = |error: toml_file::TomlError| {
            let span = error.span.unwrap_or(Span { source, start: 0, end: 0 });
            let message = format!("this is not TOML: {}", error.message);
            let problem = Diagnostic::error(&sources, span, Code::Syntax, message);
            match error.first {
                Some(first) => problem.related(&sources, first, "first written here"),
                None => problem,
            }
        };
        Problems::new(errors.into_iter().map(error).collect())
    })?;
    let reader = Reader::new(&sources);
    let config = read(&reader, &tree);
    let (found, failed) = reader.finish();
    match config {
        Some(config) if !failed => Ok((config, found)),
        _ => Err(Problems::new(found)),
    }
}

fn read(reader: &Reader<'_>, tree: &Node) -> Option<TaskConfig> {
    let root = reader.mapping(tree, "")?;
    let section = |key: &str| root.mapping(key).unwrap_or_else(|| root.empty(key));
    let (verifier, agent, environment) = (section("verifier"), section("agent"), section("environment"));

    let mut unknown = serde_json::Map::new();
    let known: [(&Section<'_>, &[&str]); 4] = [
        (&root, &KEYS),
        (&verifier, &VERIFIER_KEYS),
        (&agent, &AGENT_KEYS),
        (&environment, &ENVIRONMENT_KEYS),
    ];
    for (section, keys) in known {
        for entry in section.entries.iter().filter(|entry| !keys.contains(&entry.key.as_str())) {
            let path = section.at(&entry.key);
            warn_of_changed_meaning(reader, &path, entry.key_span, &entry.node);
            warn_of_slip(section, entry, keys);
            unknown.insert(path, plain_json(&entry.node));
        }
    }

    let metadata = section("metadata").entries.iter();
    Some(TaskConfig {
        version: version(&root),
        source: root.string("source").map(str::to_owned),
        metadata: metadata.map(|entry| (entry.key.clone(), plain_json(&entry.node))).collect(),
        verifier_timeout_sec: verifier.timeout("timeout_sec").unwrap_or(VERIFIER_TIMEOUT_SEC),
        verifier_env: verifier
            .variables()
            .into_iter()
            .map(|(entry, text)| (entry.key.clone(), text))
            .collect(),
        agent_install_timeout_sec: agent.timeout("install_timeout_sec").unwrap_or(INSTALL_TIMEOUT_SEC),
        agent_timeout_sec: agent.timeout("timeout_sec").unwrap_or(AGENT_TIMEOUT_SEC),
        build_timeout_sec: environment.timeout("build_timeout_sec").unwrap_or(BUILD_TIMEOUT_SEC),
        docker_image: docker_image(&environment),
        cpus: environment.cpus("cpus").unwrap_or(Cpus { millis: 1000 }),
        memory: amount(&environment, "memory", "memory_mb").unwrap_or(MEMORY),
        storage: amount(&environment, "storage", "storage_mb").unwrap_or(STORAGE),
        unknown,
    })
}

fn version(root: &Section<'_>) -> String {
    let key = if root.node("version").is_some() { "version" } else { "schema_version" };
    let Some(version) = root.text(key) else { return "1.0".to_owned() };
    if version != "1" && !version.starts_with("1.") {
        let message = format!("version {} of the task format is not known here", quoted(&version));
        root.reader.report(
            Diagnostic::warning(root.reader.sources, root.value_span(key), Code::Unsupported, message)
                .hint("the task is read as version 1.0"),
        );
    }
    version
}

fn docker_image(environment: &Section<'_>) -> Option<String> {
    let image = environment.string("docker_image")?;
    if image.is_empty() {
        return None;
    }
    // A leading dash would be an option to a command that is given the image.
    if image.starts_with('-') || image.chars().any(|char| char.is_whitespace() || char.is_control()) {
        let message = format!("{} cannot be the name of an image", quoted(image));
        environment.invalid_with_hint(
            "docker_image",
            message,
            "write it as `registry/name:tag` or `name@sha256:…`",
        );
        return None;
    }
    Some(image.to_owned())
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

/// What other tools do with a key, for those keys that a task may depend on.
const CHANGED_MEANING: [(&str, &str); 28] = [
    ("steps", "its steps are not attempted, only the task's own instruction.md"),
    ("multi_step_reward_strategy", "rewards of several steps are not combined"),
    ("artifacts", "only /logs is collected"),
    ("environment.gpus", "no GPU is given to the environment"),
    ("environment.gpu_types", "no GPU is given to the environment"),
    ("environment.tpu", "no TPU is given to the environment"),
    ("environment.os", "only Linux environments exist"),
    ("environment.healthcheck", "the agent starts without waiting for a health check"),
    ("environment.network_mode", "the network is the provider's, whatever the task asks for"),
    ("environment.allowed_hosts", "the network is the provider's, whatever the task asks for"),
    ("environment.allow_internet", "the network is the provider's, whatever the task asks for"),
    ("environment.mcp_servers", "no MCP server is offered to the agent"),
    ("environment.skills_dir", "no skills are offered to the agent"),
    ("environment.env", "these variables are not set in the environment"),
    ("environment.workdir", "the working directory is the image's"),
    ("environment.docker_compose", "only a single container is started"),
    ("environment.extra_docker_compose", "only a single container is started"),
    ("agent.user", "the agent runs as the image's user"),
    ("agent.network_mode", "the network is the provider's, whatever the task asks for"),
    ("agent.allowed_hosts", "the network is the provider's, whatever the task asks for"),
    ("verifier.user", "the tests run as the image's user"),
    ("verifier.environment_mode", "the tests run where the agent worked"),
    ("verifier.environment", "the tests run where the agent worked"),
    ("verifier.collect", "only /logs is collected"),
    ("verifier.network_mode", "the network is the provider's, whatever the task asks for"),
    ("verifier.allowed_hosts", "the network is the provider's, whatever the task asks for"),
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

/// Warns of an unknown key that is almost a known one: unknown keys are kept and ignored, so a slip of the pen
/// would silently give the default.
fn warn_of_slip(section: &Section<'_>, entry: &Entry, keys: &[&str]) {
    let path = section.at(&entry.key);
    let Some(meant) = nearest(&entry.key, keys).filter(|meant| section.node(meant).is_none()) else { return };
    if CHANGED_MEANING.iter().any(|(key, _)| *key == path) {
        return;
    }
    let message = format!("unknown key {}, which is ignored", quoted(&path));
    section.reader.report(
        Diagnostic::warning(section.reader.sources, entry.key_span, Code::UnknownKey, message)
            .hint(format!("did you mean `{meant}`?")),
    );
}

/// Whether a value says what is the case anyway.
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
