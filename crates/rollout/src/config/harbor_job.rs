//! Job files of Harbor: recognised by their keys, reported in a warning, and translated before they are read.
//!
//! A setting without a counterpart is an error if it changes what is run or how it is scored, and a warning otherwise.

use std::path::Path;

use rollout_settings::{Code, Diagnostic, Entry, Node, Settings, SourceFiles, Span, Value};

use super::{
    agent::AgentKeys,
    dataset::DatasetKeys,
    job::{JobConfig, RetryConfig, VerifierConfig},
};
use rollout_env::EnvironmentKeys;

/// Keys that only a job file of Harbor has.
const ONLY_HARBOR: [&str; 14] = [
    "job_name",
    "orchestrator",
    "tasks",
    "quiet",
    "debug",
    "install_only",
    "agent_timeout_multiplier",
    "verifier_timeout_multiplier",
    "agent_setup_timeout_multiplier",
    "environment_build_timeout_multiplier",
    "user_agent",
    "extra_instructions",
    "extra_instruction_paths",
    "source_jobs",
];

/// The same inside the entries of lists and in sections.
const ONLY_HARBOR_INSIDE: [(&str, &[&str]); 4] = [
    ("agents", &["model_name", "import_path", "kwargs"]),
    (
        "datasets",
        &["task_names", "exclude_task_names", "n_tasks", "registry_url", "registry_path", "repo", "ref"],
    ),
    ("environment", &["delete"]),
    ("retry", &["max_retries"]),
];

/// Keys of our own job files that those of Harbor have too, in each part of a job. The job itself has no name.
const SHARED: [(&str, &[&str]); 6] = [
    (
        "",
        &[
            "jobs_dir",
            "n_attempts",
            "n_concurrent_trials",
            "timeout_multiplier",
            "retry",
            "environment",
            "verifier",
            "metrics",
            "agents",
            "datasets",
        ],
    ),
    ("agents", &["name", "env"]),
    ("datasets", &["path", "name", "version", "registry"]),
    ("environment", &["type", "force_build", "override_cpus", "override_memory_mb", "override_storage_mb"]),
    ("verifier", &["override_timeout_sec", "max_timeout_sec", "env", "disable"]),
    ("retry", &[]),
];

/// Translates a job file of Harbor. Other files stay as they are. `dir` is the directory of the file.
pub(super) fn translate(tree: &mut Node, sources: &SourceFiles, dir: &Path) -> Vec<Diagnostic> {
    let Some((key, key_span)) = mark(tree) else { return Vec::new() };
    let message = format!("read as a job file of Harbor, because of `{key}`");
    let read = Diagnostic::warning(sources, key_span, Code::Unsupported, message)
        .hint("remove the key if this is a job file of Rollout; see docs/harbor.md");
    let span = tree.span;
    let Value::Map(entries) = std::mem::replace(&mut tree.value, Value::Null) else { return Vec::new() };
    let mut job = Translation { sources, dir, found: vec![read], out: Vec::new() };
    let (mut agents, mut datasets, mut artifacts) = (None, Vec::new(), Vec::new());
    let mut verifier = None;
    for entry in flattened(entries) {
        let key_span = entry.key_span;
        match entry.key.as_str() {
            _ if entry.node.is_null() => {}
            "job_name" => job.put("name", entry),
            "jobs_dir" | "n_attempts" | "n_concurrent_trials" | "timeout_multiplier" => job.keep(entry),
            "debug" => {
                if is_true(&entry.node) {
                    job.put_text("log_level", "debug", entry.node.span);
                }
            }
            "quiet" => job.warn("quiet", key_span, "`--output json`, or a pipe, has no live display"),
            "plugins" => job.warn("plugins", key_span, "Harbor ignores plugins in job files too"),
            "retry" => job.retry(entry),
            "environment" => job.environment(entry),
            "verifier" => verifier = Some(job.verifier(entry)),
            "metrics" => job.metrics(entry),
            "agents" => agents = Some(job.agents(entry)),
            "datasets" => {
                for item in items(entry.node) {
                    datasets.extend(job.dataset(item));
                }
            }
            "tasks" => {
                for item in items(entry.node) {
                    datasets.extend(job.task(item));
                }
            }
            "artifacts" => {
                for item in items(entry.node) {
                    artifacts.extend(job.artifact(item));
                }
            }
            _ if is_empty(&entry.node) => {}
            key => {
                let key = key.to_owned();
                job.refuse(&key, key_span, "");
            }
        }
    }
    let mut verifier = verifier.unwrap_or_default();
    if !artifacts.is_empty() {
        verifier.push(new_entry("artifacts", Value::List(artifacts), span));
    }
    if !verifier.is_empty() {
        job.out.push(new_entry("verifier", Value::Map(verifier), span));
    }
    // Harbor's default.
    let oracle = || vec![map(vec![text_entry("name", "oracle", span)], span)];
    job.out.push(new_entry("agents", Value::List(agents.unwrap_or_else(oracle)), span));
    job.out.push(new_entry("datasets", Value::List(datasets), span));
    job.put_text("compat", "harbor", span);
    tree.value = Value::Map(job.out);
    job.found
}

