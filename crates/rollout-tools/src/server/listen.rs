//! Runs a server: serves, closes idle sessions, and closes all of them at the end.

use std::{io, sync::Arc};

use futures_util::future::BoxFuture;
use rollout_http::{AccessGuard, ConnectionLimits};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{routes, service::Service};

/// Serves until it is stopped, then closes all sessions.
pub fn serve(
    service: Arc<Service>,
    listener: TcpListener,
    guard: AccessGuard,
    stop: CancellationToken,
) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(async move {
        let router = routes::router(Arc::clone(&service), guard, stop.clone());
        let limits = ConnectionLimits {
            max_connections: service.config.max_connections,
            ..ConnectionLimits::default()
        };
        let sessions = async {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = service.expire_sessions() => {}
            }
            // Closing the sessions ends their calls, and so the responses.
            service.stop().await;
        };
        let (served, ()) =
            tokio::join!(rollout_http::serve(listener, router, limits, stop.clone()), sessions);
        // Sessions of the last calls are closed when those have ended.
        service.stop().await;
        served
    })
}
