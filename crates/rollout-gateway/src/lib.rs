//! The model gateway: one listener through which agents reach models, with per-session tokens, records and limits.
//!
//! An agent gets the address of the [`Gateway`] and the token of its [`GatewaySession`] in the place of a model server
//! and its key. The gateway speaks four [`Dialect`]s. It passes each request to the upstream of the session's
//! [`ModelRoute`] with the real key, and the response back to the agent while it arrives. Each call becomes a line of
//! the session's record, a [`CallRecord`].
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod answer;
mod assemble;
mod body;
mod cache;
mod call;
mod client;
mod config;
mod copy;
mod count;
mod dialect;
mod edit;
mod endpoint;
mod exchange;
mod fair;
mod gateway;
mod parked;
mod prices;
mod record;
mod relay;
mod server;
mod session;
mod shared;
mod spending;
mod split;
mod translate;
mod upstream;
mod usage;

pub use config::{Budget, GatewayConfig, GatewayError, ModelRoute, SessionSpec, Upstream};
pub use dialect::Dialect;
pub use gateway::{Gateway, GatewaySession};
pub use prices::{PRICES_DATE, known_prices};
pub use record::{CallError, CallErrorKind, CallRecord};
pub use session::SessionSummary;
pub use translate::ChatForm;