/// A key that only a job file of Harbor has, with its position. None if the file is not one of Harbor.
fn mark(tree: &Node) -> Option<(String, Span)> {
    if is_ours(tree) {
        return None;
    }
    let inside = ONLY_HARBOR_INSIDE.iter().flat_map(|(part, keys)| {
        parts(tree, part).into_iter().map(move |node| (format!("{part}."), node, *keys))
    });
    let mut all = [(String::new(), tree, &ONLY_HARBOR[..])].into_iter().chain(inside);
    all.find_map(|(prefix, node, keys)| {
        let entry = entries(node).iter().find(|entry| keys.contains(&entry.key.as_str()))?;
        Some((prefix + &entry.key, entry.key_span))
    })
}

/// Whether a file has a key that only our own job files have.
fn is_ours(tree: &Node) -> bool {
    SHARED.iter().any(|(part, shared)| {
        let keys = match *part {
            "agents" => AgentKeys::keys(),
            "datasets" => DatasetKeys::keys(),
            "environment" => EnvironmentKeys::keys(),
            "verifier" => VerifierConfig::keys(),
            "retry" => RetryConfig::keys(),
            _ => JobConfig::keys(),
        };
        let is_own = |entry: &Entry| {
            keys.iter().any(|key| key.name == entry.key) && !shared.contains(&entry.key.as_str())
        };
        parts(tree, part).into_iter().any(|node| entries(node).iter().any(is_own))
    })
}

/// The job itself, a section of it, or the entries of a list.
fn parts<'a>(tree: &'a Node, part: &str) -> Vec<&'a Node> {
    match tree.get(part) {
        None if part.is_empty() => vec![tree],
        None => Vec::new(),
        Some(node) => node.items().iter().chain([node]).collect(),
    }
}

fn entries(node: &Node) -> &[Entry] {
    if let Value::Map(entries) = &node.value { entries } else { &[] }
}

/// The entries of a job, with those of the old section `orchestrator` in their present places.
fn flattened(entries: Vec<Entry>) -> Vec<Entry> {
    let (old, mut entries): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.key == "orchestrator");
    for entry in old.into_iter().flat_map(|entry| map_entries(entry.node)) {
        let is_known = ["n_concurrent_trials", "quiet", "retry"].contains(&entry.key.as_str());
        if is_known && !entries.iter().any(|other| other.key == entry.key) {
            entries.push(entry);
        }
    }
    entries
}

struct Translation<'a> {
    sources: &'a SourceFiles,
    dir: &'a Path,
    found: Vec<Diagnostic>,
    out: Vec<Entry>,
}

