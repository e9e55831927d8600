//! The identity of an agent, which is the same on every machine. Ids that combine results of several machines use it.

use std::path::Path;

use serde_json::{Map, Value as Json};

/// The key of the hash of the system prompt in a benchmark's record.
pub const PROMPT_HASH: &str = "system_prompt_sha256";

/// The key of the expanded `${VAR}` values in a benchmark's record, if they identify the results. It starts with `_`
/// like comments, so that it is not read as a setting.
pub const EXPANDED: &str = "_expanded";

/// Settings of the connection to a model. A server's new address or a renewed key does not change results.
const NOT_HASHED: [&str; 7] =
    ["base_url", "api_key", "headers", "timeout_sec", "connect_timeout_sec", "max_retries", "rate_limit"];

/// Settings of a benchmark that identify the model and how it answers. The other settings are about questions, scoring
/// and paths.
const OF_A_BENCHMARK: [&str; 7] = [
    "model_name",
    "max_turns",
    "available_tools",
    "system_prompt",
    PROMPT_HASH,
    "resource_types",
    "resource_init_configs",
];

/// Removes settings from a recorded model that cannot change a result.
pub fn strip_model(model: &mut Json) {
    if let Json::Object(model) = model {
        model.retain(|key, _| !NOT_HASHED.contains(&key.as_str()));
    }
}

/// Returns the agent of this name from the record of a job or a benchmark (the content of `config.json`), without
/// anything that can differ between two machines that run the same agent. `${VAR}` is expanded only in the name of a
/// model. Scripts in files are represented by their hashes, not by their paths. The connection and the
/// prices of a model and descriptive texts are omitted.
///
/// Settings that are off or unset are omitted, so a version with more settings gives the same identity. Free-form
/// values (`sampling`, `extra_body`, `env`, resources) are unchanged.
///
/// An agent without a record has only its name.
pub fn agent_identity(record: &Json, agent: &str) -> Map<String, Json> {
    if record.get("model_name").is_some_and(Json::is_string) {
        return of_benchmark(record);
    }
    let mut entries = record["agents"].as_array().into_iter().flatten().filter_map(Json::as_object);
    let Some(mut config) = entries.find(|entry| entry.get("name").is_some_and(|name| name == agent)).cloned()
    else {
        // Rollouts that a program runs through the library have no job file, but record their model.
        let model = record.get("model").filter(|model| model.is_string()).cloned();
        let name = [("name".to_owned(), Json::from(agent))];
        return name.into_iter().chain(model.map(|model| ("model".to_owned(), model))).collect();
    };
    config.retain(|key, _| !["description", "install_file", "execute_file"].contains(&key.as_str()));
    for (text, hash) in [("install", "install_sha256"), ("execute", "execute_sha256")] {
        if config.get(hash).is_some_and(Json::is_string) {
            config.shift_remove(text);
        }
    }
    if let Some(model) = config.get_mut("model") {
        strip_model(model);
        model.as_object_mut().into_iter().for_each(|model| _ = model.shift_remove("prices"));
    }
    for key in ["model", "limits"] {
        config.get_mut(key).and_then(Json::as_object_mut).into_iter().for_each(leave_out_unset);
    }
    leave_out_unset(&mut config);
    config
}

/// Removes settings without effect. The record of a new setting must have one of these values if the setting is unset.
fn leave_out_unset(settings: &mut Map<String, Json>) {
    settings.retain(|_, value| match value {
        Json::Null | Json::Bool(false) => false,
        Json::Array(items) => !items.is_empty(),
        Json::Object(entries) => !entries.is_empty(),
        Json::Bool(true) | Json::Number(_) | Json::String(_) => true,
    });
}

/// Returns the model's name from the record of a benchmark.
pub fn model_name(record: &Json) -> Option<&str> {
    record[EXPANDED]["model_name"].as_str().or_else(|| record["model_name"].as_str())
}

fn of_benchmark(record: &Json) -> Map<String, Json> {
    let known = |key: &&str| record.get(*key).map(|value| ((*key).to_owned(), value.clone()));
    let mut config: Map<_, _> = OF_A_BENCHMARK.iter().filter_map(known).collect();
    if let Some(model) = model_name(record) {
        config.insert("model_name".to_owned(), model.into());
    }
    config.get_mut("resource_init_configs").into_iter().for_each(cut_paths);
    leave_out_unset(&mut config);
    config
}

