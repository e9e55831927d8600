//! Tests of the gateway through its public interface, against a scripted model server on loopback.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod access;
mod dialects;
mod failures;
mod limits;
mod pass_through;
mod privacy;
mod sdks;
mod support;
mod tokens;
