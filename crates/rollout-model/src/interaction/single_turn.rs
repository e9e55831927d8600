//! One question, one answer.

use super::Interaction;

/// The model answers the prompt once.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleTurn;

impl Interaction for SingleTurn {
    fn max_turns(&self) -> Option<u32> {
        Some(1)
    }
}
