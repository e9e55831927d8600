//! Results in the formats of other tools.

pub mod eval_log;
