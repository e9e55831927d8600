//! The job directory: layout, atomic writes, journal, captured output, redaction, and what reads it again.

pub mod atomic;
pub mod journal;
pub mod layout;
pub mod log;
pub mod provenance;
pub mod python_json;
pub mod redact;
pub mod rows;
pub mod saved;
pub mod tasks;
