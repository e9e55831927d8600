//! Many rollouts at once: what `generate` and `evaluate` run, keep and resume.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod engine;
mod groups;
mod options;
mod outputs;
mod resuming;
mod saving;
mod support;