/// Reduces each absolute path to its last component, because its directories depend on the machine.
fn cut_paths(value: &mut Json) {
    match value {
        Json::String(text) => {
            let path = Path::new(text.as_str());
            if let (true, Some(name)) = (path.is_absolute(), path.file_name()) {
                *text = name.to_string_lossy().into_owned();
            }
        }
        Json::Array(items) => items.iter_mut().for_each(cut_paths),
        Json::Object(entries) => entries.values_mut().for_each(cut_paths),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use rollout::config::load_job_text;

    #[test]
    fn an_agent_is_the_same_wherever_it_runs_and_whatever_its_variables_hold() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let identity = |dir: &Path, secret: &str, port: u16| {
            std::fs::write(dir.join("go.sh"), "go").unwrap();
            let text = json!({
                "agents": [
                    {"name": "a", "description": format!("d{port}"), "install_file": dir.join("go.sh"), "execute": "run",
                     "env": {"KEY": "${KEY}", "N": 1}},
                    {"name": "m", "model": {"name": "gpt", "base_url": format!("http://localhost:{port}"), "api_key": "${KEY}"}},
                ],
                "datasets": [{"path": ".", "name": "set"}],
            });
            let text = text.to_string();
            let job = load_job_text(&dir.join("job.yaml"), &text, &[], &|_| Some(secret.to_owned())).unwrap();
            (agent_identity(&job.record, "a"), agent_identity(&job.record, "m"))
        };
        let one = identity(dirs[0].path(), "secret-one-0123456789", 1);
        assert_eq!(one, identity(dirs[1].path(), "secret-two-0123456789", 2));
        let script = json!({
            "name": "a",
            "install_sha256": "sha256:4cd0e21a9a0795a14ec9aa5f0e7d1abff0492565770e43eafdf1e3e8afed1f33",
            "execute": "run",
            "env": {"KEY": "${KEY}", "N": "1"},
        });
        assert_eq!(Json::Object(one.0), script);
        assert_eq!(Json::Object(one.1), json!({"name": "m", "model": {"name": "gpt", "dialect": "chat"}}));
    }

    #[test]
    fn of_a_benchmark_only_who_answers_counts() {
        let record = |home: &str, key: &str| {
            json!({
                "data_path": format!("{home}/questions.jsonl"), "api_key": key, "base_url": "http://h", "max_turns": 3,
                "model_name": "gpt", "available_tools": ["web-search"], "system_prompt": "Be short.",
                "resource_types": ["rag"],
                "resource_init_configs": {"rag": {"documents": format!("{home}/papers"), "url": "http://x/y", "n": 3}},
            })
        };
        let one = agent_identity(&record("/home/one", "${A}"), "gpt");
        assert_eq!(one, agent_identity(&record("/srv/two", "${B}"), "gpt"));
        insta::assert_json_snapshot!(one, @r#"
        {
          "model_name": "gpt",
          "max_turns": 3,
          "available_tools": [
            "web-search"
          ],
          "system_prompt": "Be short.",
          "resource_types": [
            "rag"
          ],
          "resource_init_configs": {
            "rag": {
              "documents": "papers",
              "url": "http://x/y",
              "n": 3
            }
          }
        }
        "#);
    }

    /// These values must never change, because results of different versions are joined by them.
    #[test]
    fn ids_of_agents_never_change() {
        let text = json!({
            "agents": [
                {"name": "script", "install": "apk add x", "execute": "run"},
                {"name": "plain", "model": {"name": "gpt", "base_url": "http://h"}},
                {"name": "full", "system_prompt": "Sois bref.", "limits": {"max_turns": 3},
                 "model": {"name": "gpt", "base_url": "http://h", "stream": true, "max_seq_len": 4096,
                           "sampling": {"temperature": 1e-7, "stop": null},
                           "extra_body": {"chat_template_kwargs": {"enable_thinking": false}}}},
            ],
            "datasets": [{"path": ".", "name": "set"}],
        });
        let dir = tempfile::tempdir().unwrap();
        let job = load_job_text(&dir.path().join("job.yaml"), &text.to_string(), &[], &|_| None).unwrap();
        let id = |agent: &str| crate::export::eval_log::agent_id(&agent_identity(&job.record, agent));
        assert_eq!(id("script"), "2c18cd863e5bce95b68bcdc5ffffc7499f7c16388818e75568d89910c0925158");
        assert_eq!(id("plain"), "653eb42e8633365de1a9be6541d5579c83448f38fca67e384c5c5e2686fd5407");
        assert_eq!(id("full"), "8d47a3efcd9bac0b8431b3dc6f0f8268fb859f5234313afa47af639edf880405");
        // Older jobs can be resumed only if this hash is unchanged.
        assert_eq!(job.hash, "sha256:58e4a5be5f050422f299c04b592a6c806e2d79310b999535c904681450733f8c");
    }

    #[test]
    fn two_models_behind_one_variable_are_two_agents() {
        let record = |model: &str| json!({ "model_name": "${MODEL}", "_expanded": { "model_name": model } });
        let [one, two] = ["a", "b"].map(|model| agent_identity(&record(model), "agent"));
        assert_eq!((&one["model_name"], &two["model_name"]), (&json!("a"), &json!("b")));
        assert_eq!(one, agent_identity(&json!({ "model_name": "a" }), "agent"));
    }

    #[test]
    fn an_agent_that_nothing_is_known_of_has_a_name() {
        assert_eq!(Json::Object(agent_identity(&Json::Null, "a")), json!({"name": "a"}));
    }
}
