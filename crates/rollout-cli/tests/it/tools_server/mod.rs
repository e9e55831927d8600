//! `rollout tools` over real HTTP, by the real command.

mod code;
mod command;
mod hostile;
mod mcp;
mod protocol;
pub(crate) mod server;
mod sessions;
