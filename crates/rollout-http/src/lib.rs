//! The HTTP listener that every server of Rollout uses.
//!
//! [`serve`] accepts connections within [`ConnectionLimits`] and stops gracefully. What a server does with a
//! request is an [`axum::Router`] of its own. [`AccessGuard`] checks the `Host` and the token of each request.
//! [`read_json_body`] reads a body up to a limit of bytes and time. [`serve_streams`] accepts connections of a
//! protocol in which HTTP is only the beginning, such as that of a proxy.
//!
//! ```no_run
//! use std::net::Ipv4Addr;
//!
//! use axum::{Router, routing::get};
//! use rollout_http::{AccessGuard, ConnectionLimits, serve};
//! use tokio::net::TcpListener;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> std::io::Result<()> {
//! let host = Ipv4Addr::LOCALHOST.into();
//! let router = Router::new().route("/health", get(async || "ok"));
//! let router = AccessGuard::new(host, None).protect(router, |denied| (denied.status(), denied.to_string()));
//! let listener = TcpListener::bind((host, 0)).await?;
//! serve(listener, router, ConnectionLimits::default(), CancellationToken::new()).await
//! # }
//! ```
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod access;
mod body;
mod idle;
mod listen;

pub use access::{AccessError, AccessGuard, AccessToken, InvalidToken};
pub use body::{BodyError, read_json_body};
pub use listen::{ConnectionLimits, StreamConnection, serve, serve_streams};
