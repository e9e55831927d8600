//! The server: tools over HTTP, in sessions, with limits.
//!
//! [`Registry`] finds the tools, [`Service`] runs them, and [`serve`] answers the requests of clients that pass
//! the [`AccessGuard`](rollout_http::AccessGuard).

mod config;
mod envelope;
mod listen;
mod registry;
mod request;
mod routes;
mod service;
mod sessions;
mod warmup;

pub use config::ServerConfig;
pub use envelope::Envelope;
pub use listen::serve;
pub use registry::{FoundTool, Registry};
pub use service::{Action, Service};
