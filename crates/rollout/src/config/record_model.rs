//! Models and interactions as config.json keeps them.

use serde_json::{Map, Value as Json, json};

use super::{
    ExamplesConfig, InteractionConfig, ModelAgentConfig, ModelConfig,
    expand::recorded,
    load_interaction::KINDS,
    load_model::{DIALECTS, is_secret_header},
    record::{env, items, word},
    tree::{Node, Sources, Value},
};
use rollout_model::Limits;

/// Adds what makes an agent a model.
pub(super) fn model_agent(agent: &mut Map<String, Json>, config: &ModelAgentConfig, node: &Node) {
    agent.insert("model".to_owned(), model(&config.model, node.get("model")));
    agent.insert("system_prompt".to_owned(), json!(config.system_prompt));
    agent.insert("limits".to_owned(), limits(&config.limits));
}

fn model(config: &ModelConfig, node: Option<&Node>) -> Json {
    let written = |key: &str| node.and_then(|node| node.get(key)).filter(|node| !node.is_null());
    let text = |key: &str| written(key).map(|node| plain(node, key));
    json!({
        "name": config.name,
        "base_url": text("base_url"),
        "api_key": text("api_key"),
        "dialect": word(&DIALECTS, config.dialect),
        "sampling": text("sampling").unwrap_or_else(|| json!({})),
        "extra_body": text("extra_body").unwrap_or_else(|| json!({})),
        "headers": headers(written("headers")),
        "stream": config.stream,
        "token_ids": config.token_ids,
        "max_seq_len": config.max_seq_len,
        "timeout_sec": config.timeout.as_secs_f64(),
        "connect_timeout_sec": config.connect_timeout.as_secs_f64(),
        "max_retries": config.max_retries,
        "rate_limit": {
            "requests_per_minute": config.rate_limit.requests_per_minute,
            "tokens_per_minute": config.rate_limit.tokens_per_minute,
        },
        "prices": config.price,
    })
}

fn limits(limits: &Limits) -> Json {
    json!({
        "max_turns": limits.max_turns,
        "max_completion_tokens": limits.max_completion_tokens,
        "max_total_tokens": limits.max_total_tokens,
        "max_cost": limits.max_cost,
        "timeout_sec": limits.timeout.map(|timeout| timeout.as_secs_f64()),
    })
}

/// The value as it was written, secrets masked.
fn plain(node: &Node, key: &str) -> Json {
    node.to_json(key, &mut |key, text, _| Json::String(recorded(key, text)))
}

fn headers(node: Option<&Node>) -> Json {
    let Some(Node { value: Value::Map(entries), .. }) = node else { return json!({}) };
    let header = |entry: &super::tree::Entry| {
        let value = match &entry.node.value {
            Value::String(text) => header_value(&entry.key, text),
            _ => String::new(),
        };
        (entry.key.clone(), Json::String(value))
    };
    Json::Object(entries.iter().map(header).collect())
}

/// The value of a header, its scheme readable: `Bearer ${TOKEN}` can be used again.
fn header_value(name: &str, written: &str) -> String {
    let secret = |text: &str| recorded(if is_secret_header(name) { "secret" } else { name }, text);
    match written.split_once(' ') {
        Some((scheme, rest)) if scheme.chars().all(|char| char.is_ascii_alphabetic()) => {
            format!("{scheme} {}", secret(rest))
        }
        _ => secret(written),
    }
}

/// An interaction with its file's content in it, so that the record says all that it depends on.
pub(super) fn interaction(config: &InteractionConfig, node: &Node, sources: &Sources) -> Json {
    let written = |key: &str| node.get(key).filter(|node| !node.is_null());
    let text = |key: &str| written(key).map(|node| plain(node, key));
    let rubric = items(node.get("rubric")).iter().zip(&config.rubric);
    json!({
        "directory": text("directory"),
        "dataset": text("dataset"),
        "dataset_sha256": match &config.dataset {
            ExamplesConfig::File { sha256, .. } => Some(sha256),
            ExamplesConfig::Inline(_) => None,
        },
        "num_examples": config.num_examples,
        "shuffle": config.shuffle,
        "shuffle_seed": config.shuffle_seed,
        "system_prompt": config.system_prompt,
        "few_shot": text("few_shot").unwrap_or_else(|| json!([])),
        "type": word(&KINDS, config.kind),
        "tools": items(node.get("tools")).iter().map(|tool| tool_record(tool, sources)).collect::<Vec<_>>(),
        "environment": config.environment.as_ref().map(|environment| {
            let image = |key: &str| written("environment").and_then(|node| node.get(key)).map(|node| plain(node, key));
            json!({
                "docker_image": image("docker_image"),
                "path": image("path"),
                "cpus": environment.cpus.to_string(),
                "memory": environment.memory.to_string(),
            })
        }),
        "rubric": rubric.map(|(node, entry)| rubric_record(node, entry)).collect::<Vec<_>>(),
        "parser": text("parser"),
        "limits": limits(&config.limits),
        "state_columns": config.state_columns,
        "independent_scoring": config.independent_scoring,
        "pass_threshold": config.pass_threshold,
    })
}

fn tool_record(node: &Node, sources: &Sources) -> Json {
    let mut tool = plain(node, "");
    if let Some(mcp) = node.get("mcp") {
        if tool["mcp"].get("env").is_some() {
            tool["mcp"]["env"] = env(Some(mcp), sources);
        }
        if tool["mcp"].get("headers").is_some() {
            tool["mcp"]["headers"] = headers(mcp.get("headers"));
        }
    }
    tool
}

fn rubric_record(node: &Node, entry: &super::RubricEntry) -> Json {
    let mut record = plain(node, "");
    record["name"] = json!(entry.name);
    record["weight"] = json!(entry.weight);
    if let super::ScoreConfig::Judge { model: judge, .. } = &entry.score {
        record["judge"]["model"] = model(judge, node.get("judge").and_then(|judge| judge.get("model")));
    }
    record
}
