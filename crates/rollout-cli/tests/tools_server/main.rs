//! `rollout tools` over real HTTP, by the real command.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod code;
mod command;
mod hostile;
#[expect(dead_code, reason = "the tests of other commands read headers and lines")]
#[path = "../http/mod.rs"]
mod http;
mod mcp;
mod protocol;
mod server;
mod sessions;
