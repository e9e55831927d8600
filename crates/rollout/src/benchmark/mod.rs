//! Benchmarks: a file of questions becomes answers, scores, trajectories and a summary.

mod auto_start;
mod data;
mod eval;
mod evaluation;
mod question;
mod row;
mod run;
mod runner;
pub mod score;
mod setup;
mod summary;
mod text;
mod tools;

pub use crate::config::load_config;
pub use auto_start::AutoStartError;
pub use data::{BenchmarkItem, DataError, UnknownId, load_questions, load_tasks, select, tasks_from};
pub use eval::{Eval, rollout};
pub(crate) use row::ResultForm;
pub use row::{TaskResult, ToolCallRecord, Trajectory, Unnumbered};
pub use run::{EVALUATION, EvalError, Outcome, Run};
pub use runner::{AgentRunner, QuickError, QuickOptions, QuickResult, StartedRunner, quick_rollout};
pub use setup::SetupError;
pub use summary::RolloutSummary;
pub use tools::ToolServerError;
