//! The data that passes between the parts of Rollout: names and ids, events, results, rows, messages.
//!
//! Data only: nothing here waits, opens a connection or knows a provider. Every other crate of Rollout may use this one,
//! and this one uses none of them. Read [`name`] and [`result`] first: a trial has a name and comes to a result;
//! [`event`] reports both while a job runs.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod address;
pub mod advantage;
pub mod event;
mod failure;
pub mod headline;
pub mod lenient_base64;
pub mod message;
pub mod moment;
pub mod name;
pub mod provenance;
pub mod python_json;
pub mod quantity;
pub mod redact;
pub mod response;
pub mod result;
pub mod row;
pub mod sample;
pub mod statistics;
pub mod summary;
pub mod text;
pub mod xml;
