//! Metrics of benchmarks, as those who score answers use them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod docs;
mod judge;
mod python;
