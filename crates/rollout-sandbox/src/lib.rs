//! An embedded container engine.
