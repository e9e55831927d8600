//! The tests of the tools, through their public interface: one program with one module per subject.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod documents;
mod web;
