//! The computation of ids, hashes and names in records, which is the same in every program.

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use rollout_core::{python_json::PythonJson, text::hex};

/// The id of an agent: the SHA-256 of `json.dumps(config, sort_keys=True)`.
///
/// ```
/// # use rollout::export::eval_log::agent_id;
/// let config = serde_json::json!({ "temperature": 1e-7, "model": "small" });
/// let id = agent_id(config.as_object().unwrap());
/// assert_eq!(id, "c693d52901c91787cd4ee55a0f9cbba8cac2cef685238bbe39c647a3bd0ee40b");
/// ```
pub fn agent_id(config: &Map<String, Value>) -> String {
    canonical_hash(config)
}

/// The id of an experiment: the first 16 digits of the SHA-256 of its name followed by its directory.
///
/// ```
/// assert_eq!(rollout::export::eval_log::experiment_id("my_exp", "/tmp/out"), "602c86b88de8b08f");
/// ```
pub fn experiment_id(name: &str, output_dir: &str) -> String {
    let mut id = hex(&Sha256::new().chain_update(name).chain_update(output_dir).finalize());
    id.truncate(16);
    id
}

/// The content of a task. If any part changes, results belong to a different task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskVersion<'a> {
    /// The content of `task.toml`.
    pub task: &'a Value,
    /// The instruction of the agent.
    pub instruction: &'a str,
    /// The hash of the environment's files, if there are any.
    pub environment: Option<&'a str>,
    /// The hash of the tests' files, if there are any.
    pub tests: Option<&'a str>,
}

impl TaskVersion<'_> {
    /// The SHA-256 of `json.dumps` of these four fields with sorted keys.
    pub fn hash(&self) -> String {
        canonical_hash(self)
    }
}

/// The content of an example, independent of its position in the dataset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExampleVersion<'a> {
    /// The first messages.
    pub prompt: &'a Value,
    /// The expected answer, if there is one.
    pub answer: Option<&'a str>,
    /// Other data of the example.
    pub info: Option<&'a Map<String, Value>>,
}

impl ExampleVersion<'_> {
    /// The SHA-256 of `json.dumps` of these three fields with sorted keys.
    pub fn hash(&self) -> String {
        canonical_hash(self)
    }
}

/// The content of a benchmark question, independent of the model and of what is saved.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuestionVersion<'a> {
    /// The question.
    pub question: &'a str,
    /// The expected answer, if there is one.
    pub answer: Option<&'a str>,
    /// The parameters of every tool call, with the content of files.
    pub kwargs: &'a Map<String, Value>,
    /// The configurations of the tools' sessions by resource type, with the content of files.
    pub resources: &'a Map<String, Value>,
}

impl QuestionVersion<'_> {
    /// The SHA-256 of `json.dumps` of these four fields with sorted keys.
    pub fn hash(&self) -> String {
        canonical_hash(self)
    }
}

/// Returns the model's name from the usual keys of a configuration.
pub fn llm_model(config: &Map<String, Value>) -> Option<&str> {
    fn first<'a>(config: &'a Map<String, Value>, keys: &[&str]) -> Option<&'a str> {
        keys.iter().find_map(|key| config.get(*key)?.as_str())
    }
    first(config, &["model_name", "model", "llm_model"]).or_else(|| {
        ["llm_config", "llm"]
            .iter()
            .find_map(|key| first(config.get(*key)?.as_object()?, &["model_name", "model"]))
    })
}

/// Returns the names of tools from their schemas: the name of the function, else of the schema. Schemas without a name
/// are skipped.
pub fn tool_names(schemas: &[Value]) -> Vec<String> {
    let name = |schema: &Value| {
        let name =
            schema.get("function").and_then(|function| function.get("name")).or_else(|| schema.get("name"));
        name.and_then(Value::as_str).map(str::to_owned)
    };
    schemas.iter().filter_map(name).collect()
}

/// Whether a reward counts as success: any reward above 0 does.
pub fn success(reward: f64) -> bool {
    reward > 0.0
}

