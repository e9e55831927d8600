//! Results for others: as Every Eval Ever has them, and on a hub.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod eee;
mod hub;
