//! Model rollouts: a model attempts an example turn by turn, and a rubric scores what came of it.

pub mod build;
pub mod client;
pub mod dataset;
mod drive;
mod error;
mod generate;
mod interaction;
mod message;
pub mod metadata;
pub mod output;
pub mod parser;
mod places;
mod response;
mod rollouts;
pub mod rubric;
pub mod samples;
mod state;
pub mod tool;
mod trajectory;

pub use client::Client;
pub use drive::{Halt, rollout};
pub use error::{Cause, Error, ErrorKind};
pub use generate::{GenerateError, GenerateOutputs, OnProgress, OnStart, RunOptions, Sample};
pub use interaction::{
    BoxFuture, Cleanup, DuplicateTool, Interaction, InteractionGroup, MultiTurn, Sandboxed, SingleTurn, Stop,
    StopError, ToolUse, next_prompt, num_turns, tool_calls, total_tool_calls,
};
pub use message::{Content, Message, Messages, Role, ToolCall, ToolDef};
pub use metadata::GenerateMetadata;
pub use output::{RolloutOutput, state_to_output};
pub use places::{Place, Places, Share};
pub use response::{FinishReason, Response, ResponseTokens, TokenUsage};
pub use rollouts::{RolloutError, Rollouts, Unusable};
pub use rubric::{Rubric, RubricError};
pub use state::{Limits, Model, Resources, RolloutInput, SamplingArgs, State, Timing, Usage};
pub use trajectory::{StepTokens, TrajectoryStep};
