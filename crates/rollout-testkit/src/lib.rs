//! Fixtures for Rollout's own tests: jobs in a temporary directory, and an environment that does nothing.

mod docker;
mod gate;
mod idle;
mod job;
mod leftover;
mod repo;
mod server;
mod services;
mod task;
mod timed;
mod user;

pub use docker::{Engine, Holdings, OwnEngine};
pub use gate::{Arrival, Gate};
pub use idle::IdleProvider;
pub use job::{Finished, Running, TestJob};
pub use repo::TestRepo;
pub use server::FileServer;
pub use services::Registry;
pub use task::TestTask;
pub use timed::{TimedProvider, Times};
