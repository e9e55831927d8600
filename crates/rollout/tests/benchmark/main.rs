//! Benchmarks through the library: what is asked, what is written, and what tools are called.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod ends;
mod files;
mod single;
mod support;
mod tools;
