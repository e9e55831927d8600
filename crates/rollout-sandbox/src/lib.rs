//! An embedded container engine.

pub mod build;
