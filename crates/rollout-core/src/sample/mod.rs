//! Training samples, and their creation from the turns of a rollout.

mod merge;

use std::{io, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::response::RoutedExperts;

pub use merge::{SampleTokens, SampleTurn, SampledRollout, samples};

/// A sequence of tokens to train on. The lists of tokens, masks, probabilities and advantages have the same length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The example.
    pub example_id: u64,
    /// The kind of task.
    pub task: Arc<str>,
    /// The id of the rollout.
    pub trajectory_id: Arc<str>,
    /// Its first turn, counted from 0.
    pub first_turn: u32,
    /// Its last turn.
    pub last_turn: u32,
    /// The reward of the rollout.
    pub reward: f64,
    /// The advantage of the rollout; None if it was scored without a group.
    pub advantage: Option<f64>,
    /// Whether a response of these turns was truncated.
    pub is_truncated: bool,
    /// The error that ended the rollout, as the names of its causes.
    #[serde(default)]
    pub error: Option<Arc<str>>,
    /// The stop condition that ended the rollout.
    #[serde(default)]
    pub stop_condition: Option<Arc<str>>,
    /// The turns whose tokens the model sampled.
    #[serde(default)]
    pub turns: Vec<SampledTurn>,
    /// The tokens.
    pub token_ids: Vec<u32>,
    /// 1 for tokens that the model sampled, 0 for tokens of the prompt.
    pub loss_mask: Vec<u8>,
    /// The log-probability of each sampled token; 0 elsewhere.
    pub logprobs: Vec<f64>,
    /// The advantage of each sampled token: that of its turn, which is the rollout's unless the interaction set another
    /// one; 0 elsewhere, and if there is none.
    pub advantages: Vec<f64>,
    /// The experts of each token, if the server reported them. Unknown experts, such as those of the last token, are
    /// zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<RoutedExperts>,
}

/// A turn in a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampledTurn {
    /// The turn of the rollout, counted from 0.
    pub turn: u32,
    /// The index of its first sampled token in the sample.
    pub first_token: u32,
    /// The number of its tokens.
    pub tokens: u32,
    /// Its reward: that of the rollout unless the interaction set another one.
    pub reward: Option<f64>,
    /// The version of the policy that sampled it, as the server reported it.
    pub policy_version: Option<Arc<str>>,
}

impl Sample {
    /// Replaces the advantage of the rollout, and that of each turn without its own advantage.
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

/// Why turns cannot be converted to samples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// No turn has tokens.
    #[error(
        "no turn has tokens; set `token_ids: true` for the model, and use a server that returns token ids"
    )]
    NoTokens,
    /// Lists have different lengths.
    #[error("turn {turn} has {tokens} completion tokens with {others} {what}")]
    Misaligned {
        /// The turn, counted from 0.
        turn: u32,
        /// The number of tokens.
        tokens: usize,
        /// The length of the other list.
        others: usize,
        /// The content of the other list.
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
