//! Numbers over many rollouts, as pure functions.

mod pass;

pub use pass::{PassK, pass_all_k, pass_at_k};
