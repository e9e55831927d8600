//! The record of an experiment: data that all its episodes share.

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{recipe, unknown::without_type};

/// One experiment: an agent on a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRecord {
    /// The id by which episodes refer to the experiment; see [`experiment_id`](super::experiment_id).
    #[serde(alias = "evaluation_id")]
    pub experiment_id: String,
    /// The name.
    pub experiment_name: String,
    /// When it was recorded, in seconds since 1970.
    #[serde(alias = "evaluation_timestamp")]
    pub timestamp: f64,
    /// The version of the program that ran it.
    #[serde(alias = "eval_library", deserialize_with = "version")]
    pub framework_version: String,
    /// The agent.
    pub agent: AgentInfo,
    /// The benchmark.
    pub benchmark_name: String,
    /// Its version.
    pub benchmark_version: Option<String>,
    /// The part of it that was run.
    pub benchmark_subset: BenchmarkSubset,
    /// The model that investigated the episodes, if any.
    #[serde(alias = "judge_config")]
    pub investigator_llm_config: Option<InvestigatorLlmConfig>,
    /// The directory that the id was computed from, so that the id can be checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_dir: Option<String>,
    /// Fields of other versions.
    #[serde(flatten, deserialize_with = "without_type")]
    pub unknown: Map<String, Value>,
}

impl ExperimentRecord {
    /// Copies fields of other programs from an earlier record of the same experiment.
    pub(super) fn keep(&mut self, agent: AgentInfo, subset: BenchmarkSubset) {
        self.agent.description = agent.description;
        self.agent.cube_standard_git_commit = agent.cube_standard_git_commit;
        self.agent.cube_standard_git_is_dirty = agent.cube_standard_git_is_dirty;
        for (name, version) in agent.dependency_versions {
            self.agent.dependency_versions.entry(name).or_insert(version);
        }
        self.agent.unknown = agent.unknown;
        self.benchmark_subset.filter = subset.filter.or(self.benchmark_subset.filter.take());
        self.benchmark_subset.unknown = subset.unknown;
    }
}

/// An agent: its configuration and the versions of its software.
///
/// The tools are not included, because they differ between episodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// The hash of the configuration; see [`agent_id`](super::agent_id).
    pub agent_id: String,
    /// The type of the configuration.
    pub config_type: String,
    /// The whole configuration.
    pub config: Map<String, Value>,
    /// The model, if the configuration names one.
    pub llm_model: Option<String>,
    /// The version of the program that ran it.
    pub framework_version: String,
    /// Versions of other software.
    #[serde(default)]
    pub dependency_versions: IndexMap<String, String>,
    /// The commit of the checkout.
    pub git_commit: Option<String>,
    /// A link to the commit; see [`github_permalink`](super::github_permalink).
    pub git_remote_url: Option<String>,
    /// Whether the checkout had uncommitted changes.
    pub git_is_dirty: Option<bool>,
    /// The commit of the checkout of cube-standard, if there is one.
    pub cube_standard_git_commit: Option<String>,
    /// Whether that checkout had uncommitted changes.
    pub cube_standard_git_is_dirty: Option<bool>,
    /// A description, written by people.
    pub description: Option<String>,
    /// Fields of other versions.
    #[serde(flatten, deserialize_with = "without_type")]
    pub unknown: Map<String, Value>,
}

impl AgentInfo {
    /// Creates the record from a configuration. Its `_type`, if present, is the type of the configuration.
    ///
    /// The id depends on the configuration, which must be the same on every machine: no paths, times or secrets.
    pub fn from_config(config: Map<String, Value>, config_type: &str, framework_version: &str) -> Self {
        let own_type = config.get("_type").and_then(Value::as_str);
        Self {
            agent_id: recipe::agent_id(&config),
            config_type: own_type.unwrap_or(config_type).to_owned(),
            llm_model: recipe::llm_model(&config).map(str::to_owned),
            config,
            framework_version: framework_version.to_owned(),
            dependency_versions: IndexMap::new(),
            git_commit: None,
            git_remote_url: None,
            git_is_dirty: None,
            cube_standard_git_commit: None,
            cube_standard_git_is_dirty: None,
            description: None,
            unknown: Map::new(),
        }
    }
}

/// The part of a benchmark that was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkSubset {
    /// The name of the benchmark, with the selection.
    pub name: String,
    /// The number of tasks, run or not.
    pub n_tasks: u64,
    /// The pattern that selected the tasks.
    pub filter: Option<String>,
    /// Fields of other versions.
    #[serde(flatten, deserialize_with = "without_type")]
    pub unknown: Map<String, Value>,
}

impl BenchmarkSubset {
    /// Creates a subset with this many tasks.
    pub fn new(name: &str, n_tasks: u64) -> Self {
        Self { name: name.to_owned(), n_tasks, filter: None, unknown: Map::new() }
    }
}

