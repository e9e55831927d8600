//! The server: tools over HTTP, in sessions, within limits.
//!
//! [`Registry`] knows the tools and [`Service`] uses them; [`serve`] lets clients ask, as far as the [`Guard`] lets
//! them in.

mod config;
mod envelope;
mod guard;
mod listen;
mod registry;
mod request;
mod routes;
mod service;
mod sessions;
mod warmup;

pub use config::ServerConfig;
pub(crate) use config::{at_least_one, seconds};
pub use envelope::{Envelope, Meta};
pub use guard::{Guard, NotAToken, Refused, Token};
pub use listen::serve;
pub use registry::{Found, Registry};
pub use service::{Action, Service};