impl Translation<'_> {
    fn keep(&mut self, entry: Entry) {
        self.out.push(entry);
    }

    fn put(&mut self, key: &str, entry: Entry) {
        self.out.push(renamed(key, entry));
    }

    fn put_text(&mut self, key: &str, text: &str, span: Span) {
        self.out.push(text_entry(key, text, span));
    }

    /// Reports a setting that changes the meaning of the job.
    fn refuse(&mut self, key: &str, span: Span, hint: &str) {
        let message = format!("Rollout does not support Harbor's setting `{key}`");
        let problem = Diagnostic::error(self.sources, span, Code::Unsupported, message);
        self.found.push(if hint.is_empty() { problem } else { problem.hint(hint) });
    }

    /// Reports a setting that changes no result.
    fn warn(&mut self, key: &str, span: Span, hint: &str) {
        let message = format!("Rollout does not support Harbor's setting `{key}`, and ignores it");
        let problem = Diagnostic::warning(self.sources, span, Code::Unsupported, message);
        self.found.push(if hint.is_empty() { problem } else { problem.hint(hint) });
    }

    fn retry(&mut self, section: Entry) {
        let (key_span, span) = (section.key_span, section.node.span);
        let mut out = Vec::new();
        for entry in map_entries(section.node) {
            let node = &entry.node;
            match (entry.key.as_str(), number(node)) {
                _ if node.is_null() => {}
                ("max_retries", Some(retries)) => {
                    out.push(new_entry("max_attempts", Value::Int(retries as i128 + 1), node.span));
                }
                ("min_wait_sec", Some(wait)) => out.push(millis("initial_delay_ms", wait, node.span)),
                ("max_wait_sec", Some(wait)) => out.push(millis("max_delay_ms", wait, node.span)),
                _ if is_empty(node) => {}
                (key, _) => {
                    let key = format!("retry.{key}");
                    self.warn(&key, entry.key_span, "only failures of the infrastructure are retried");
                }
            }
        }
        self.out.push(Entry { key: "retry".to_owned(), key_span, node: map(out, span) });
    }

    fn environment(&mut self, section: Entry) {
        let (key_span, span) = (section.key_span, section.node.span);
        let mut out = Vec::new();
        for entry in map_entries(section.node) {
            let (key, at) = (entry.key.clone(), entry.key_span);
            match key.as_str() {
                _ if entry.node.is_null() => {}
                "type" => match text(&entry.node) {
                    Some("docker") | None => out.push(entry),
                    Some(other) => {
                        let name = format!("environment.type: {other}");
                        self.refuse(
                            &name,
                            at,
                            "remove the key, then select an environment with `-e docker` or `-e native`",
                        );
                    }
                },
                "force_build" | "override_cpus" | "override_memory_mb" | "override_storage_mb" => {
                    out.push(entry)
                }
                "delete" => {
                    let policy = if is_true(&entry.node) { "never" } else { "always" };
                    out.push(text_entry("preserve_env", policy, entry.node.span));
                }
                "stream" | "suppress_override_warnings" => {}
                "cpu_enforcement_policy" | "memory_enforcement_policy" => {
                    if text(&entry.node) != Some("auto") {
                        self.warn(&format!("environment.{key}"), at, "");
                    }
                }
                "env" if !is_empty(&entry.node) => {
                    self.refuse(
                        "environment.env",
                        at,
                        "write the variables under `env` of the agents and of `verifier`",
                    );
                }
                _ if is_empty(&entry.node) => {}
                _ => self.refuse(&format!("environment.{key}"), at, ""),
            }
        }
        self.out.push(Entry { key: "environment".to_owned(), key_span, node: map(out, span) });
    }

    fn verifier(&mut self, section: Entry) -> Vec<Entry> {
        let mut out = Vec::new();
        for entry in map_entries(section.node) {
            let (key, at) = (entry.key.clone(), entry.key_span);
            match key.as_str() {
                _ if entry.node.is_null() => {}
                "override_timeout_sec" | "max_timeout_sec" | "env" | "disable" => out.push(entry),
                "include_logs" | "exclude_logs" if !is_empty(&entry.node) => {
                    self.warn(&format!("verifier.{key}"), at, "all logs are kept");
                }
                _ if is_empty(&entry.node) => {}
                _ => self.refuse(&format!("verifier.{key}"), at, "tests/test.sh can run any verifier"),
            }
        }
        out
    }

    fn metrics(&mut self, section: Entry) {
        let (key_span, span) = (section.key_span, section.node.span);
        let mut out = Vec::new();
        for item in items(section.node) {
            let at = item.span;
            match item.get("type").and_then(text) {
                Some("sum" | "min" | "max" | "mean") => {
                    let kind = map_entries(item).into_iter().filter(|entry| entry.key == "type");
                    out.push(map(kind.collect(), at));
                }
                _ => {
                    self.warn("metrics", at, "`rollout export csv` has all rewards, for metrics of your own")
                }
            }
        }
        self.out.push(Entry {
            key: "metrics".to_owned(),
            key_span,
            node: Node { value: Value::List(out), span },
        });
    }

    fn agents(&mut self, section: Entry) -> Vec<Node> {
        let agents = items(section.node);
        let names: Vec<Option<String>> =
            agents.iter().map(|agent| agent.get("name").and_then(text).map(str::to_owned)).collect();
        agents
            .into_iter()
            .map(|agent| {
                let span = agent.span;
                let name = agent.get("name").and_then(text).unwrap_or("oracle").to_owned();
                let model = agent.get("model_name").and_then(text).map(str::to_owned);
                let is_reserved = ["oracle", "nop"].contains(&name.as_str());
                let mut out = Vec::new();
                if is_reserved {
                    out.push(text_entry("name", &name, span));
                } else {
                    // Two agents must not have the same name.
                    let same = names.iter().filter(|other| other.as_deref() == Some(&name)).count();
                    if let (true, Some(model)) = (same > 1, &model) {
                        out.push(text_entry("name", &format!("{name}-{}", model.replace('/', "-")), span));
                    }
                    out.push(text_entry("preset", &name, span));
                }
                for entry in map_entries(agent) {
                    out.extend(self.of_agent(entry, is_reserved));
                }
                map(out, span)
            })
            .collect()
    }

    fn of_agent(&mut self, entry: Entry, is_reserved: bool) -> Option<Entry> {
        let (key, at) = (entry.key.clone(), entry.key_span);
        match key.as_str() {
            "name" => None,
            _ if is_empty(&entry.node) || matches!(entry.node.value, Value::Bool(false)) => None,
            "model_name" => (!is_reserved).then(|| renamed("model", entry)),
            "env" => Some(entry),
            "kwargs" => {
                let mut version = None;
                for entry in map_entries(entry.node) {
                    match entry.key.as_str() {
                        "version" => version = Some(entry),
                        other => self.refuse(&format!("agents.kwargs.{other}"), entry.key_span, PRESET_HINT),
                    }
                }
                version
            }
            "n_concurrent" | "concurrency_group" => {
                self.warn(&format!("agents.{key}"), at, "`n_concurrent_trials` limits all agents together");
                None
            }
            "include_logs" | "exclude_logs" => {
                self.warn(&format!("agents.{key}"), at, "all logs are kept");
                None
            }
            _ => {
                self.refuse(&format!("agents.{key}"), at, PRESET_HINT);
                None
            }
        }
    }

    fn dataset(&mut self, item: Node) -> Option<Node> {
        let span = item.span;
        if let Some(repo) = item.get("repo").filter(|node| !node.is_null()) {
            self.refuse("datasets.repo", repo.span, "write `path: git+URL@revision#directory`");
            return None;
        }
        let mut out = Vec::new();
        for entry in map_entries(item) {
            let (key, at) = (entry.key.clone(), entry.key_span);
            match key.as_str() {
                _ if is_empty(&entry.node) => {}
                "path" => out.push(self.path(entry)),
                "name" if text(&entry.node).is_some_and(|name| name.contains('/')) => {
                    self.refuse(
                        "datasets.name with an organization",
                        at,
                        "Harbor's package registry is not supported",
                    );
                }
                "name" | "version" | "registry" => out.push(entry),
                "registry_url" | "registry_path" => {
                    let inner = if key == "registry_url" { "url" } else { "path" };
                    out.push(new_entry("registry", Value::Map(vec![renamed(inner, entry)]), at));
                }
                "task_names" => out.push(renamed("include", entry)),
                "exclude_task_names" => out.push(renamed("exclude", entry)),
                "n_tasks" => out.push(renamed("limit", entry)),
                "overwrite" | "download_dir" => {
                    if !matches!(entry.node.value, Value::Bool(false)) {
                        self.warn(&format!("datasets.{key}"), at, "`rollout datasets` shows what is cached");
                    }
                }
                _ => self.refuse(&format!("datasets.{key}"), at, ""),
            }
        }
        Some(map(out, span))
    }

    /// A single task is a dataset of its own.
    fn task(&mut self, item: Node) -> Option<Node> {
        let span = item.span;
        let part = |key: &str| item.get(key).and_then(text).map(str::to_owned);
        let (url, commit, path) = (part("git_url"), part("git_commit_id"), part("path"));
        match (url, path) {
            (Some(url), Some(path)) => {
                let revision = commit.map(|commit| format!("@{commit}")).unwrap_or_default();
                let address = format!("git+{url}{revision}#{path}");
                Some(map(vec![text_entry("path", &address, span)], span))
            }
            (None, Some(_)) => {
                let entry = map_entries(item).into_iter().find(|entry| entry.key == "path")?;
                Some(map(vec![self.path(entry)], span))
            }
            _ => {
                self.refuse(
                    "tasks.name",
                    span,
                    "Harbor's package registry is not supported; write the `path` of the task",
                );
                None
            }
        }
    }

    fn artifact(&mut self, item: Node) -> Option<Node> {
        let others =
            map_entries(item.clone()).iter().any(|entry| entry.key != "source" && !is_empty(&entry.node));
        match (text(&item).or_else(|| item.get("source").and_then(text)), others) {
            (Some(source), false) => Some(Node { value: Value::String(source.to_owned()), span: item.span }),
            _ => {
                self.refuse(
                    "artifacts with more than `source`",
                    item.span,
                    "write it as `artifacts` in task.toml",
                );
                None
            }
        }
    }

    /// A path of Harbor is relative to the working directory, and ours to the file. The one that exists is used.
    fn path(&self, entry: Entry) -> Entry {
        let Some(path) = text(&entry.node) else { return entry };
        let from_here = std::path::absolute(path).ok().filter(|absolute| absolute.exists());
        match from_here.as_deref().and_then(Path::to_str) {
            Some(absolute) if !self.dir.join(path).exists() => text_entry("path", absolute, entry.node.span),
            _ => entry,
        }
    }
}

