//! Benchmarks: a file of questions becomes answers, scores, trajectories and a summary.
//!
//! A question is asked of a model, which may call tools of a tool server until it answers; the answer is scored by a
//! [metric](rollout_model::metric). All of it runs as a [job](crate::job): a question is an example, the model is the agent,
//! and the results are in a job's directory, so that a run that was cut short can be resumed.
//!
//! # All questions of a file
//!
//! ```
//! use rollout::benchmark::{Eval, rollout};
//!
//! # use rollout_testkit::ModelServer;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ModelServer::arithmetic();
//! # let temporary = tempfile::tempdir()?;
//! # let dir = temporary.path();
//! std::fs::write(dir.join("questions.jsonl"), r#"{"id": "q1", "question": "What is 15 * 27?", "answer": "405"}"#)?;
//! let config = serde_json::json!({
//!     "data_path": "questions.jsonl",
//!     "output_dir": dir.join("results"),
//!     "base_url": "${MODEL_URL}",
//!     "evaluation_metric": "numeric_match",
//! });
//! std::fs::write(dir.join("config.json"), config.to_string())?;
//!
//! # let url = server.url();
//! let eval = Eval::new(dir.join("config.json"))
//!     .vars(move |name| (name == "MODEL_URL").then(|| url.clone()))
//!     .max_tasks(10);
//! let summary = rollout(eval).await?;
//! assert_eq!((summary.successful_tasks, summary.average_score), (1, Some(1.0)));
//! assert!(dir.join("results/results.jsonl").exists() && dir.join("results/evaluation.json").exists());
//! # Ok(())
//! # }
//! ```
//!
//! [`RolloutConfig`](crate::config::RolloutConfig) has everything that can be said of a benchmark, and [`Eval`] also takes
//! one that was made in code. What was answered is in `results.jsonl`, a [`TaskResult`] a line; what it is worth in
//! `evaluation.json`; and what it came to in the [`RolloutSummary`]. A question that failed is not scored and not in the
//! mean, and neither is one without a right answer; an empty answer is one.
//!
//! # One by one
//!
//! [`quick_rollout`] asks a single question, and an [`AgentRunner`] those that it is given, without files.
//! [`load_config`] and [`load_tasks`] read what it takes.
//!
//! # From here
//!
//! - [`score`] scores saved answers again, by another metric or another judge.
//! - [`Run`] is the job behind [`rollout`], for those who watch its [events](rollout_core::event::Event) or resume it.

mod auto_start;
mod data;
mod eval;
mod evaluation;
mod question;
mod record;
mod run;
mod runner;
pub mod score;
mod seeds;
mod setup;
mod summary;
mod text;
mod tools;
mod version;

pub use crate::config::load_config;
pub use auto_start::AutoStartError;
pub use data::{BenchmarkItem, DataError, UnknownId, load_questions, load_tasks, select, tasks_from};
pub use eval::{Eval, rollout};
pub use question::DEFAULT_SYSTEM_PROMPT;
pub use rollout_core::row::{TaskResult, ToolCallRecord, Trajectory, Unnumbered};
pub use rollout_core::summary::RolloutSummary;
pub use run::{EvalError, EvalOutcome, LostServer, Run, question_hash};
pub use runner::{AgentRunner, QuickError, QuickOptions, QuickResult, StartedRunner, quick_rollout};
pub use setup::{SetupError, judge};
pub use tools::ToolServerError;
