//! Rows: what is kept of a rollout (`outputs.jsonl`) and of a question (`results.jsonl`).

mod question;
mod rollout;

pub use question::{Kept, TOOL_NAMES, TOTAL_TURNS, TaskResult, ToolCallRecord, Trajectory, Unnumbered};
pub use rollout::{KEYS, OutputError, OutputUsage, RolloutOutput, Timing};
