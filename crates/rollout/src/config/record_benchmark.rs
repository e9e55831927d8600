//! A benchmark as config.json keeps it, and its hash.

use rollout_record::identity::PROMPT_HASH;
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value as Json, json};

use super::{
    RolloutConfig,
    expand::recorded,
    load_benchmark::{KEYS, secrets},
    load_model::is_secret_header,
    record::{redact, sha256},
    tree::Node,
};
use rollout_core::redact::Redactor;

/// Where things are reached and how fast they are worked through: what gives no other answers.
const NOT_HASHED: [&str; 14] = [
    "output_dir",
    "api_key",
    "base_url",
    "max_retries",
    "max_workers",
    "parallel",
    "evaluator_api_key",
    "evaluator_base_url",
    "evaluator_max_retries",
    "sandbox_server_url",
    "sandbox_token",
    "sandbox_auto_start",
    "sandbox_config_path",
    "save_summary",
];

/// All settings of a configuration that was made in code, secrets masked wherever they stand.
pub(super) fn clean(config: &RolloutConfig) -> Json {
    let mut record = values(config);
    redact(&mut record, &Redactor::new(secrets(config).iter().map(String::as_str)));
    record
}

fn values(config: &RolloutConfig) -> Json {
    let key = |key: &Option<super::EnvValue>| key.as_ref().map(|key| recorded("key", &key.value));
    let masked = |values: &Map<String, Json>| {
        let mut values = Json::Object(values.clone());
        mask("", &mut values);
        values
    };
    let init = config.resource_init_configs.iter().map(|(kind, values)| (kind.clone(), masked(values)));
    // A path need not be text, and a record is.
    let path = |path: &Option<PathBuf>| path.as_deref().map(Path::to_string_lossy).map(Cow::into_owned);
    json!({
        "data_path": path(&config.data_path),
        "output_dir": path(&config.output_dir),
        "model_name": config.model_name,
        "api_key": key(&config.api_key),
        "base_url": recorded("", &config.base_url),
        "max_turns": config.max_turns,
        "max_retries": config.max_retries,
        "max_workers": config.max_workers,
        "available_tools": config.available_tools,
        "system_prompt": config.system_prompt,
        "system_prompt_file": path(&config.system_prompt_file),
        "evaluate_results": config.evaluate_results,
        "evaluation_metric": config.evaluation_metric.as_str(),
        "evaluator_model_name": config.evaluator_model_name,
        "evaluator_api_key": key(&config.evaluator_api_key),
        "evaluator_base_url": config.evaluator_base_url.as_ref().map(|url| recorded("", url)),
        "evaluator_temperature": config.evaluator_temperature,
        "evaluator_max_retries": config.evaluator_max_retries,
        "evaluator_extra_params": masked(&config.evaluator_extra_params),
        "evaluator_include_question": config.evaluator_include_question,
        "resource_types": config.resource_types,
        "resource_init_configs": init.collect::<Map<_, _>>(),
        "sandbox_server_url": recorded("", &config.sandbox_server_url),
        "sandbox_token": key(&config.sandbox_token),
        "sandbox_auto_start": config.sandbox_auto_start,
        "sandbox_config_path": path(&config.sandbox_config_path),
        "sandbox_timeout": config.sandbox_timeout.as_secs_f64(),
        "benchmark_name": config.benchmark_name,
        "number_of_tasks": config.number_of_tasks,
        "task_ids": config.task_ids,
        "parallel": config.parallel,
        "save_results": config.save_results,
        "save_trajectories": config.save_trajectories,
        "trajectory_only": config.trajectory_only,
        "save_summary": config.save_summary,
    })
}

/// The settings as they were written, defaults filled in. What came from the environment is not in it, so that it comes
/// from there again.
pub(super) fn written(config: &RolloutConfig, tree: &Node) -> Json {
    let mut defaults = values(&RolloutConfig::default());
    let mut record = Map::new();
    for key in KEYS {
        let value = match tree.get(key).filter(|node| !node.is_null()) {
            Some(node) => node.to_json(key, &mut |key, text, _| Json::String(secret(key, text))),
            None => defaults[key].take(),
        };
        record.insert(key.to_owned(), value);
    }
    if config.system_prompt_file.is_some() {
        record.insert(PROMPT_HASH.to_owned(), json!(sha256(config.system_prompt.as_bytes())));
    } else {
        record.shift_remove(PROMPT_HASH);
    }
    Json::Object(record)
}

/// The hash of what a record says about answers and scores.
pub(super) fn hash(record: &Json) -> String {
    let mut record = record.clone();
    if let Json::Object(settings) = &mut record {
        settings.retain(|key, _| !NOT_HASHED.contains(&key.as_str()));
    }
    record.sort_all_objects();
    sha256(record.to_string().as_bytes())
}

/// A text as a record may keep it.
fn secret(key: &str, text: &str) -> String {
    recorded(if is_secret_header(key) { "secret" } else { key }, text)
}

fn mask(key: &str, value: &mut Json) {
    match value {
        Json::String(text) => *text = secret(key, text),
        Json::Array(items) => items.iter_mut().for_each(|item| mask(key, item)),
        Json::Object(entries) => entries.iter_mut().for_each(|(key, value)| mask(key, value)),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
