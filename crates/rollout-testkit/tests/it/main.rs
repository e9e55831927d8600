//! The tests of the testkit itself, and of what can be tested with its providers alone.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod costs;
mod hub;
mod kills;
mod kubernetes;
mod layout;
mod model;
mod model_server;
mod model_stream;
mod scale;
mod silence;
mod structure;
