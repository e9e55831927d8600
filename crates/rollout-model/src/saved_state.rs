//! Restores the state of a rollout from its saved row.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{
    client::Model,
    error::{Error, ErrorKind},
    state::{RolloutInput, State, TrajectoryStep, Usage},
};
use rollout_core::{
    message::Role,
    response::Response,
    row::{RolloutOutput, STOPPED_BY_TIMEOUT},
};

/// Restores the state from a row, as far as the row has it. None if its conversation was not saved.
pub fn output_to_state(mut row: RolloutOutput, model: &Arc<Model>) -> Option<State> {
    let completion = row.completion.take()?;
    let turns = row.columns.shift_remove("trajectory");
    let input = RolloutInput {
        prompt: row.prompt.unwrap_or_default(),
        example_id: row.example_id,
        task: row.task,
        answer: row.answer,
        info: row.info,
        extra: Map::new(),
    };
    let mut state = State::new(input, Arc::clone(model), row.tool_defs);
    state.completion = Some(completion);
    state.error =
        row.error.map(|error| Error::new(ErrorKind::of_row(&error).unwrap_or(ErrorKind::Any), error.message));
    state.is_completed = row.is_completed;
    state.is_truncated = row.is_truncated;
    state.timed_out = row.stop_condition.as_deref() == Some(STOPPED_BY_TIMEOUT);
    state.stop_condition = row.stop_condition;
    state.timing = row.timing;
    state.reward = Some(row.reward);
    state.metrics = Some(row.metrics);
    if let Some(usage) = row.token_usage {
        state.usage = Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cached_tokens: usage.cached_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            cost: usage.cost,
            responses: 1,
        };
    }
    if let Some(id) = row.columns.get("trajectory_id").and_then(Value::as_str) {
        state.trajectory_id = id.into();
    }
    state.fields = row.columns;
    let turns = turns.and_then(|turns| serde_json::from_value::<Vec<TrajectoryStep>>(turns).ok());
    state.trajectory = turns.unwrap_or_else(|| conversation_turns(&state));
    Some(state)
}

/// The turns of a conversation, derived from its messages.
pub fn conversation_turns(state: &State) -> Vec<TrajectoryStep> {
    let mut said = state.input.prompt.clone();
    let mut turns = Vec::new();
    for message in state.completion.iter().flatten() {
        if message.role == Role::Assistant {
            let response = Response {
                id: String::new(),
                created: 0,
                model: state.model.name.clone(),
                usage: None,
                message: (**message).clone(),
                finish_reason: None,
                tokens: None,
                extra: Map::new(),
            };
            turns.push(TrajectoryStep::new(state, said.clone(), response));
        }
        said.push(Arc::clone(message));
    }
    turns
}

/// Replaces the scores of a row by those that the rollout got with its whole group.
///
/// Rewards and advantages that the interaction set for single turns are kept: they differ from those of the rollout.
/// If the infrastructure failed that scores the group, the earlier scores are kept: they were right.
pub fn replace_scores(row: &mut RolloutOutput, state: &State) {
    if state.scoring_failure().is_some() {
        return;
    }
    let (reward_before, reward) = (row.reward, state.reward.unwrap_or_default());
    let steps = row.columns.get("trajectory").and_then(Value::as_array);
    let first = steps.and_then(|steps| steps.iter().find_map(|step| step.get("advantage")?.as_f64()));
    let advantage_before = row.columns.get("advantage").and_then(Value::as_f64).or(first);
    row.reward = reward;
    row.metrics = state.metrics.clone().unwrap_or_default();
    if let Some(advantage) = row.columns.get_mut("advantage") {
        *advantage = state.advantage.into();
    }
    for step in row.columns.get_mut("trajectory").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(step) = step.as_object_mut() else { continue };
        let number = |step: &Map<String, Value>, key: &str| step.get(key).and_then(Value::as_f64);
        if number(step, "reward").is_none_or(|reward| reward == reward_before) {
            step.insert("reward".to_owned(), reward.into());
        }
        if number(step, "advantage").is_none_or(|advantage| Some(advantage) == advantage_before) {
            step.insert("advantage".to_owned(), state.advantage.into());
        }
    }
}
