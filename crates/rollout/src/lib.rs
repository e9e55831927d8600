//! Rollout runs agents against tasks in isolated environments and returns rewards that can be trusted.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod agent;
pub mod config;
pub mod environment;
pub mod event;
pub mod job;
pub mod name;
pub mod record;
pub mod result;
pub mod task;
pub mod trial;
