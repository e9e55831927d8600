//! Calls to an environment, none of which is waited for without end.

use std::{future::Future, time::Duration};

use super::failure::Failure;
use rollout_core::event::Phase;
use rollout_env::EnvironmentError;

/// A call that an environment does not answer within this time, it never will.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Waits for a call that a phase cannot go on without.
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

/// Waits for a call that is to end by itself after `limit`.
pub(super) async fn bounded_after<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, EnvironmentError>>,
) -> Result<T, EnvironmentError> {
    tokio::time::timeout(limit + CALL_TIMEOUT, call).await.unwrap_or_else(|_| {
        let seconds = CALL_TIMEOUT.as_secs();
        Err(EnvironmentError::Lost(format!("the environment did not answer within {seconds} seconds")))
    })
}
