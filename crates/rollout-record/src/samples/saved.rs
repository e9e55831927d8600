//! Samples from the trials of a job directory.

use serde::Deserialize as _;
use serde_json::Value;

use super::read;
use crate::saved::{Conversation, SavedTrial};
use rollout_core::{
    advantage::GroupMember,
    row::RolloutOutput,
    sample::{Sample, SampleError, SampleTokens, SampleTurn, SampledRollout, samples},
};

/// Why a trial has no samples.
#[derive(Debug, thiserror::Error)]
pub enum TrialSampleError {
    /// The trial is a benchmark answer.
    #[error("a benchmark answer has no tokens")]
    Benchmark,
    /// The turns were not saved.
    #[error("there is no `trajectory`; add it to `state_columns`")]
    NoTrajectory,
    /// The turns are invalid.
    #[error("the `trajectory` is invalid")]
    Damaged(#[source] serde_json::Error),
    /// The trial failed and has no reward, which is not the same as a reward of 0.
    #[error("there is no reward")]
    NoReward,
    /// The turns cannot be converted to samples.
    #[error("the turns cannot be converted to samples")]
    Turns(#[source] SampleError),
}

/// Returns the samples of a trial with this conversation. `example` is the number of its task.
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
    let rollout = SampledRollout {
        example_id: row.example_id,
        task: row.task.as_str().into(),
        reward: row.reward,
        advantage: row.columns.get("advantage").and_then(Value::as_f64),
        error: row.error.as_ref().map(|error| error.error_chain_str.as_str().into()),
        stop_condition: row.stop_condition.as_deref().map(Into::into),
    };
    read::of_steps(rollout, &steps).map_err(TrialSampleError::Turns)
}

/// Returns why a rollout is excluded from the baseline of its group and from training, unless errors are included: the
/// names of an error and its causes, or a timeout. None if it is not excluded.
pub fn exclusion_cause(row: &RolloutOutput) -> Option<String> {
    read::cut_short(row.error.as_ref(), row.stop_condition.as_deref())
}

/// Returns a trial as a member of its group, and the cause if it is excluded from the group's baseline and from
/// training.
///
/// A trial with a timeout or an error is excluded, because its reward is not a measure of the model, unless a program
/// defines the kind of the error as the model's fault. Returns None if there is no reward.
pub fn group_member(
    trial: &SavedTrial,
    said: Option<&Conversation>,
) -> Option<(GroupMember, Option<String>)> {
    let row = said.and_then(|said| said.row.as_ref());
    let cause = match row {
        Some(row) => exclusion_cause(row),
        None => trial.result.error.as_ref().map(|error| error.kind.to_string()).or_else(|| {
            let stop_condition = said.and_then(|said| said.stop_condition.as_deref());
            read::cut_short(None, stop_condition)
        }),
    };
    let reward = row.map(|row| row.reward).or(trial.result.reward)?;
    Some((GroupMember { reward, is_excluded: cause.is_some() }, cause))
}

fn of_container(
    trial: &SavedTrial,
    example_id: u64,
    said: &Conversation,
) -> Result<Vec<Sample>, TrialSampleError> {
    let reward = trial.result.reward.ok_or(TrialSampleError::NoReward)?;
    let trajectory_id = said.trajectory_id.clone().unwrap_or_else(|| trial.name().into());
    let rollout = SampledRollout {
        example_id,
        task: trial.id.task.as_str().into(),
        reward,
        advantage: None,
        error: trial.result.error.as_ref().map(|error| error.kind.as_str().into()),
        stop_condition: said.stop_condition.as_deref().map(Into::into),
    };
    let turns = said.turns.iter().map(|turn| SampleTurn {
        tokens: turn.tokens.as_ref().map(|tokens| SampleTokens {
            prompt_ids: &tokens.prompt_ids,
            completion_ids: &tokens.completion_ids,
            completion_mask: None,
            completion_logprobs: &tokens.completion_logprobs,
            routed_experts: tokens.routed_experts.as_ref(),
        }),
        reward: None,
        advantage: None,
        policy_version: turn.policy_version.clone(),
        is_truncated: turn.finish_reason.as_deref() == Some("length"),
        trajectory_id: &trajectory_id,
    });
    samples(&rollout, turns).map_err(TrialSampleError::Turns)
}
