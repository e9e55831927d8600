//! The guest, driven by its client as the first process of a namespace of its own, without any engine.
#![cfg(all(feature = "docker", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "guest/support.rs"]
mod support;

#[path = "guest/commands.rs"]
mod commands;
#[path = "guest/ends.rs"]
mod ends;
#[path = "guest/files.rs"]
mod files;
#[path = "guest/lost.rs"]
mod lost;
