//! Metrics of benchmarks, as those who score answers use them.

mod docs;
mod judge;
mod python;
