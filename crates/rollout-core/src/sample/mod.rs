//! Training samples: what they are, and how the turns of a rollout become some.

mod merge;

use std::{io, sync::Arc};

use serde::{Deserialize, Serialize};

pub use merge::{SampleTokens, SampleTurn, SampledRollout, samples};

/// A sequence of tokens to train on. All its lists are of one length.
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
    /// The tokens.
    pub token_ids: Vec<u32>,
    /// 1 on what the model sampled, 0 on what it was shown.
    pub loss_mask: Vec<u8>,
    /// The logarithm of each sampled token's probability; 0 elsewhere.
    pub logprobs: Vec<f64>,
    /// The advantage of each sampled token: that of its turn, which is the rollout's unless the interaction set another
    /// one; 0 elsewhere, and where there is none.
    pub advantages: Vec<f64>,
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
