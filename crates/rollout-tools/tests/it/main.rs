//! The tests of the tools, through their public interface: one program, one module for each subject.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod documents;
mod web;
