//! The job as config.json keeps it, and its hash.

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use super::{
    AfterAgentError, AgentConfig, AgentKind, AgentProcesses, DatasetConfig, DatasetSource, JobConfig,
    expand::recorded,
    load_job::{Compat, LOG_LEVELS, PRESERVE_POLICIES},
    reader::scalar_text,
    record_model,
    tree::{Node, Sources, Value},
};
use rollout_core::redact::Redactor;

/// What can differ between two runs of the same work.
const NOT_HASHED: [&str; 5] = ["name", "jobs_dir", "n_concurrent_trials", "log_level", "eval_log"];

/// The job with its defaults filled in, free of secrets. The tree is what it was read from.
pub(super) fn job(config: &JobConfig, compat: Option<Compat>, tree: &Node, sources: &Sources) -> Json {
    let section = |key: &str| tree.get(key);
    let environment = &config.environment;
    let verifier = &config.verifier;
    let agents = config.agents.iter().zip(items(section("agents")));
    let datasets = config.datasets.iter().zip(items(section("datasets")));
    json!({
        "name": config.name,
        "jobs_dir": config.jobs_dir,
        "n_attempts": config.n_attempts,
        "n_concurrent_trials": config.n_concurrent_trials,
        "timeout_multiplier": config.timeout_multiplier,
        "retry": {
            "max_attempts": config.retry.max_attempts,
            "initial_delay_ms": config.retry.initial_delay_ms,
            "max_delay_ms": config.retry.max_delay_ms,
            "multiplier": config.retry.multiplier,
        },
        "log_level": word(&LOG_LEVELS, config.log_level),
        "eval_log": config.eval_log,
        "instruction_path": config.instruction_path,
        "compat": compat.map(|Compat::Harbor| "harbor"),
        "environment": {
            "type": environment.kind.map(rollout_env::EnvironmentKind::as_str),
            "force_build": environment.force_build,
            "cache_agent_install": environment.cache_agent_install,
            "preserve_env": word(&PRESERVE_POLICIES, environment.preserve),
            "provider_config": provider_config(section("environment")),
            "override_cpus": environment.override_cpus.map(|amount| amount.to_string()),
            "override_memory": environment.override_memory.map(|amount| amount.to_string()),
            "override_storage": environment.override_storage.map(|amount| amount.to_string()),
        },
        "verifier": {
            "override_timeout_sec": verifier.override_timeout_sec,
            "max_timeout_sec": verifier.max_timeout_sec,
            "disable": verifier.disable,
            "after_agent_error": match verifier.after_agent_error {
                AfterAgentError::Skip => "skip",
                AfterAgentError::Run => "run",
            },
            "ignore_exit_code": verifier.ignore_exit_code,
            "agent_processes": match verifier.agent_processes {
                AgentProcesses::Keep => "keep",
                AgentProcesses::Kill => "kill",
            },
            "env": env(section("verifier"), sources),
        },
        "metrics": config.metrics.iter().map(|metric| json!({ "type": metric })).collect::<Vec<_>>(),
        "agents": agents.map(|(config, node)| agent(config, node, sources)).collect::<Vec<_>>(),
        "datasets": datasets.map(|(config, node)| dataset(config, node, sources)).collect::<Vec<_>>(),
    })
}

pub(super) fn items(node: Option<&Node>) -> &[Node] {
    node.map(Node::items).unwrap_or_default()
}

/// The first word for a value.
pub(super) fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> Option<&'static str> {
    words.iter().find(|(_, other)| *other == value).map(|(word, _)| *word)
}

fn provider_config(environment: Option<&Node>) -> Json {
    match environment.and_then(|node| node.get("provider_config")).filter(|node| !node.is_null()) {
        Some(settings) => settings.to_json("", &mut |key, text, _| Json::String(recorded(key, text))),
        None => json!({}),
    }
}

