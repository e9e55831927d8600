//! The gateway of a job: one for all its trials, started only if an agent needs it.

use std::sync::Arc;

use super::Plan;
use crate::config::{AgentKind, PresetAgentConfig};
use rollout_gateway::{Budget, Gateway, GatewayConfig, GatewayError, known_prices};
use rollout_model::client::{Prices, PricesError};

/// Why the gateway of a job does not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayFailure {
    /// It cannot run on this machine.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// A price is no price.
    #[error("the prices of the models cannot be used")]
    Prices(#[from] PricesError),
}

/// Starts the gateway, if an agent asks a model through it. None runs if trials are only graded again.
pub(super) async fn start(plan: &Plan) -> Result<Option<Arc<Gateway>>, GatewayFailure> {
    let config = plan.config();
    let agents = config.agents.iter().filter_map(|agent| match &agent.kind {
        AgentKind::Preset(agent) => Some(&**agent),
        _ => None,
    });
    let models: Vec<_> = agents.filter_map(|agent: &PresetAgentConfig| agent.model.as_ref()).collect();
    if models.is_empty() || plan.regrade.is_some() {
        return Ok(None);
    }
    let own = models.iter().filter_map(|model| Some((model.name.clone(), model.price?)));
    let limits = &config.gateway;
    let gateway = Gateway::start(GatewayConfig {
        prices: Prices::new(own)?.or(known_prices())?,
        budget: Budget { tokens: limits.max_total_tokens, dollars: limits.max_cost, calls: limits.max_calls },
        rate_limit: limits.rate_limit,
        max_concurrent_calls: limits.max_concurrent_calls as usize,
        max_retries: limits.max_retries,
        cache: limits.cache.clone(),
        ..GatewayConfig::default()
    });
    Ok(Some(Arc::new(gateway.await?)))
}
