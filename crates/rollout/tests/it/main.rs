//! The tests of the library, through its public interface: one program, one module for each subject.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod benchmark;
mod client;
mod config;
mod dataset;
mod datasets;
mod fetching;
mod generate;
mod guest;
mod hub;
mod metric;
mod records;
mod registry;
mod registry_git;
mod rubric;
mod samples;
mod statistics;
mod tools;
mod turns;
mod verifiers;
