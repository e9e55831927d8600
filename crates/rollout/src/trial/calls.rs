//! Calls to an environment, each with a timeout.

use std::{future::Future, time::Duration};

use super::failure::Failure;
use rollout_core::event::Phase;
use rollout_env::EnvironmentError;

/// An environment that does not answer a call within this time is lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Waits for a call that a phase needs.
pub(super) async fn required<T>(
    phase: Phase,
    call: impl Future<Output = Result<T, EnvironmentError>>,
) -> Result<T, Failure> {
    bounded(call).await.map_err(|error| Failure::environment(phase, &error))
}

/// Waits for a call.
pub(super) async fn bounded<T>(
    call: impl Future<Output = Result<T, EnvironmentError>>,
) -> Result<T, EnvironmentError> {
    bounded_after(Duration::ZERO, call).await
}

/// Waits for a call that should end by itself after `limit`.
pub(super) async fn bounded_after<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, EnvironmentError>>,
) -> Result<T, EnvironmentError> {
    tokio::time::timeout(limit + CALL_TIMEOUT, call).await.unwrap_or_else(|_| {
        let seconds = CALL_TIMEOUT.as_secs();
        Err(EnvironmentError::Lost(format!("the environment did not answer within {seconds} seconds")))
    })
}
