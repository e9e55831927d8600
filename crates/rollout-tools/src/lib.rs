//! The tool server: real tools for models, over HTTP.
//!
//! A [`Resource`] is a group of related tools, such as `doc`. A client opens a [`Session`] of it, which keeps
//! the state between two calls, and closes it at the end.
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
