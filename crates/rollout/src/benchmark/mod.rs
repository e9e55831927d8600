//! Benchmarks: a file of questions becomes answers, scores, trajectories and a summary.

mod data;
pub mod score;

pub use crate::config::load_config;
pub use data::{BenchmarkItem, DataError, UnknownId, load_questions, load_tasks, select, tasks_from};
