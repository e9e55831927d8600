//! Job and task configuration: typed, validated, every problem with its source line.

mod job;
mod quantity;
mod task;

pub use job::*;
pub use quantity::*;
pub use task::*;
