//! The record of an episode: outcome, usage and findings.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use super::unknown::without_type;

/// One episode of an experiment: one attempt of an agent at a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpisodeRecord {
    /// The experiment.
    #[serde(alias = "evaluation_id")]
    pub experiment_id: String,
    /// The task's name in the benchmark.
    #[serde(alias = "sample_id")]
    pub task_id: String,
    /// The hash of the task's content; see [`TaskVersion`](super::TaskVersion).
    #[serde(alias = "sample_hash")]
    pub task_version_hash: Option<String>,
    /// The seed of the task.
    pub seed: Option<Number>,
    /// `train`, `val` or `test`.
    pub split: Option<String>,
    /// The description of the task.
    pub task_description: Option<String>,
    /// The tools that were available in this episode; see [`tool_names`](super::tool_names).
    #[serde(default)]
    pub tool_names: Vec<String>,
    /// Whether the reward is above 0; see [`success`](super::success). None if the episode was not scored.
    #[serde(alias = "is_correct")]
    pub success: Option<bool>,
    /// The last reward. None if the episode was not scored.
    #[serde(alias = "score")]
    pub reward: Option<f64>,
    /// The type of the first error. An episode without a reward may have none.
    #[serde(alias = "error")]
    pub error_type: Option<String>,
    /// The number of steps; see [`Steps`](super::Steps).
    #[serde(alias = "num_turns")]
    pub n_steps: u64,
    /// The number of agent steps.
    pub n_agent_steps: u64,
    /// The number of environment steps.
    pub n_env_steps: u64,
    /// The duration in seconds.
    pub wall_time_s: Option<f64>,
    /// Token usage and cost of the models.
    #[serde(default)]
    pub usage: UsageSummary,
    /// The name of the episode's directory.
    pub trajectory_id: String,
    /// When it started, in seconds since 1970.
    pub timestamp: f64,
    /// The verifier.
    pub verifier: Option<Verifier>,
    /// The findings of a later investigation.
    #[serde(alias = "judge_output")]
    pub findings: Option<Findings>,
    /// Fields of other versions.
    #[serde(flatten, deserialize_with = "without_type")]
    pub unknown: Map<String, Value>,
}

/// Total token usage and cost of an episode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageSummary {
    /// Input tokens.
    #[serde(alias = "input_tokens")]
    pub prompt_tokens: u64,
    /// Output tokens.
    #[serde(alias = "output_tokens")]
    pub completion_tokens: u64,
    /// Input and output tokens.
    pub total_tokens: u64,
    /// Tokens read from a cache.
    #[serde(alias = "input_tokens_cache_read")]
    pub cached_tokens: u64,
    /// Tokens written to a cache.
    #[serde(alias = "input_tokens_cache_write")]
    pub cache_creation_tokens: u64,
    /// Cost in US dollars.
    pub total_cost_usd: f64,
    /// The number of requests to a model.
    pub n_llm_calls: u64,
    /// Fields of other versions.
    #[serde(flatten, deserialize_with = "without_type")]
    pub unknown: Map<String, Value>,
}

impl UsageSummary {
    /// Reads the sums of a trajectory, by their names there. Missing sums are zero.
    pub fn from_summary_stats(stats: Option<&Map<String, Value>>) -> Self {
        let number = |key: &str| stats.and_then(|stats| stats.get(key));
        let count = |key: &str| number(key).and_then(Value::as_u64).unwrap_or(0);
        let [prompt_tokens, completion_tokens] = ["prompt_tokens", "completion_tokens"].map(count);
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            cached_tokens: count("cached_tokens"),
            cache_creation_tokens: count("cache_creation_tokens"),
            total_cost_usd: number("cost").and_then(Value::as_f64).unwrap_or(0.0),
            n_llm_calls: count("total_llm_calls"),
            unknown: Map::new(),
        }
    }
}

/// The verifier of an episode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verifier {
    /// A link to the version that was used.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// The source code that was used.
    pub source: Option<String>,
    /// Fields of other versions.
    #[serde(flatten, deserialize_with = "without_type")]
    pub unknown: Map<String, Value>,
}

