//! Training samples: what they are, and how the turns of a rollout become some.

mod merge;

use std::{io, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::response::RoutedExperts;

pub use merge::{SampleTokens, SampleTurn, SampledRollout, samples};

/// A sequence of tokens to train on. The lists of tokens, masks, probabilities and advantages are of one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The example.
    pub example_id: u64,
    /// What kind of task it is.
    pub task: Arc<str>,
    /// The rollout.
    pub trajectory_id: Arc<str>,
    /// The first turn in it, counted from 0.
    pub first_turn: u32,
    /// The last turn in it.
    pub last_turn: u32,
    /// The reward of the rollout.
    pub reward: f64,
    /// The advantage of the rollout. None if it was scored without a group.
    pub advantage: Option<f64>,
    /// Whether the model was cut off in any of the turns.
    pub is_truncated: bool,
    /// The error that ended the rollout, as the names of its causes.
    #[serde(default)]
    pub error: Option<Arc<str>>,
    /// The stop condition that ended the rollout.
    #[serde(default)]
    pub stop_condition: Option<Arc<str>>,
    /// The turns in it whose tokens the model sampled.
    #[serde(default)]
    pub turns: Vec<SampledTurn>,
    /// The tokens.
    pub token_ids: Vec<u32>,
    /// 1 on what the model sampled, 0 on what it was shown.
    pub loss_mask: Vec<u8>,
    /// The logarithm of each sampled token's probability; 0 elsewhere.
    pub logprobs: Vec<f64>,
    /// The advantage of each sampled token: that of its turn, which is the rollout's unless the interaction set another
    /// one; 0 elsewhere, and where there is none.
    pub advantages: Vec<f64>,
    /// The experts that each token went through, where the server reports them. A token of which nothing is known,
    /// such as the last one, has zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<RoutedExperts>,
}

/// A turn inside a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampledTurn {
    /// Which turn of the rollout, counted from 0.
    pub turn: u32,
    /// The place of its first sampled token in the sample.
    pub first_token: u32,
    /// How many tokens it has.
    pub tokens: u32,
    /// Its reward: that of the rollout unless the interaction set another one.
    pub reward: Option<f64>,
    /// The version of the policy that sampled it, as the server reports it.
    pub policy_version: Option<Arc<str>>,
}

impl Sample {
    /// Replaces the advantage of the rollout, and with it that of each turn that has none of its own.
    pub fn replace_advantage(&mut self, advantage: Option<f64>) {
        let (before, now) = (self.advantage.unwrap_or(0.0), advantage.unwrap_or(0.0));
        for turn in &self.turns {
            let tokens = turn.first_token as usize..(turn.first_token + turn.tokens) as usize;
            let masks = self.loss_mask[tokens.clone()].iter();
            let sampled = self.advantages[tokens].iter_mut().zip(masks).filter(|(_, mask)| **mask != 0);
            for (token, _) in sampled.filter(|(token, _)| **token == before) {
                *token = now;
            }
        }
        self.advantage = advantage;
    }
}

/// Why turns make no samples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// No turn has tokens.
    #[error("no turn has tokens; set `token_ids: true` for the model, whose server has to give token ids")]
    NoTokens,
    /// Lists that belong together are not of one length.
    #[error("turn {turn} has {tokens} completion tokens with {others} {what}")]
    Misaligned {
        /// The turn, counted from 0.
        turn: u32,
        /// How many tokens there are.
        tokens: usize,
        /// How many of the others there are.
        others: usize,
        /// What the others are.
        what: &'static str,
    },
}

impl Sample {
    /// Writes the sample as a line of JSON.
    pub fn write_jsonl(&self, to: &mut impl io::Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, self)?;
        to.write_all(b"\n")
    }
}
