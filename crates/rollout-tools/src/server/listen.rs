//! Connections: a bounded number of them, none of which can hold up the others.

use std::{io, sync::Arc, time::Duration};

use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Guard, Service, routes};

/// How long a client may take to send the head of a request, and how long a connection stays without one. Longer
/// than clients keep theirs, so that none is closed just when it is used.
const HEAD_TIME: Duration = Duration::from_secs(120);

/// How long answers may take that are under way when the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// A moment for the system to get file descriptors or memory back.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until told to stop, then closes all sessions.
pub async fn serve(
    service: Arc<Service>,
    listener: TcpListener,
    guard: Guard,
    stop: CancellationToken,
) -> io::Result<()> {
    let router = routes::router(Arc::clone(&service), guard, stop.clone());
    let places = Arc::new(Semaphore::new(service.config.max_connections));
    let connections = TaskTracker::new();
    let expiry = async {
        service.expire_sessions().await;
        Ok(())
    };
    let accept = async {
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (router, stop) = (router.clone(), stop.clone());
            connections.spawn(async move {
                connection(stream, router, stop).await;
                drop(place);
            });
        }
    };
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        ended = accept => ended,
        ended = expiry => ended,
    };
    drop(listener);
    stop.cancel();
    connections.close();
    // Closing the sessions ends the calls in them, and so the answers.
    let stopped = async { tokio::join!(service.stop(), tokio::time::timeout(GRACE, connections.wait())) };
    let _ = stopped.await;
    ended
}

async fn connection(stream: TcpStream, router: axum::Router, stop: CancellationToken) {
    // An answer that waits for the next one to fill a packet would hold up its client.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    // Whatever a client does wrong is the end of its connection and nobody else's matter.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(GRACE, connection).await;
        }
    }
}

/// Whether the listener itself is broken. All else is a client that went away, or a shortage that passes.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected | io::ErrorKind::Unsupported
    )
}
