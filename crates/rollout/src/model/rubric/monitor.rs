//! Counts that every rollout has as metrics: its turns, and its tool calls where it has tools.

use std::collections::HashMap;

use crate::model::State;

/// `num_turns`, and with tools `total_tool_calls` and `<tool>_calls` of each.
pub(super) fn counts(state: &State) -> Vec<(String, f64)> {
    let mut counts = vec![("num_turns".to_owned(), state.trajectory.len() as f64)];
    if state.tool_defs.is_empty() {
        return counts;
    }
    let mut by_tool: HashMap<&str, u32> = HashMap::new();
    let mut total = 0_u32;
    for call in
        state.trajectory.iter().flat_map(|step| &step.completion).flat_map(|message| &message.tool_calls)
    {
        *by_tool.entry(&call.name).or_default() += 1;
        total += 1;
    }
    counts.push(("total_tool_calls".to_owned(), f64::from(total)));
    counts.extend(state.tool_defs.iter().map(|tool| {
        let calls = by_tool.get(tool.name.as_str()).copied().unwrap_or(0);
        (format!("{}_calls", tool.name), f64::from(calls))
    }));
    counts
}
