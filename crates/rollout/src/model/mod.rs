//! Model rollouts: a model attempts an example turn by turn, and a rubric scores what came of it.

pub mod client;
mod drive;
mod error;
mod interaction;
mod message;
pub mod parser;
mod response;
pub mod rubric;
pub mod samples;
mod state;
pub mod tool;
mod trajectory;

pub use client::Client;
pub use drive::{Halt, rollout};
pub use error::{Cause, Error, ErrorKind};
pub use interaction::{
    BoxFuture, Cleanup, DuplicateTool, Interaction, InteractionGroup, MultiTurn, Sandboxed, SingleTurn, Stop,
    StopError, ToolUse, next_prompt, num_turns, tool_calls, total_tool_calls,
};
pub use message::{Content, Message, Messages, Role, ToolCall, ToolDef};
pub use response::{FinishReason, Response, ResponseTokens, TokenUsage};
pub use rubric::{Rubric, RubricError};
pub use state::{Limits, Model, Resources, RolloutInput, SamplingArgs, State, Timing, Usage};
pub use trajectory::{StepTokens, TrajectoryStep};