const PRESET_HINT: &str =
    "write an agent of your own with `install` and `execute`, or a preset file; see docs/agents.md";

fn is_true(node: &Node) -> bool {
    matches!(node.value, Value::Bool(true))
}

/// Whether a value is empty.
fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::Null => true,
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => false,
    }
}

fn text(node: &Node) -> Option<&str> {
    if let Value::String(text) = &node.value { Some(text) } else { None }
}

fn number(node: &Node) -> Option<f64> {
    match node.value {
        Value::Int(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => None,
    }
}

fn millis(key: &str, seconds: f64, span: Span) -> Entry {
    new_entry(key, Value::Int((seconds.max(0.0) * 1000.0) as i128), span)
}

fn items(node: Node) -> Vec<Node> {
    if let Value::List(items) = node.value { items } else { Vec::new() }
}

fn map_entries(node: Node) -> Vec<Entry> {
    if let Value::Map(entries) = node.value { entries } else { Vec::new() }
}

fn map(entries: Vec<Entry>, span: Span) -> Node {
    Node { value: Value::Map(entries), span }
}

fn renamed(key: &str, entry: Entry) -> Entry {
    Entry { key: key.to_owned(), ..entry }
}

fn new_entry(key: &str, value: Value, span: Span) -> Entry {
    Entry { key: key.to_owned(), key_span: span, node: Node { value, span } }
}

fn text_entry(key: &str, text: &str, span: Span) -> Entry {
    new_entry(key, Value::String(text.to_owned()), span)
}
