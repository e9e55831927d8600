//! The job directory: layout, atomic writes, journal, captured output, redaction.

pub mod log;
pub mod redact;
