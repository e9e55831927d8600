//! The network of a phase: some tasks take it away, or give it back, while an environment runs.

use super::{calls::required, context::TrialContext, failure::Failure};
use crate::config::NetworkMode;
use rollout_core::event::Phase;
use rollout_env::{Demand, Environment};

/// Whether the network of the agent's environment changes between phases. The container then needs one.
pub(super) fn changes(context: &TrialContext<'_>) -> bool {
    let config = &context.task.config;
    let steps = config.steps.iter().flat_map(|step| [step.agent_network, step.verifier_network]);
    let phases = [config.agent_network, config.verifier_network];
    let baseline = is_on(config.network);
    phases.into_iter().chain(steps).flatten().any(|mode| is_on(Some(mode)) != baseline)
        && context.trial.provider.refusal(Demand::NetworkChanges).is_none()
}

/// Gives the environment the network of a phase; without one, that of the environment itself.
pub(super) async fn enter(
    context: &TrialContext<'_>,
    environment: &dyn Environment,
    phase: Option<NetworkMode>,
) -> Result<(), Failure> {
    if !changes(context) {
        return Ok(());
    }
    let mode = phase.or(context.task.config.network);
    required(Phase::Execute, environment.set_network(is_on(mode))).await
}

/// No provider supports an allow-list, so a task with one runs only if the job allows it, and then with the network.
fn is_on(mode: Option<NetworkMode>) -> bool {
    mode != Some(NetworkMode::NoNetwork)
}
