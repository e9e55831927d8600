//! Benchmarks: a file of questions becomes answers, scores, trajectories and a summary.
//!
//! Each question is sent to a model, which may call tools of a tool server until it answers. The answer is scored by a
//! [metric](rollout_model::metric). The run is a [job](crate::job): a question is an example, the model is the agent,
//! and the results are in a job's directory, so that an interrupted run can be resumed.
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
//! [`RolloutConfig`](crate::config::RolloutConfig) has all settings of a benchmark; [`Eval`] also accepts one that was
//! created in code. The answers are in `results.jsonl`, one [`TaskResult`] per line; their scores in `evaluation.json`;
//! and the totals in the [`RolloutSummary`]. Questions that failed and questions without a correct answer are not
//! scored and not part of the mean. An empty answer is scored.
//!
//! # One by one
//!
//! [`quick_rollout`] asks a single question, and an [`AgentRunner`] the questions that you pass to it, without files.
//! [`load_config`] and [`load_tasks`] read its inputs.
//!
//! # From here
//!
//! - [`score`] scores saved answers again, with another metric or another judge.
//! - [`Run`] is the job behind [`rollout`]: use it to watch its [events](rollout_core::event::Event) or to resume it.

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
pub use data::{BenchmarkItem, DataError, UnknownId, load_questions, load_tasks, select};
pub use eval::{Eval, rollout};
pub use question::DEFAULT_SYSTEM_PROMPT;
pub use rollout_core::row::{PREDICTED_ANSWER, TaskResult, ToolCallRecord, Trajectory, Unnumbered};
pub use rollout_core::summary::RolloutSummary;
pub use run::{EvalError, EvalOutcome, LostServer, Run, question_hash};
pub use runner::{AgentRunner, QuickError, QuickOptions, QuickResult, StartedRunner, quick_rollout};
pub use setup::{SetupError, judge};
pub use tools::ToolServerError;
