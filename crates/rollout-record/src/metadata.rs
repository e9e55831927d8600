//! What many rollouts come to: `metadata.json`.

use std::{path::PathBuf, sync::Arc};

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::stats::PassK;
use rollout_core::message::ToolDef;
use rollout_core::provenance::Provenance;

/// What was run, and what it came to on average.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerateMetadata {
    /// Names interaction, dataset and rubric together.
    pub env_id: String,
    /// What they were made with.
    pub env_args: Map<String, Value>,
    /// The model, by its server's name for it.
    pub model: String,
    /// Where the model was reached.
    pub base_url: Option<String>,
    /// Examples.
    pub num_examples: u64,
    /// Rollouts of each example.
    pub rollouts_per_example: u32,
    /// How the model was sampled.
    pub sampling_args: Map<String, Value>,
    /// Whether the examples were drawn at random; absent where the caller chose them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<bool>,
    /// From which seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle_seed: Option<u64>,
    /// When the run ended, or when this was told. Not in the file.
    #[serde(skip)]
    pub date: Timestamp,
    /// How long all runs took together, in milliseconds.
    pub time_ms: f64,
    /// The same in seconds.
    pub time: f64,
    /// The mean reward, that of errored rollouts included.
    pub avg_reward: f64,
    /// The mean of each metric over the rollouts that have it.
    pub avg_metrics: IndexMap<String, f64>,
    /// The share of rollouts with an error.
    pub avg_error: f64,
    /// The mean chance that at least one of k rollouts of an example succeeds, by k.
    pub pass_at_k: IndexMap<String, f64>,
    /// The mean chance that all of k rollouts of an example succeed, by k.
    pub pass_all_k: IndexMap<String, f64>,
    /// The reward from which a rollout counts as a success.
    pub pass_threshold: f64,
    /// The mean use of tokens, over the rollouts that told; null if none did.
    pub usage: Option<MeanUsage>,
    /// What all rollouts cost together; null where nothing is known.
    pub cost: Option<Cost>,
    /// What ran.
    pub version_info: VersionInfo,
    /// Fields of the state that are columns of the rows.
    pub state_columns: Vec<String>,
    /// Where the rows are. Not in the file.
    #[serde(skip)]
    pub path_to_save: Option<PathBuf>,
    /// The tools; null if there are none, or not the same in all rollouts.
    pub tools: Option<Vec<ToolDef>>,
    /// Where the last results come from; absent where nothing is kept.
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
    /// Read by the model.
    pub input_tokens: f64,
    /// Written by the model.
    pub output_tokens: f64,
}

/// Money.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// US dollars.
    pub total_usd: f64,
}

/// What ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VersionInfo {
    /// The version of this library.
    pub rollout_version: String,
    /// The commit that it was built from, where known.
    pub rollout_commit: Option<String>,
    /// The version of the environment, where it has one.
    pub env_version: Option<String>,
    /// The commit of the environment, where known.
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

/// What averages need of one rollout.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    /// Its reward.
    pub reward: f64,
    /// Whether it ended with an error.
    pub is_error: bool,
    /// Tokens read and written, if any response told.
    pub tokens: Option<(f64, f64)>,
    /// US dollars, where known.
    pub cost: Option<f64>,
    /// Metrics by the number of their name.
    pub metrics: Box<[(u32, f64)]>,
}

/// Adds rollouts up. The same rollouts in the same order give the same bits.
#[derive(Debug, Clone)]
pub struct Aggregate {
    rows: u64,
    rewards: f64,
    errors: u64,
    metrics: Vec<(f64, u64)>,
    tokens: (f64, f64),
    told: u64,
    cost: Option<f64>,
    passes: PassK,
}

impl Aggregate {
    /// Sums over nothing yet.
    pub fn new(rollouts_per_example: u32, pass_threshold: f64) -> Self {
        Self {
            rows: 0,
            rewards: 0.0,
            errors: 0,
            metrics: Vec::new(),
            tokens: (0.0, 0.0),
            told: 0,
            cost: None,
            passes: PassK::new(u64::from(rollouts_per_example), pass_threshold),
        }
    }

    /// Adds a rollout of an example.
    pub fn add(&mut self, example_id: u64, stats: &Stats) {
        self.rows += 1;
        self.rewards += stats.reward;
        self.errors += u64::from(stats.is_error);
        self.passes.add(example_id, stats.reward);
        if let Some((input, output)) = stats.tokens {
            self.told += 1;
            self.tokens.0 += input;
            self.tokens.1 += output;
        }
        if let Some(cost) = stats.cost {
            *self.cost.get_or_insert(0.0) += cost;
        }
        for &(name, value) in &stats.metrics {
            let name = name as usize;
            if self.metrics.len() <= name {
                self.metrics.resize(name + 1, (0.0, 0));
            }
            let (sum, count) = &mut self.metrics[name];
            *sum += value;
            *count += 1;
        }
    }

    /// Puts the averages into the metadata.
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
        metadata.usage = (self.told > 0).then(|| MeanUsage {
            input_tokens: mean(self.tokens.0, self.told),
            output_tokens: mean(self.tokens.1, self.told),
        });
        metadata.cost = self.cost.map(|total_usd| Cost { total_usd });
    }
}
