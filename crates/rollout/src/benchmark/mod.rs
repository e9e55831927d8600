//! Benchmarks: a file of questions becomes answers, scores, trajectories and a summary.

mod data;

pub use data::BenchmarkItem;
