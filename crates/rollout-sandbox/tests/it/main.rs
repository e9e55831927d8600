//! The engine and its builds through the public interface, on real namespaces, mounts and cgroups.

#![expect(clippy::unwrap_used, reason = "a failed setup fails the test")]

mod build;
mod common;
mod dockerfiles;
mod escapes;
mod exec;
mod faults;
mod files;
mod imports;
mod isolation;
mod kill;
mod layers;
mod limits;
mod machine;
mod nested;
mod oci_answers;
mod project;
mod pulled;
mod pulls;
mod registry;
mod snapshot;
mod stages;
mod store;
mod user;