/// The model that investigated episodes afterwards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InvestigatorLlmConfig {
    /// The model.
    pub model: String,
    /// The version or hash of its prompt.
    pub prompt_version: String,
    /// The time, in ISO 8601.
    #[serde(alias = "judged_at")]
    pub investigated_at: Option<String>,
    /// Fields of other versions.
    #[serde(flatten, deserialize_with = "without_type")]
    pub unknown: Map<String, Value>,
}

/// Reads the version, either as text or from the library object of newer records.
fn version<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    match Value::deserialize(from)? {
        Value::String(version) => Ok(version),
        Value::Object(library) => match library.get("version") {
            Some(Value::String(version)) => Ok(version.clone()),
            _ => Err(serde::de::Error::custom("the library has no version")),
        },
        _ => Err(serde::de::Error::custom("a version is a text, or a library with one")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Map<String, Value> {
        let Value::Object(config) =
            json!({ "_type": "agents.Chat", "llm_config": { "model_name": "small" } })
        else {
            unreachable!()
        };
        config
    }

    #[test]
    fn an_agent_is_known_by_its_configuration_alone() {
        let agent = AgentInfo::from_config(config(), "agent", "0.1.0");
        assert_eq!(agent, AgentInfo::from_config(config(), "agent", "0.1.0"));
        assert_eq!(agent.agent_id, AgentInfo::from_config(config(), "other", "9").agent_id);
        assert_eq!(agent.agent_id.len(), 64);
        assert_eq!((agent.config_type.as_str(), agent.llm_model.as_deref()), ("agents.Chat", Some("small")));
        assert_eq!(AgentInfo::from_config(Map::new(), "agent", "0.1.0").config_type, "agent");
    }

    #[test]
    fn an_agent_has_no_tools_and_no_description_by_itself() {
        let agent = serde_json::to_value(AgentInfo::from_config(config(), "agent", "0.1.0")).unwrap();
        assert_eq!(agent["description"], Value::Null);
        assert_eq!(
            agent.as_object().unwrap().keys().collect::<Vec<_>>(),
            [
                "agent_id",
                "config_type",
                "config",
                "llm_model",
                "framework_version",
                "dependency_versions",
                "git_commit",
                "git_remote_url",
                "git_is_dirty",
                "cube_standard_git_commit",
                "cube_standard_git_is_dirty",
                "description"
            ]
        );
    }

    #[test]
    fn a_subset_counts_its_tasks_and_has_no_filter_by_itself() {
        let subset = serde_json::to_value(BenchmarkSubset::new("arena[level=1]", 33)).unwrap();
        assert_eq!(subset, json!({ "name": "arena[level=1]", "n_tasks": 33, "filter": null }));
    }

    #[test]
    fn newer_names_are_read_and_the_documents_are_written() {
        let newer = json!({
            "evaluation_id": "run-7",
            "experiment_name": "e",
            "evaluation_timestamp": 5.5,
            "eval_library": { "name": "cube-harness", "version": "0.9", "_type": "cube_harness.eval_log.EvalLibrary" },
            "agent": { "agent_id": "a", "config_type": "T", "config": { "_type": "T" }, "framework_version": "0.9",
                       "primary_dependencies": ["litellm"], "_type": "cube_harness.eval_log.AgentInfo" },
            "benchmark_name": "b",
            "benchmark_subset": { "name": "b", "n_tasks": 2, "task_ids": ["x"] },
            "judge_config": { "model": "m", "prompt_version": "1", "judged_at": "2026-01-01T00:00:00Z" },
            "debug_limit": 3,
            "_type": "cube_harness.eval_log.ExperimentRecord",
        });
        let record: ExperimentRecord = serde_json::from_value(newer).unwrap();
        insta::assert_json_snapshot!(record, @r#"
        {
          "experiment_id": "run-7",
          "experiment_name": "e",
          "timestamp": 5.5,
          "framework_version": "0.9",
          "agent": {
            "agent_id": "a",
            "config_type": "T",
            "config": {
              "_type": "T"
            },
            "llm_model": null,
            "framework_version": "0.9",
            "dependency_versions": {},
            "git_commit": null,
            "git_remote_url": null,
            "git_is_dirty": null,
            "cube_standard_git_commit": null,
            "cube_standard_git_is_dirty": null,
            "description": null,
            "primary_dependencies": [
              "litellm"
            ]
          },
          "benchmark_name": "b",
          "benchmark_version": null,
          "benchmark_subset": {
            "name": "b",
            "n_tasks": 2,
            "filter": null,
            "task_ids": [
              "x"
            ]
          },
          "investigator_llm_config": {
            "model": "m",
            "prompt_version": "1",
            "investigated_at": "2026-01-01T00:00:00Z"
          },
          "debug_limit": 3
        }
        "#);
    }

    #[test]
    fn a_library_without_a_version_is_refused() {
        let error = version(json!({ "name": "x" })).unwrap_err();
        assert_eq!(error.to_string(), "the library has no version");
        assert!(version(json!(7)).is_err());
    }
}
