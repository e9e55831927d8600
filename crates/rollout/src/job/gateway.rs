//! The gateway of a job: one for all its trials, started only if an agent needs it.

use std::sync::Arc;

use super::Plan;
use rollout_gateway::{Budget, Gateway, GatewayConfig, GatewayError};

/// Starts the gateway, if an agent asks a model through it. None runs if trials are only graded again.
pub(super) async fn start(plan: &Plan) -> Result<Option<Arc<Gateway>>, GatewayError> {
    let config = plan.config();
    if config.preset_models().next().is_none() || plan.regrade.is_some() {
        return Ok(None);
    }
    let limits = &config.gateway;
    let gateway = Gateway::start(GatewayConfig {
        budget: Budget { tokens: limits.max_total_tokens, dollars: limits.max_cost, calls: limits.max_calls },
        rate_limit: limits.rate_limit,
        max_concurrent_calls: limits.max_concurrent_calls as usize,
        max_retries: limits.max_retries,
        cache: limits.cache.clone(),
        ..GatewayConfig::default()
    });
    Ok(Some(Arc::new(gateway.await?)))
}
