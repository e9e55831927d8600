//! JSON Schemas of the job and task files, for editors.
//!
//! The keys and words come from the tables that the readers use, so a schema cannot list what is not
//! read; a test holds it to list all that is.

use serde_json::{Map, Value as Json, json};

use super::{
    RetryConfig, load_agents, load_datasets, load_job, load_task, reader::MAX_TIMEOUT_SEC, schema_model,
};
use rollout_core::quantity::Cpus;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The JSON Schema of job.yaml and job.json.
pub fn job_schema() -> Json {
    let retry = RetryConfig::default();
    let count = |text: &str, default: u32| {
        described(text, json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX, "default": default }))
    };
    let millis = |text: &str, default: u64| {
        described(
            text,
            json!({ "type": "integer", "minimum": 0, "maximum": load_job::MAX_DELAY_MS, "default": default }),
        )
    };
    let mut schema = object(
        "A job: agents that attempt the tasks of datasets.",
        &load_job::KEYS,
        json!({
            "name": text("The directory of the results in `jobs_dir`. A timestamp when absent."),
            "jobs_dir": described(
                "Where job directories are made, relative to the working directory.",
                json!({ "type": "string", "minLength": 1, "default": "jobs" }),
            ),
            "n_attempts": count("Attempts for each pair of agent and task.", 1),
            "n_concurrent_trials": count("How many trials run at the same time.", 4),
            "timeout_multiplier": described(
                "Scales every timeout, those of this file too.",
                json!({ "type": "number", "exclusiveMinimum": 0, "maximum": load_job::MAX_MULTIPLIER, "default": 1.0 }),
            ),
            "retry": object(
                "How failures of the infrastructure are retried; those of agents and verifiers never are.",
                &load_job::RETRY_KEYS,
                json!({
                    "max_attempts": count("Tries in all, the first one included.", retry.max_attempts.get()),
                    "initial_delay_ms": millis("Milliseconds before the second try.", retry.initial_delay_ms),
                    "max_delay_ms": millis("The longest wait between two tries.", retry.max_delay_ms),
                    "multiplier": described(
                        "Growth of the wait from one try to the next.",
                        json!({
                            "type": "number", "minimum": 1, "maximum": load_job::MAX_MULTIPLIER, "default": retry.multiplier,
                        }),
                    ),
                }),
            ),
            "log_level": word("What goes to rollout.log.", &load_job::LOG_LEVELS, Some("error")),
            "eval_log": flag("Writes a record of each episode into `eval-log` of the job's directory as it ends."),
            "instruction_path": described(
                "Where the instruction is put in the environment.",
                json!({ "type": "string", "pattern": "^/", "default": "/tmp/instruction.md" }),
            ),
            "compat": word(
                "Whose rules of grading are followed: `harbor` grades after a failed agent and ignores the \
                 exit code of test.sh, unless `verifier` says otherwise.",
                &load_job::COMPAT,
                None,
            ),
            "environment": environment(),
            "verifier": verifier(),
            "metrics": described(
                "What is computed over rewards while the job runs.",
                json!({ "type": "array", "items": required(&["type"], object(
                    "A statistic over the rewards of completed trials.",
                    &load_job::METRIC_KEYS,
                    json!({ "type": word("Which statistic.", &load_job::METRICS, None) }),
                )) }),
            ),
            "agents": described(
                "Who attempts the tasks.",
                json!({ "type": "array", "minItems": 1, "items": agent() }),
            ),
            "datasets": described(
                "What is attempted.",
                json!({ "type": "array", "minItems": 1, "items": dataset() }),
            ),
        }),
    );
    schema = required(&["agents", "datasets"], schema);
    titled("Rollout job", schema)
}