/// The findings of an investigation by a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// The estimated difficulty of the task.
    pub difficulty: Option<String>,
    /// Whether the task seems feasible.
    pub feasible: Option<bool>,
    /// Why the agent failed.
    pub failure_root_cause: Option<String>,
    /// Fields of other versions.
    #[serde(flatten, deserialize_with = "without_type")]
    pub unknown: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_read_from_the_sums_of_the_trajectory() {
        let Value::Object(stats) = json!({
            "prompt_tokens": 100, "completion_tokens": 50, "cached_tokens": 10, "cache_creation_tokens": 5,
            "cost": 0.01, "total_llm_calls": 3, "n_agent_steps": 3
        }) else {
            unreachable!()
        };
        insta::assert_json_snapshot!(UsageSummary::from_summary_stats(Some(&stats)), @r#"
        {
          "prompt_tokens": 100,
          "completion_tokens": 50,
          "total_tokens": 150,
          "cached_tokens": 10,
          "cache_creation_tokens": 5,
          "total_cost_usd": 0.01,
          "n_llm_calls": 3
        }
        "#);
    }

    #[test]
    fn without_sums_nothing_was_used() {
        assert_eq!(UsageSummary::from_summary_stats(None), UsageSummary::default());
        assert_eq!(UsageSummary::from_summary_stats(Some(&Map::new())), UsageSummary::default());
    }

    #[test]
    fn records_without_newer_fields_are_read() {
        let old = json!({
            "experiment_id": "e", "task_id": "t", "success": false, "reward": 0, "n_steps": 3, "n_agent_steps": 1,
            "n_env_steps": 2, "trajectory_id": "t_ep0", "timestamp": 0
        });
        let record: EpisodeRecord = serde_json::from_value(old).unwrap();
        assert_eq!((record.tool_names, record.usage), (Vec::new(), UsageSummary::default()));
        assert_eq!((record.verifier, record.findings, record.seed), (None, None, None));
    }

    #[test]
    fn newer_names_are_read_and_the_documents_are_written() {
        let newer = json!({
            "evaluation_id": "run-7", "sample_id": "t", "sample_hash": "ff", "seed": 18_446_744_073_709_551_615_u64,
            "split": "test", "task_description": null, "tool_names": ["click"], "is_correct": true, "score": 0.5,
            "error": "TimeoutError", "num_turns": 3, "n_agent_steps": 1, "n_env_steps": 2, "wall_time_s": 10.0,
            "usage": { "input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_tokens_cache_read": 4,
                       "input_tokens_cache_write": 5, "total_cost_usd": 6, "n_llm_calls": 7, "_type": "U" },
            "trajectory_id": "t_ep0", "timestamp": 1.5, "verifier": { "ref": "https://x", "source": "true" },
            "findings": { "analysis": "long", "outcome": "almost", "evidence": [{ "step": 1, "quote": "q" }] },
            "investigation_metadata": { "model": "m" }, "_type": "cube_harness.eval_log.EpisodeRecord"
        });
        let record: EpisodeRecord = serde_json::from_value(newer).unwrap();
        insta::assert_json_snapshot!(record, @r#"
        {
          "experiment_id": "run-7",
          "task_id": "t",
          "task_version_hash": "ff",
          "seed": 18446744073709551615,
          "split": "test",
          "task_description": null,
          "tool_names": [
            "click"
          ],
          "success": true,
          "reward": 0.5,
          "error_type": "TimeoutError",
          "n_steps": 3,
          "n_agent_steps": 1,
          "n_env_steps": 2,
          "wall_time_s": 10.0,
          "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 2,
            "total_tokens": 3,
            "cached_tokens": 4,
            "cache_creation_tokens": 5,
            "total_cost_usd": 6.0,
            "n_llm_calls": 7
          },
          "trajectory_id": "t_ep0",
          "timestamp": 1.5,
          "verifier": {
            "ref": "https://x",
            "source": "true"
          },
          "findings": {
            "difficulty": null,
            "feasible": null,
            "failure_root_cause": null,
            "analysis": "long",
            "outcome": "almost",
            "evidence": [
              {
                "step": 1,
                "quote": "q"
              }
            ]
          },
          "investigation_metadata": {
            "model": "m"
          }
        }
        "#);
    }

    #[test]
    fn the_oldest_names_of_findings_are_read() {
        let older = json!({
            "experiment_id": "e", "task_id": "t", "success": false, "reward": 0.0, "n_steps": 0, "n_agent_steps": 0,
            "n_env_steps": 0, "trajectory_id": "t", "timestamp": 0.0,
            "judge_output": { "difficulty": "hard", "feasible": false, "failure_root_cause": "no network" }
        });
        let findings = serde_json::from_value::<EpisodeRecord>(older).unwrap().findings.unwrap();
        assert_eq!((findings.difficulty.as_deref(), findings.feasible), (Some("hard"), Some(false)));
    }
}
