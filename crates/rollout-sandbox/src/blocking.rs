//! Blocking work, run on threads reserved for it.

use std::{io, panic::resume_unwind};

use tokio::task::spawn_blocking;

/// Runs blocking file work; a panic in it continues in the caller.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// Runs blocking file work; a panic in it, or the end of the runtime, is an error.
pub(crate) async fn blocking_io<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}
