//! The tool server: real tools for models, over HTTP.
//!
//! A [`Resource`] is a kind of tools that belong together, such as `doc`. Whoever wants to use them opens a
//! [`Session`] of it, which keeps what has to stay between two calls, and closes it in the end.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod arguments;
mod failure;
mod resource;
pub mod vm;
pub mod web;

pub use failure::{Code, ToolError};
pub use resource::{Call, Params, Resource, Session, ToolSpec};
