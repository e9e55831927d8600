//! The guest, driven by its client as the first process of a namespace of its own, without any engine.
#![cfg(all(feature = "docker", target_os = "linux"))]

mod commands;
mod cuts;
mod ends;
mod files;
mod host;
mod host_websocket;
mod lost;
mod session;
mod support;
mod tunnel;
mod watch;
