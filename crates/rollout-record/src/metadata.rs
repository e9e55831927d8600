//! The summary of many rollouts: `metadata.json`.

use std::{path::PathBuf, sync::Arc};

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::stats::PassK;
use rollout_core::message::ToolDef;
use rollout_core::provenance::Provenance;

/// What was run, and the average results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerateMetadata {
    /// The name of the interaction, dataset and rubric together.
    pub env_id: String,
    /// Their arguments.
    pub env_args: Map<String, Value>,
    /// The model, by its name on the server.
    pub model: String,
    /// The URL of the model's server.
    pub base_url: Option<String>,
    /// Number of examples.
    pub num_examples: u64,
    /// Number of rollouts of each example.
    pub rollouts_per_example: u32,
    /// Sampling parameters of the model.
    pub sampling_args: Map<String, Value>,
    /// Whether the examples were drawn at random; absent if the caller chose them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<bool>,
    /// The seed of the random order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle_seed: Option<u64>,
    /// When the run ended, or when this was computed. Not in the file.
    #[serde(skip)]
    pub date: Timestamp,
    /// Total duration of all runs in milliseconds.
    pub time_ms: f64,
    /// Total duration in seconds.
    pub time: f64,
    /// The mean reward, including rollouts with an error.
    pub avg_reward: f64,
    /// The mean of each metric over the rollouts that have it.
    pub avg_metrics: IndexMap<String, f64>,
    /// The fraction of rollouts with an error.
    pub avg_error: f64,
    /// The mean probability that at least one of k rollouts of an example succeeds, by k.
    pub pass_at_k: IndexMap<String, f64>,
    /// The mean probability that all of k rollouts of an example succeed, by k.
    pub pass_all_k: IndexMap<String, f64>,
    /// The minimum reward of a successful rollout.
    pub pass_threshold: f64,
    /// The mean token usage over the rollouts that reported it; null if none did.
    pub usage: Option<MeanUsage>,
    /// The total cost of all rollouts; null if it is unknown.
    pub cost: Option<Cost>,
    /// The versions of the software.
    pub version_info: VersionInfo,
    /// Fields of the state that are columns of the rows.
    pub state_columns: Vec<String>,
    /// The path of the rows. Not in the file.
    #[serde(skip)]
    pub path_to_save: Option<PathBuf>,
    /// The tools; null if there are none, or if they differ between rollouts.
    pub tools: Option<Vec<ToolDef>>,
    /// The provenance of the last results; absent if nothing is saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Arc<Provenance>>,
}

impl Default for GenerateMetadata {
    fn default() -> Self {
        Self {
            env_id: String::new(),
            env_args: Map::new(),
            model: String::new(),
            base_url: None,
            num_examples: 0,
            rollouts_per_example: 1,
            sampling_args: Map::new(),
            shuffle: None,
            shuffle_seed: None,
            date: Timestamp::UNIX_EPOCH,
            time_ms: 0.0,
            time: 0.0,
            avg_reward: 0.0,
            avg_metrics: IndexMap::new(),
            avg_error: 0.0,
            pass_at_k: IndexMap::new(),
            pass_all_k: IndexMap::new(),
            pass_threshold: PassK::THRESHOLD,
            usage: None,
            cost: None,
            version_info: VersionInfo::default(),
            state_columns: Vec::new(),
            path_to_save: None,
            tools: None,
            provenance: None,
        }
    }
}

/// Tokens of an average rollout.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MeanUsage {
    /// Input tokens.
    pub input_tokens: f64,
    /// Output tokens.
    pub output_tokens: f64,
}

/// An amount of money.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// US dollars.
    pub total_usd: f64,
}

/// The versions of the software.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VersionInfo {
    /// The version of this library.
    pub rollout_version: String,
    /// The commit of the build, if known.
    pub rollout_commit: Option<String>,
    /// The version of the environment, if it has one.
    pub env_version: Option<String>,
    /// The commit of the environment, if known.
    pub env_commit: Option<String>,
}

impl Default for VersionInfo {
    fn default() -> Self {
        Self {
            rollout_version: env!("CARGO_PKG_VERSION").to_owned(),
            rollout_commit: None,
            env_version: None,
            env_commit: None,
        }
    }
}

/// The values of one rollout that averages need.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stats<'a> {
    /// The reward.
    pub reward: f64,
    /// Whether the rollout ended with an error.
    pub is_error: bool,
    /// Input and output tokens, if a response reported them.
    pub tokens: Option<(f64, f64)>,
    /// Cost in US dollars, if known.
    pub cost: Option<f64>,
    /// Metrics by the index of their name.
    pub metrics: &'a [(u32, f64)],
}

/// Sums over rollouts. The same rollouts in the same order give exactly the same result.
#[derive(Debug, Clone)]
pub struct Aggregate {
    rows: u64,
    rewards: f64,
    errors: u64,
    metrics: Vec<(f64, u64)>,
    tokens: (f64, f64),
    with_usage: u64,
    cost: Option<f64>,
    passes: PassK,
}

impl Aggregate {
    /// Creates empty sums.
    pub fn new(rollouts_per_example: u32, pass_threshold: f64) -> Self {
        Self {
            rows: 0,
            rewards: 0.0,
            errors: 0,
            metrics: Vec::new(),
            tokens: (0.0, 0.0),
            with_usage: 0,
            cost: None,
            passes: PassK::new(u64::from(rollouts_per_example), pass_threshold),
        }
    }

    /// Adds a rollout of an example.
    pub fn add(&mut self, example_id: u64, stats: &Stats<'_>) {
        self.rows += 1;
        self.rewards += stats.reward;
        self.errors += u64::from(stats.is_error);
        self.passes.add(example_id, stats.reward);
        if let Some((input, output)) = stats.tokens {
            self.with_usage += 1;
            self.tokens.0 += input;
            self.tokens.1 += output;
        }
        if let Some(cost) = stats.cost {
            *self.cost.get_or_insert(0.0) += cost;
        }
        for &(name, value) in stats.metrics {
            let name = name as usize;
            if self.metrics.len() <= name {
                self.metrics.resize(name + 1, (0.0, 0));
            }
            let (sum, count) = &mut self.metrics[name];
            *sum += value;
            *count += 1;
        }
    }

    /// Writes the averages to the metadata.
    pub fn tell<'a>(&self, names: impl Iterator<Item = &'a String>, metadata: &mut GenerateMetadata) {
        let mean = |sum: f64, count: u64| if count == 0 { 0.0 } else { sum / count as f64 };
        metadata.avg_reward = mean(self.rewards, self.rows);
        metadata.avg_error = mean(self.errors as f64, self.rows);
        metadata.avg_metrics = names
            .zip(&self.metrics)
            .filter(|(_, (_, count))| *count > 0)
            .map(|(name, &(sum, count))| (name.clone(), mean(sum, count)))
            .collect();
        metadata.pass_at_k = self.passes.at_k();
        metadata.pass_all_k = self.passes.all_k();
        metadata.usage = (self.with_usage > 0).then(|| MeanUsage {
            input_tokens: mean(self.tokens.0, self.with_usage),
            output_tokens: mean(self.tokens.1, self.with_usage),
        });
        metadata.cost = self.cost.map(|total_usd| Cost { total_usd });
    }
}