fn environment() -> Json {
    let preserve = |text: &str| {
        let words: Vec<&str> = load_job::PRESERVE_POLICIES.iter().map(|(word, _)| *word).collect();
        described(text, json!({ "anyOf": [{ "enum": words }, { "type": "boolean" }] }))
    };
    object(
        "Where trials run.",
        &load_job::ENVIRONMENT_KEYS,
        json!({
            "type": word(
                "The provider. When absent: docker where an engine answers, else native.",
                &load_job::ENVIRONMENT_TYPES,
                None,
            ),
            "force_build": flag(
                "Builds anew, also where an image exists, and also where the task names an image.",
            ),
            "cache_agent_install": flag(
                "Keeps what an agent's install script made, and starts later trials of the same image from it.",
            ),
            "preserve_env": preserve("Which environments outlive their trial; `never` when absent."),
            "preserveEnv": preserve("Another spelling of `preserve_env`: true means always."),
            "provider_config": described(
                "Settings of the provider. `${VAR}` and `${VAR:-default}` are expanded.",
                json!({ "type": "object" }),
            ),
            "override_cpus": quantity("Replaces the CPUs of every task."),
            "override_memory": quantity("Replaces the memory of every task."),
            "override_memory_mb": mebibytes("Replaces the memory of every task, in MiB."),
            "override_storage": quantity("Replaces the storage of every task."),
            "override_storage_mb": mebibytes("Replaces the storage of every task, in MiB."),
        }),
    )
}

fn verifier() -> Json {
    object(
        "How attempts are graded.",
        &load_job::VERIFIER_KEYS,
        json!({
            "override_timeout_sec": seconds("Replaces the verifier timeout of every task; 0 means unset.", 0.0),
            "max_timeout_sec": seconds("The ceiling of verifier timeouts; 0 means unset.", 0.0),
            "disable": flag("Ends trials after the agent, without a reward."),
            "after_agent_error": word(
                "Whether an attempt is graded when the agent failed or timed out.",
                &load_job::AFTER_AGENT_ERROR,
                Some("skip"),
            ),
            "ignore_exit_code": flag("Reads the reward also when test.sh exits non-zero."),
            "agent_processes": word(
                "What happens to processes that the agent left running.",
                &load_job::AGENT_PROCESSES,
                Some("keep"),
            ),
            "env": env("Variables for test.sh; they win over the task's."),
        }),
    )
}

