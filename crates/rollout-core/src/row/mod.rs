//! Rows: the records of rollouts (`outputs.jsonl`) and of questions (`results.jsonl`).

mod question;
mod reading;
mod rollout;

pub use question::{
    Kept, PREDICTED_ANSWER, TOOL_NAMES, TOTAL_TURNS, TaskResult, ToolCallRecord, Trajectory, Unnumbered,
};

/// The stop condition of a rollout that timed out.
pub const STOPPED_BY_TIMEOUT: &str = "timeout_reached";

pub use rollout::{KEYS, OutputError, OutputUsage, RolloutOutput, Timing};
