//! Rollouts of models: the client, the conversation, tools, parsers, rubrics and metrics.
//!
//! ```text
//! example ─▶ prompt ─▶ client ─▶ turn ─▶ stop? ──yes──▶ cleanups ─▶ state ─▶ rubric
//!               ▲                          │ no
//!               └──── the reply      ◀─────┘
//! ```
//!
//! [`rollout`] runs the conversation; an [`Interaction`] provides its hooks. The result of a rollout is its [`State`],
//! which a [`Rubric`] scores. A [`Model`] is reached through a [`Client`]. The tour, from a single question to tools,
//! is in the documentation of the `rollout` crate.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod client;
pub mod dataset;
mod drive;
mod environments;
mod error;
mod fair_limiter;
mod hook;
mod interaction;
pub mod metric;
pub mod output;
pub mod parser;
mod process;
mod python;
pub mod rubric;
mod saved_state;
mod shown;
mod state;
pub mod tool;

pub use client::{Client, Model, SamplingArgs};
pub use drive::{Halt, rollout, rollout_observed};
pub use environments::EnvironmentMaker;
pub use error::{Cause, Error, ErrorKind};
pub use fair_limiter::{FairLimiter, FairPermit, Share};
pub use futures_util::future::BoxFuture;
pub use hook::AsyncHook;
pub use interaction::{
    Cleanup, DuplicateTool, Interaction, InteractionGroup, InvalidPattern, MultiTurn, Sandboxed,
    SimulatedUser, SingleTurn, Stop, StopError, ToolUse, next_prompt, num_turns, tool_calls,
    total_tool_calls,
};
pub use output::state_to_output;
pub use python::{PythonError, PythonFunction, PythonWorker, PythonWorkers};
pub use rubric::{Rubric, RubricError};
pub use saved_state::{conversation_turns, output_to_state, replace_scores};
pub use state::{FieldError, Limits, Resources, RolloutInput, State, StepTokens, TrajectoryStep, Usage};