fn agent() -> Json {
    let hash = |text: &str| described(text, json!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" }));
    let mut schema = required(
        &["name"],
        object(
            "An agent: shell scripts, a model, or one of the reserved names `oracle` and `nop`.",
            &load_agents::KEYS,
            json!({
                "name": text(
                    "Names the agent in results. `oracle` runs the task's own solution, `nop` does nothing.",
                ),
                "description": text("For readers."),
                "install": text("A bash script that installs the agent."),
                "install_file": text("The path of the install script, relative to this file."),
                "install_sha256": hash("The hash that the install script must have, as config.json records it."),
                "execute": text(
                    "A bash script that attempts the task. $ROLLOUT_TASK_INSTRUCTION is the path of the instruction.",
                ),
                "execute_file": text("The path of the execute script, relative to this file."),
                "execute_sha256": hash("The hash that the execute script must have, as config.json records it."),
                "model": schema_model::model(),
                "system_prompt": text("What the model is told first on tasks with containers, in place of the usual."),
                "limits": schema_model::limits("When a model's attempt at a task with a container has to end."),
                "env": env("Variables of its scripts, and of nothing else."),
            }),
        ),
    );
    let reserved = json!({ "properties": { "name": { "enum": ["oracle", "nop"] } } });
    let any_of =
        |keys: &[&str]| -> Vec<Json> { keys.iter().map(|key| json!({ "required": [key] })).collect() };
    schema["if"] = reserved;
    schema["then"] = json!({ "not": { "anyOf": any_of(&["install", "install_file", "execute", "execute_file", "model"]) } });
    schema["else"] = json!({
        "oneOf": any_of(&["execute", "execute_file", "model"]),
        "not": { "anyOf": [
            { "required": ["install", "install_file"] },
            { "required": ["model"], "anyOf": any_of(&["install", "install_file"]) },
        ] },
    });
    schema["dependentRequired"] = json!({ "system_prompt": ["model"], "limits": ["model"] });
    schema
}

fn dataset() -> Json {
    let registry = object(
        "Where the registry lies. `${VAR}` is expanded.",
        &load_datasets::REGISTRY_KEYS,
        json!({
            "path": text("The path of a registry file, relative to this file."),
            "url": text("The http or https URL of a registry file."),
        }),
    );
    let registry = one_of(&["path", "url"], registry);
    let dataset = object(
        "Tasks from a directory or from a registry, or examples for a model.",
        &load_datasets::KEYS,
        json!({
            "path": text("The directory of a task, or one that holds tasks, relative to this file."),
            "registry": registry,
            "interaction": described(
                "Examples that a model is led through: the path of an interaction file, relative to this file, or \
                 what such a file holds.",
                json!({ "anyOf": [{ "type": "string" }, schema_model::interaction()] }),
            ),
            "name": text(
                "With `path` and `interaction`: the name in results, the base name of the directory or file when \
                 absent. With `registry`: the name that the dataset has there.",
            ),
            "version": described(
                "The version in the registry; the first entry of that name when absent.",
                json!({ "type": ["string", "number"] }),
            ),
            "rename": text("With `registry`: the name in results, `name` when absent."),
        }),
    );
    let mut dataset = one_of(&["path", "registry", "interaction"], dataset);
    dataset["dependentRequired"] =
        json!({ "registry": ["name"], "version": ["registry"], "rename": ["registry"] });
    dataset
}

/// The JSON Schema of task.toml.
pub fn task_schema() -> Json {
    let verifier = object(
        "How an attempt is graded.",
        &load_task::VERIFIER_KEYS,
        json!({
            "timeout_sec": seconds("Seconds that test.sh may take.", load_task::VERIFIER_TIMEOUT_SEC),
            "env": env("Variables for test.sh. `${VAR}` and `${VAR:-default}` are expanded when a job is planned."),
        }),
    );
    let agent = object(
        "Limits of the agent.",
        &load_task::AGENT_KEYS,
        json!({
            "install_timeout_sec": seconds(
                "Seconds that installing the agent may take.",
                load_task::INSTALL_TIMEOUT_SEC,
            ),
            "timeout_sec": seconds("Seconds that the agent may take.", load_task::AGENT_TIMEOUT_SEC),
        }),
    );
    let with_default = |mut schema: Json, default: String| {
        schema["default"] = json!(default);
        schema
    };
    let environment = object(
        "Where the task is attempted.",
        &load_task::ENVIRONMENT_KEYS,
        json!({
            "build_timeout_sec": seconds("Seconds that building the image may take.", load_task::BUILD_TIMEOUT_SEC),
            "docker_image": text("A prebuilt image, used instead of environment/Dockerfile."),
            "cpus": with_default(quantity("CPUs of the environment."), Cpus { millis: 1000 }.to_string()),
            "memory": with_default(quantity("Memory of the environment."), load_task::MEMORY.to_string()),
            "memory_mb": mebibytes("Memory of the environment, in MiB."),
            "storage": with_default(quantity("Storage of the environment."), load_task::STORAGE.to_string()),
            "storage_mb": mebibytes("Storage of the environment, in MiB."),
        }),
    );
    let version = |text: &str| described(text, json!({ "type": ["string", "number"], "default": "1.0" }));
    let schema = object(
        "The configuration of a task.",
        &load_task::KEYS,
        json!({
            "version": version("The version of the task format."),
            "schema_version": version("Another spelling of `version`."),
            "source": text("Where the task came from."),
            "metadata": described("Whatever the author wants to say.", json!({ "type": "object" })),
            "verifier": open(verifier),
            "agent": open(agent),
            "environment": open(environment),
        }),
    );
    titled("Rollout task", open(schema))
}

pub(super) fn titled(title: &str, schema: Json) -> Json {
    let mut out =
        Map::from_iter([("$schema".to_owned(), json!(DIALECT)), ("title".to_owned(), json!(title))]);
    if let Json::Object(schema) = schema {
        out.extend(schema);
    }
    Json::Object(out)
}

/// An object that has these keys, in this order, and no others.
pub(super) fn object(description: &str, keys: &[&str], mut properties: Json) -> Json {
    let ordered: Map<String, Json> =
        keys.iter().map(|key| ((*key).to_owned(), properties[*key].take())).collect();
    json!({
        "description": description,
        "type": "object",
        "properties": ordered,
        "additionalProperties": false,
    })
}

/// Task files may hold keys of other tools.
fn open(mut schema: Json) -> Json {
    schema["additionalProperties"] = json!(true);
    schema
}

pub(super) fn required(keys: &[&str], mut schema: Json) -> Json {
    schema["required"] = json!(keys);
    schema
}

pub(super) fn one_of(keys: &[&str], mut schema: Json) -> Json {
    schema["oneOf"] = keys.iter().map(|key| json!({ "required": [key] })).collect();
    schema
}

pub(super) fn described(description: &str, schema: Json) -> Json {
    let mut out = Map::from_iter([("description".to_owned(), json!(description))]);
    if let Json::Object(schema) = schema {
        out.extend(schema);
    }
    Json::Object(out)
}

pub(super) fn text(description: &str) -> Json {
    described(description, json!({ "type": "string" }))
}

pub(super) fn flag(description: &str) -> Json {
    described(description, json!({ "type": "boolean", "default": false }))
}

fn seconds(description: &str, default: f64) -> Json {
    described(
        description,
        json!({ "type": "number", "minimum": 0, "maximum": MAX_TIMEOUT_SEC, "default": default }),
    )
}

pub(super) fn word<T>(description: &str, words: &[(&str, T)], default: Option<&str>) -> Json {
    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let mut schema = described(description, json!({ "enum": words }));
    if let Some(default) = default {
        schema["default"] = json!(default);
    }
    schema
}

pub(super) fn quantity(description: &str) -> Json {
    let pattern = r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,4})?$";
    described(
        &format!("{description} A number or a Kubernetes quantity."),
        json!({ "anyOf": [
            { "type": "number", "exclusiveMinimum": 0 },
            { "type": "string", "pattern": pattern },
        ] }),
    )
}