/// Returns a permanent link to a commit, if the remote is a repository on GitHub.
pub fn github_permalink(remote_url: &str, commit: &str) -> Option<String> {
    let repository =
        ["git@github.com:", "https://github.com/"].iter().find_map(|start| remote_url.strip_prefix(start))?;
    let repository = repository.strip_suffix(".git").unwrap_or(repository);
    (!repository.is_empty()).then(|| format!("https://github.com/{repository}/tree/{commit}"))
}

fn canonical_hash(value: &impl Serialize) -> String {
    let mut text = Vec::new();
    PythonJson::sorted().write(&mut text, value).expect("its keys are texts, and memory takes everything");
    hex(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id(config: &Value) -> String {
        agent_id(config.as_object().unwrap())
    }

    fn model(config: &Value) -> Option<&str> {
        llm_model(config.as_object().unwrap())
    }

    #[test]
    fn agents_have_the_ids_that_python_gives_them() {
        let table = [
            (json!({}), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
            (
                json!({ "_type": "agents.Chat", "llm": { "model": "small", "temperature": 1.0 }, "max_steps": 50 }),
                "a8b9c6610af170136cf03d17d3213d1ed7864cd357e1119422662a191144ca3c",
            ),
            (
                json!({ "prompt": "Ça marche, 日本, 😀\u{7f}", "Z": null, "a": [true, false], "é": 1 }),
                "46cb0670efbff9cfe62735428d35ffeb146341391236ba51ae6ffd518abb9548",
            ),
            (
                json!({ "floats": [1e-7, 1e16, -0.0, 123_456_789_012_345_680.0, 0.0001, 1e-5, 5e-324] }),
                "474b5ce26a2b0c4fbb91290712cad11baf5f494138c434d1e0cab459905c1880",
            ),
            (
                json!({ "deep": { "b": { "d": 1, "c": [{ "y": 2, "x": 3 }] }, "a": u64::MAX } }),
                "43c7050e4aac218768296a99a22f3d6c969b8b89923562b28565443b4b7877ff",
            ),
        ];
        for (config, expected) in table {
            assert_eq!(id(&config), expected, "{config}");
        }
    }

    #[test]
    fn the_order_of_keys_does_not_make_another_agent_but_any_value_does() {
        let one = json!({ "a": 1, "b": { "c": 2, "d": 3 } });
        assert_eq!(id(&one), id(&json!({ "b": { "d": 3, "c": 2 }, "a": 1 })));
        assert_ne!(id(&one), id(&json!({ "a": 1.0, "b": { "c": 2, "d": 3 } })));
    }

    #[test]
    fn an_experiment_is_its_name_and_its_directory() {
        assert_eq!(experiment_id("my_exp", "/tmp/out"), "602c86b88de8b08f");
        assert_ne!(experiment_id("my_exp", "/tmp/other"), experiment_id("my_exp", "/tmp/out"));
        assert_eq!(experiment_id("héllo", "/tmp/日本"), "95a0e88e5f67cd28");
    }

    #[test]
    fn a_change_anywhere_makes_another_version_of_a_task() {
        let task = json!({ "version": "1.0", "agent": { "timeout_sec": 60.0 } });
        let other = json!({ "version": "1.0", "agent": { "timeout_sec": 61.0 } });
        let version =
            TaskVersion { task: &task, instruction: "Écris.", environment: Some("sha256:e"), tests: None };
        assert_eq!(version.hash(), "43fdf44c3dc077d17e9716c43c3f2ae7878e32eb974f51f95debca935c8f55d9");
        let changed = [
            TaskVersion { task: &other, ..version.clone() },
            TaskVersion { instruction: "Lis.", ..version.clone() },
            TaskVersion { environment: None, ..version.clone() },
            TaskVersion { tests: Some("sha256:e"), ..version.clone() },
        ];
        assert!(changed.iter().all(|changed| changed.hash() != version.hash()));
    }

    #[test]
    fn an_example_is_its_prompt_its_answer_and_its_info() {
        let prompt = json!([{ "role": "user", "content": "Où ? 1e16" }]);
        let info = json!({ "z": 1e16, "split": "tést" });
        let version = ExampleVersion { prompt: &prompt, answer: Some("là"), info: info.as_object() };
        assert_eq!(version.hash(), "a553249c89a15930fb0d1fd038273d112641ab37ad1ecb2e17589f7e3951d454");
        let changed = [
            ExampleVersion { answer: None, ..version.clone() },
            ExampleVersion { info: None, ..version.clone() },
        ];
        assert!(changed.iter().all(|changed| changed.hash() != version.hash()));
    }

    #[test]
    fn a_question_version_includes_the_question_the_answer_and_its_tools() {
        let (kwargs, none) = (json!({ "seed_path": { "name": "a.txt", "sha256": "ff" } }), Map::new());
        let kwargs = kwargs.as_object().unwrap();
        let version = QuestionVersion { question: "Où ?", answer: Some("là"), kwargs, resources: &none };
        assert_eq!(version.hash(), "0b2f9073b876f71413fb94974e02c8617c4b02e5ea2cecb39ee850effbf10b58");
        let changed = [
            QuestionVersion { question: "Où?", ..version.clone() },
            QuestionVersion { answer: None, ..version.clone() },
            QuestionVersion { kwargs: &none, ..version.clone() },
            QuestionVersion { resources: kwargs, ..version.clone() },
        ];
        assert!(changed.iter().all(|changed| changed.hash() != version.hash()));
    }

    #[test]
    fn a_model_is_found_where_configurations_name_it() {
        assert_eq!(model(&json!({ "model_name": "a", "model": "b" })), Some("a"));
        assert_eq!(model(&json!({ "model": "b", "llm_model": "c" })), Some("b"));
        assert_eq!(model(&json!({ "llm_model": "c", "llm": { "model": "d" } })), Some("c"));
        assert_eq!(
            model(&json!({ "llm_config": { "model_name": "e" }, "llm": { "model": "f" } })),
            Some("e")
        );
        assert_eq!(model(&json!({ "llm_config": {}, "llm": { "model": "f" } })), Some("f"));
        assert_eq!(model(&json!({ "model": { "name": "g" }, "llm": "h" })), None);
    }

    #[test]
    fn tools_are_named_by_their_function_or_themselves() {
        let schemas = [
            json!({ "type": "function", "function": { "name": "click" } }),
            json!({ "name": "type" }),
            json!({ "function": {}, "name": "scroll" }),
            json!({ "function": "text", "name": "drag" }),
            json!({ "description": "nameless" }),
            json!("click"),
            json!({ "function": { "name": "click" }, "name": "other" }),
        ];
        assert_eq!(tool_names(&schemas), ["click", "type", "scroll", "drag", "click"]);
        assert!(tool_names(&[]).is_empty());
    }

    #[test]
    fn any_reward_is_a_success() {
        let table =
            [(1.0, true), (0.5, true), (1e-300, true), (0.0, false), (-1.0, false), (f64::NAN, false)];
        for (reward, expected) in table {
            assert_eq!(success(reward), expected, "{reward}");
        }
    }

    #[test]
    fn only_github_has_permalinks() {
        let link = Some("https://github.com/org/repo/tree/abc".to_owned());
        for remote in [
            "git@github.com:org/repo.git",
            "git@github.com:org/repo",
            "https://github.com/org/repo.git",
            "https://github.com/org/repo",
        ] {
            assert_eq!(github_permalink(remote, "abc"), link, "{remote}");
        }
        for remote in [
            "https://gitlab.com/org/repo.git",
            "https://token@github.com/org/repo.git",
            "ssh://git@github.com/org/repo.git",
            "/srv/repo.git",
            "https://github.com/",
            "",
        ] {
            assert_eq!(github_permalink(remote, "abc"), None, "{remote}");
        }
    }
}
