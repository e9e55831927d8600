//! What can be counted of any rollout, for metrics.

use crate::State;
use rollout_core::message::ToolCall;

/// The turns that the model took.
pub fn num_turns(state: &State) -> usize {
    state.trajectory.len()
}

/// The tools that the model called, known or not.
pub fn total_tool_calls(state: &State) -> usize {
    calls(state).count()
}

/// How often the model called the tool of this name.
pub fn tool_calls(state: &State, name: &str) -> usize {
    calls(state).filter(|call| call.name == name).count()
}

/// Every call that the model made, in order.
pub(crate) fn calls(state: &State) -> impl Iterator<Item = &ToolCall> {
    state.trajectory.iter().flat_map(|step| &step.completion).flat_map(|message| &message.tool_calls)
}