fn mebibytes(description: &str) -> Json {
    described(description, json!({ "type": "number", "exclusiveMinimum": 0 }))
}

pub(super) fn env(description: &str) -> Json {
    described(
        description,
        json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every schema with properties, by its path.
    fn objects<'s>(path: &str, schema: &'s Json, out: &mut Vec<(String, &'s Map<String, Json>)>) {
        if let Some(properties) = schema["properties"].as_object() {
            out.push((path.to_owned(), properties));
            for (key, schema) in properties {
                objects(&format!("{path}/{key}"), schema, out);
            }
        }
        if schema["items"].is_object() {
            objects(path, &schema["items"], out);
        }
        for schema in schema["anyOf"].as_array().into_iter().flatten() {
            objects(path, schema, out);
        }
    }

    #[test]
    fn every_key_that_is_read_is_described() {
        let benchmark = super::super::benchmark_schema();
        for (schema, least) in
            [(job_schema(), 4), (task_schema(), 4), (schema_model::interaction_schema(), 4), (benchmark, 1)]
        {
            let mut found = Vec::new();
            objects("", &schema, &mut found);
            assert!(found.len() >= least);
            for (path, properties) in found {
                for (key, schema) in properties {
                    assert!(schema["description"].is_string(), "{path}/{key} has no description");
                }
            }
        }
    }
}
