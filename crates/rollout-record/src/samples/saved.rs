//! Samples from the trials of a job directory.

use std::sync::Arc;

use serde::Deserialize as _;
use serde_json::Value;

use super::read;
use crate::saved::{Conversation, SavedTrial};
use rollout_core::sample::{Sample, SampleError, SampleTokens, SampleTurn, SampledRollout, samples};

/// Why a trial gave no samples.
#[derive(Debug, thiserror::Error)]
pub enum TrialSampleError {
    /// It is an answer of a benchmark.
    #[error("it is an answer of a benchmark, which keeps conversations and no tokens")]
    Benchmark,
    /// Its turns were not saved.
    #[error("it has no `trajectory`; save it by naming it in `state_columns`")]
    NoTrajectory,
    /// Its turns are not what they should be.
    #[error("its `trajectory` is damaged")]
    Damaged(#[source] serde_json::Error),
    /// An error kept it from a reward, and none is not zero.
    #[error("it has no reward")]
    NoReward,
    /// Its turns make no samples.
    #[error("its turns make no samples")]
    Turns(#[source] SampleError),
}

/// The samples of a trial with this conversation. The example is a number for its task.
pub fn trial_samples(
    trial: &SavedTrial,
    example_id: u64,
    said: &Conversation,
) -> Result<Vec<Sample>, TrialSampleError> {
    let Some(row) = &said.row else { return of_container(trial, example_id, said) };
    let steps = match row.columns.get("trajectory") {
        _ if row.columns.contains_key("predicted_answer") => return Err(TrialSampleError::Benchmark),
        None | Some(Value::Null) => return Err(TrialSampleError::NoTrajectory),
        Some(steps) => Vec::<read::Step>::deserialize(steps).map_err(TrialSampleError::Damaged)?,
    };
    let advantage = row.columns.get("advantage").and_then(Value::as_f64);
    read::of_steps(row.example_id, row.task.as_str().into(), row.reward, advantage, &steps)
        .map_err(TrialSampleError::Turns)
}

fn of_container(
    trial: &SavedTrial,
    example_id: u64,
    said: &Conversation,
) -> Result<Vec<Sample>, TrialSampleError> {
    let reward = trial.result.reward.ok_or(TrialSampleError::NoReward)?;
    let trajectory_id: Arc<str> = trial.name().into();
    let rollout = SampledRollout { example_id, task: trial.id.task.as_str().into(), reward, advantage: None };
    let turns = said.turns.iter().map(|turn| SampleTurn {
        tokens: turn.tokens.as_ref().map(|tokens| SampleTokens {
            prompt_ids: &tokens.prompt_ids,
            completion_ids: &tokens.completion_ids,
            completion_mask: None,
            completion_logprobs: &tokens.completion_logprobs,
        }),
        advantage: None,
        is_truncated: turn.finish_reason.as_deref() == Some("length"),
        trajectory_id: &trajectory_id,
    });
    samples(&rollout, turns).map_err(TrialSampleError::Turns)
}
