//! The tool server: real tools for models, over HTTP.
//!
//! A [`Resource`] is a kind of tools that belong together, such as `doc`. Whoever wants to use them opens a
//! [`Session`] of it, which keeps what has to stay between two calls, and closes it in the end.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod arguments;
mod code;
mod config;
pub mod doc;
mod environments;
mod forms;
mod helper;
mod helper_process;
mod mcp;
pub mod rag;
mod resource;
mod seed;
pub mod server;
pub mod sql;
pub mod vm;
pub mod web;

pub use config::ToolsConfig;
pub use helper::{HELPER_ARG, Helper};
pub use helper_process::helper_main;
pub use resource::{Call, ErrorCode, Params, PlannedUse, Resource, Session, ToolError, ToolSpec};
