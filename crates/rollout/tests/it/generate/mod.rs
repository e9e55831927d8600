//! Many rollouts at once: what `generate` and `evaluate` run, keep and resume.

mod engine;
mod error_kinds;
mod groups;
mod options;
mod outputs;
mod resuming;
mod saving;
pub(crate) mod support;
