//! The data types that the parts of Rollout share: names and ids, events, results, rows, messages.
//!
//! This crate contains only data. It does not wait, open connections, or depend on a provider. Every other crate of
//! Rollout may use it, and it uses none of them. Read [`name`] and [`result`] first: a trial has a name and a result.
//! [`event`] reports both while a job runs.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod address;
pub mod advantage;
pub mod display;
pub mod event;
mod failure;
pub mod headline;
pub mod hosts;
pub mod lenient_base64;
pub mod lines;
pub mod message;
pub mod moment;
pub mod name;
pub mod provenance;
pub mod python_json;
pub mod quantity;
pub mod redact;
pub mod response;
pub mod result;
mod retry_after;
pub mod row;
pub mod sample;
pub mod statistics;
pub mod summary;
pub mod text;
pub mod xml;

pub use retry_after::parse_retry_after;
