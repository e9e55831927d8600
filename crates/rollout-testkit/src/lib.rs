//! Fixtures for Rollout's own tests: jobs in a temporary directory, and an environment that does nothing.

mod idle;
mod job;
mod task;

pub use idle::IdleProvider;
pub use job::{Finished, Running, TestJob};
pub use task::TestTask;
