//! The records of a job on disk, and their readers.
//!
//! ```text
//! job directory ──saved──▶ trials, one by one ──▶ export::<format> ──▶ files ──▶ hub
//!                               └──────────────▶ compare, stats
//! ```
//!
//! [`layout`] defines the paths in a job directory, [`journal`] is the authoritative record of a job, [`rows`] are the
//! rollouts of models, and [`saved`] reads all of them in one form. [`export`], [`compare`] and [`stats`] use only
//! [`saved`]. [`notes`] are the tags and comments of people, and [`causes`] groups trials by why they failed.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod atomic;
pub mod causes;
pub mod compare;
pub mod export;
pub mod hub;
pub mod identity;
pub mod import;
pub mod journal;
pub mod layout;
pub mod lines;
pub mod metadata;
pub mod notes;
pub mod rows;
pub mod samples;
pub mod saved;
pub mod stats;
pub mod tasks;
