//! Counts of any rollout, for metrics.

use crate::State;
use rollout_core::message::ToolCall;

/// The number of the model's turns.
pub fn num_turns(state: &State) -> usize {
    state.trajectory.len()
}

/// The number of the model's tool calls, to known and unknown tools.
pub fn total_tool_calls(state: &State) -> usize {
    calls(state).count()
}

/// How often the model called this tool.
pub fn tool_calls(state: &State, name: &str) -> usize {
    calls(state).filter(|call| call.name == name).count()
}

/// Every tool call of the model, in order.
pub(crate) fn calls(state: &State) -> impl Iterator<Item = &ToolCall> {
    state.trajectory.iter().flat_map(|step| &step.completion).flat_map(|message| &message.tool_calls)
}
