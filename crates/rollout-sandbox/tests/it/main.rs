//! The engine and its builds as their users see them, on real namespaces, mounts and cgroups.

#![expect(clippy::unwrap_used, reason = "a test whose surroundings fail has nothing left to say")]

mod build;
mod common;
mod exec;
mod faults;
mod files;
mod isolation;
mod kill;
mod limits;
mod nested;
mod snapshot;
mod user;
