//! Metrics of every rollout: its turns, its tool calls if it has tools, and the seconds spent in its environment if it
//! has one.

use std::collections::HashMap;

use serde_json::Value;

use crate::{
    State, interaction,
    tool::container::{COMMAND_EXECUTION_TIME, READY_WAIT_TIME},
};

/// `num_turns`; with tools, `total_tool_calls` and `<tool>_calls` for each; with an environment,
/// `sandbox_ready_wait_time` and, after it was used, `sandbox_command_execution_time`.
pub(super) fn counts(state: &State) -> Vec<(String, f64)> {
    let mut counts = vec![("num_turns".to_owned(), state.trajectory.len() as f64)];
    counts.extend([READY_WAIT_TIME, COMMAND_EXECUTION_TIME].into_iter().filter_map(|name| {
        let seconds = state.fields.get(name).and_then(Value::as_f64)?;
        Some((name.to_owned(), seconds))
    }));
    if state.tool_defs.is_empty() {
        return counts;
    }
    let mut by_tool: HashMap<&str, u32> = HashMap::new();
    for call in interaction::calls(state) {
        *by_tool.entry(&call.name).or_default() += 1;
    }
    let total: u32 = by_tool.values().sum();
    counts.push(("total_tool_calls".to_owned(), f64::from(total)));
    counts.extend(state.tool_defs.iter().map(|tool| {
        let calls = by_tool.get(tool.name.as_str()).copied().unwrap_or(0);
        (format!("{}_calls", tool.name), f64::from(calls))
    }));
    counts
}
