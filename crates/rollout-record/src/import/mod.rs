//! Job directories of other programs, converted to job directories of Rollout.
//!
//! An import reads only the other directory and writes only a new one. What the other program did not record is absent.

pub mod harbor;
