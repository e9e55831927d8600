//! The turns of one rollout, from its input to its completion.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Error, Interaction, Limits, Model, RolloutInput, State};

/// Why a rollout has no state to show.
#[derive(Debug, Clone, PartialEq)]
pub enum Halt {
    /// The server refuses the key: no other rollout can do better.
    Unauthorized(Error),
    /// Somebody cancelled it. Its cleanups ran.
    Cancelled,
}

/// Leads a model through an example until a stop condition is met. What goes wrong on the way is in the state.
pub async fn rollout(
    _interaction: &dyn Interaction,
    _limits: &Limits,
    input: RolloutInput,
    model: Arc<Model>,
    _cancel: &CancellationToken,
) -> Result<State, Halt> {
    Ok(State::new(input, model, Arc::new([])))
}
