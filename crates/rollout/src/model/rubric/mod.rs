//! How good a rollout was.

use super::State;

/// Weighs what its functions make of a rollout. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Rubric {}

/// Why a rubric cannot be used so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RubricError {
    /// Functions over a group need the whole group.
    #[error("the rubric has functions over groups, so a single rollout cannot be scored")]
    NeedsGroup,
}

impl Rubric {
    /// Whether a single rollout can be scored without its group.
    pub fn needs_group(&self) -> bool {
        false
    }

    /// Scores a rollout by itself: sets reward, metrics and the time that scoring took.
    pub async fn score_rollout(&self, _state: &mut State) -> Result<(), RubricError> {
        Ok(())
    }

    /// Scores the rollouts of one example together: sets rewards, metrics, advantages and the time that scoring took.
    pub async fn score_group(&self, _states: &mut [State]) {}
}
