//! Results for others: as Every Eval Ever has them, and on a hub.

mod eee;
mod hub;