pub(super) fn env(section: Option<&Node>, sources: &Sources) -> Json {
    let Some(Node { value: Value::Map(entries), .. }) = section.and_then(|node| node.get("env")) else {
        return json!({});
    };
    let entry = |entry: &super::tree::Entry| {
        let written = scalar_text(sources, &entry.node).unwrap_or_default();
        (entry.key.clone(), Json::String(recorded(&entry.key, &written)))
    };
    Json::Object(entries.iter().map(entry).collect())
}

fn agent(config: &AgentConfig, node: &Node, sources: &Sources) -> Json {
    let mut agent = Map::new();
    agent.insert("name".to_owned(), json!(config.name));
    agent.insert("description".to_owned(), json!(config.description));
    if let AgentKind::Script { install, execute } = &config.kind {
        for (key, script) in [("install", install.as_ref()), ("execute", Some(execute))] {
            let file = node.get(&format!("{key}_file")).filter(|node| !node.is_null());
            if let (Some(Value::String(path)), Some(script)) = (file.map(|node| &node.value), script) {
                agent.insert(format!("{key}_file"), json!(path));
                agent.insert(format!("{key}_sha256"), json!(sha256(script.as_bytes())));
            } else {
                agent.insert(key.to_owned(), json!(script));
            }
        }
    }
    if let AgentKind::Model(model) = &config.kind {
        record_model::model_agent(&mut agent, model, node);
    }
    agent.insert("env".to_owned(), env(Some(node), sources));
    Json::Object(agent)
}

fn dataset(config: &DatasetConfig, node: &Node, sources: &Sources) -> Json {
    let string =
        |node: Option<&Node>, key: &str| match node.and_then(|node| node.get(key)).map(|node| &node.value) {
            Some(Value::String(text)) => Some(recorded(key, text)),
            _ => None,
        };
    match &config.source {
        DatasetSource::Path(_) => json!({ "path": string(Some(node), "path"), "name": config.name }),
        DatasetSource::Interaction(interaction) => {
            let written =
                node.get("interaction").map(|node| record_model::interaction(interaction, node, sources));
            json!({ "interaction": written, "name": config.name })
        }
        DatasetSource::Registry { dataset, version, .. } => {
            let registry = node.get("registry");
            let key =
                if registry.is_some_and(|registry| registry.get("path").is_some()) { "path" } else { "url" };
            json!({
                "registry": { key: string(registry, key) },
                "name": dataset,
                "version": version,
                "rename": string(Some(node), "rename"),
            })
        }
    }
}

/// Masks secrets wherever they stand: an author may have written one into a script as well.
pub(super) fn redact(record: &mut Json, redactor: &Redactor) {
    match record {
        Json::String(text) => {
            if let Cow::Owned(clean) = redactor.text(text) {
                *text = clean;
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| redact(item, redactor)),
        Json::Object(entries) => entries.values_mut().for_each(|item| redact(item, redactor)),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// The hash of what a record says about results, the same whatever the order of its keys.
pub(super) fn hash(record: &Json) -> String {
    let mut record = record.clone();
    if let Json::Object(job) = &mut record {
        job.retain(|key, _| !NOT_HASHED.contains(&key.as_str()));
    }
    for agent in record["agents"].as_array_mut().into_iter().flatten() {
        agent.get_mut("model").into_iter().for_each(rollout_record::identity::strip_model);
    }
    for dataset in record["datasets"].as_array_mut().into_iter().flatten() {
        let rubric = dataset.pointer_mut("/interaction/rubric").and_then(Json::as_array_mut);
        for entry in rubric.into_iter().flatten() {
            entry.pointer_mut("/judge/model").into_iter().for_each(rollout_record::identity::strip_model);
        }
    }
    record.sort_all_objects();
    sha256(record.to_string().as_bytes())
}

/// `sha256:` and the hash of these bytes in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// `sha256:` and a hash in hexadecimal.
pub(super) fn hexadecimal(hash: &[u8]) -> String {
    format!("sha256:{}", rollout_core::text::hex(hash))
}
