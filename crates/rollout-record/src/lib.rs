//! What is kept of a job, and what reads it again.
//!
//! ```text
//! job directory ──saved──▶ trials, one by one ──▶ export::<format> ──▶ files ──▶ hub
//!                               └──────────────▶ compare, stats
//! ```
//!
//! [`layout`] says where things lie, [`journal`] is the truth about a job, [`rows`] are the rollouts of models, and
//! [`saved`] reads all of them in one form. What comes after reads only that: [`export`], [`compare`], [`stats`].
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod atomic;
pub mod compare;
pub mod export;
pub mod hub;
pub mod identity;
pub mod journal;
pub mod layout;
pub mod lines;
pub mod metadata;
pub mod rows;
pub mod samples;
pub mod saved;
pub mod stats;
pub mod tasks;
