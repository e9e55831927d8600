//! Accepts a limited number of connections, none of which can block the others.

use std::{io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{self, Next},
};
use futures_util::future::BoxFuture;
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

use crate::idle::{Busy, Connection, GuardedBody, IdleConnections};

/// A pause for the system to free file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// The limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// The most open connections. Another one replaces the connection that has been idle for longest; if none
    /// is idle, it waits.
    pub max_connections: usize,
    /// The timeout for the head of the first request of a connection.
    pub first_head_time: Duration,
    /// The timeout for the head of a later request, and how long a connection stays open without one.
    pub head_time: Duration,
    /// How long running responses may take when the server stops.
    pub grace: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            // Clients send a request right after they connect.
            first_head_time: Duration::from_secs(10),
            // Longer than clients keep idle connections, so that none is closed just when it is used.
            head_time: Duration::from_secs(120),
            grace: Duration::from_secs(10),
        }
    }
}

/// Serves the routes until `stop` is cancelled, then waits for the running responses.
///
/// If the listener itself fails, `stop` is cancelled as well, so that everything else that waits for it ends
/// too.
pub fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stop: CancellationToken,
) -> BoxFuture<'static, io::Result<()>> {
    let stopped = stop.clone();
    Box::pin(accept(listener, limits, stop, move |stream, place| {
        serve_connection(stream, router.clone(), limits, place, stopped.clone())
    }))
}

/// Accepts connections of another protocol within the same limits until `stop` is cancelled, which also ends all
/// connections.
///
/// `handle` serves one connection. Until it calls [`StreamConnection::begin`], the connection counts as idle, and has
/// [`first_head_time`](ConnectionLimits::first_head_time) for the head of its request.
pub fn serve_streams<F>(
    listener: TcpListener,
    limits: ConnectionLimits,
    stop: CancellationToken,
    handle: impl Fn(StreamConnection) -> F + Send + Sync + 'static,
) -> BoxFuture<'static, io::Result<()>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let stopped = stop.clone();
    Box::pin(accept(listener, limits, stop, move |stream, place| {
        let handled = handle(StreamConnection { stream, place: Arc::clone(&place), _busy: None });
        let stopped = stopped.clone();
        async move {
            tokio::select! {
                () = handled => {}
                () = said_nothing(&place, limits) => {}
                () = place.ended() => {}
                () = stopped.cancelled() => {}
            }
        }
    }))
}

/// A connection of a protocol other than HTTP.
#[derive(Debug)]
pub struct StreamConnection {
    /// The connection.
    pub stream: TcpStream,
    place: Arc<Connection>,
    _busy: Option<Busy>,
}

impl StreamConnection {
    /// The head of the request has arrived: from now on, no other connection replaces this one.
    pub fn begin(&mut self) {
        self._busy = Some(self.place.begin());
    }
}

async fn accept<F>(
    listener: TcpListener,
    limits: ConnectionLimits,
    stop: CancellationToken,
    handle: impl Fn(TcpStream, Arc<Connection>) -> F + Send + Sync,
) -> io::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(limits.max_connections));
    let idle = Arc::new(IdleConnections::default());
    let connections = TaskTracker::new();
    let accept = async {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let place = match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => place,
                Err(_) => {
                    idle.end_oldest();
                    let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
                    place
                }
            };
            let handled = handle(stream, idle.enter());
            connections.spawn(async move {
                handled.await;
                drop(place);
            });
        }
    };
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        ended = accept => ended,
    };
    drop(listener);
    stop.cancel();
    connections.close();
    connections.wait().await;
    ended
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    limits: ConnectionLimits,
    place: Arc<Connection>,
    stop: CancellationToken,
) {
    // A response that waits for more data to fill a packet would delay its client.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_time);
    let counted = Arc::clone(&place);
    let router = router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let busy = counted.begin();
        async move { next.run(request).await.map(|body| Body::new(GuardedBody::new(body, busy))) }
    }));
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    // An error of a client only ends its own connection.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = said_nothing(&place, limits) => {}
        () = place.ended() => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(limits.grace, connection).await;
        }
    }
}

/// Waits until a connection without a request has had the time for its head.
async fn said_nothing(place: &Connection, limits: ConnectionLimits) {
    tokio::time::sleep(limits.first_head_time).await;
    if place.has_begun() {
        std::future::pending::<()>().await;
    }
}

/// Whether the listener itself is broken. Other errors are clients that disconnected, or temporary shortages.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected | io::ErrorKind::Unsupported
    )
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::{body::Body, routing::get};
    use futures_util::stream;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        sync::Notify,
        task::JoinHandle,
    };

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// How long a test waits before it fails.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A limit that a test waits for. A request on a busy machine arrives within it.
    const SHORT: Duration = Duration::from_secs(2);

    struct Running {
        address: SocketAddr,
        stop: CancellationToken,
        served: JoinHandle<io::Result<()>>,
    }

    impl Running {
        async fn start(router: Router, limits: ConnectionLimits) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let stop = CancellationToken::new();
            let served = tokio::spawn(serve(listener, router, limits, stop.clone()));
            Self { address, stop, served }
        }

        async fn connect(&self, bytes: &[u8]) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream
        }
    }

    fn quick() -> Router {
        Router::new().route("/", get(async || "quick"))
    }

    fn limits() -> ConnectionLimits {
        ConnectionLimits {
            first_head_time: PATIENCE,
            head_time: PATIENCE,
            grace: PATIENCE,
            ..ConnectionLimits::default()
        }
    }

    async fn in_time<T>(waiting: impl Future<Output = T>) -> T {
        tokio::time::timeout(PATIENCE / 2, waiting).await.expect("it happens in time")
    }

    /// Everything that arrives until the server closes the connection.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        // A connection that is cut may end with an error.
        let _ = in_time(stream.read_to_end(&mut bytes)).await;
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[tokio::test]
    async fn a_connection_without_a_whole_request_is_closed() {
        let server = Running::start(quick(), ConnectionLimits { head_time: SHORT, ..limits() }).await;
        let mut kept_alive = server.connect(REQUEST).await;
        let mut unfinished = Vec::new();
        for sent in [&b""[..], b"GET / HT", &REQUEST[..REQUEST.len() - 2]] {
            unfinished.push(server.connect(sent).await);
        }
        for mut stream in unfinished {
            assert!(!rest(&mut stream).await.contains("quick"));
        }
        assert!(rest(&mut kept_alive).await.ends_with("quick"));
    }

    #[tokio::test]
    async fn a_connection_is_not_idle_while_its_response_is_sent() {
        let slow = async || {
            tokio::time::sleep(SHORT * 2).await;
            "slow"
        };
        let router = Router::new().route("/", get(slow));
        let server = Running::start(router, ConnectionLimits { head_time: SHORT, ..limits() }).await;
        assert!(rest(&mut server.connect(REQUEST).await).await.ends_with("slow"));
    }

    #[tokio::test]
    async fn a_silent_new_connection_is_closed_long_before_one_that_has_sent_a_request() {
        let mut limit = SHORT;
        let (server, mut kept_alive) = loop {
            let limits = ConnectionLimits { first_head_time: limit, ..limits() };
            let server = Running::start(quick(), limits).await;
            let mut stream = server.connect(b"").await;
            let sent = stream.write_all(REQUEST).await;
            if sent.is_ok() && in_time(stream.read(&mut [0; 1024])).await.is_ok_and(|read| read > 0) {
                break (server, stream);
            }
            // On a busy machine the request came too late.
            limit *= 2;
            assert!(limit < PATIENCE / 2);
        };
        let silent = server.connect(b"").await;
        let half_sent = server.connect(b"GET / HT").await;
        for mut stream in [silent, half_sent] {
            assert_eq!(rest(&mut stream).await, "");
        }
        kept_alive.write_all(REQUEST).await.unwrap();
        assert_ne!(in_time(kept_alive.read(&mut [0; 1024])).await.unwrap(), 0);
    }

    #[test]
    fn a_new_connection_has_at_most_ten_seconds_for_its_first_request() {
        let limits = ConnectionLimits::default();
        assert!(limits.first_head_time <= Duration::from_secs(10), "{limits:?}");
    }

    #[tokio::test]
    async fn half_sent_heads_beyond_the_limit_do_not_block_others() {
        let server = Running::start(quick(), ConnectionLimits { max_connections: 4, ..limits() }).await;
        let mut half_sent = Vec::new();
        for _ in 0..8 {
            half_sent.push(server.connect(b"GET / HT").await);
        }
        let mut stream = server.connect(REQUEST).await;
        assert_ne!(in_time(stream.read(&mut [0; 1024])).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_client_beyond_the_limit_waits_while_all_others_are_served() {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (here, there) = (Arc::clone(&begun), Arc::clone(&go));
        let slow = async move || {
            here.notify_one();
            there.notified().await;
            "done"
        };
        let server = Running::start(
            Router::new().route("/", get(slow)),
            ConnectionLimits { max_connections: 1, ..limits() },
        )
        .await;
        let mut first = server.connect(REQUEST).await;
        in_time(begun.notified()).await;
        let mut second = server.connect(REQUEST).await;
        let mut byte = [0];
        let early = tokio::time::timeout(SHORT, second.read(&mut byte)).await;
        assert!(early.is_err(), "it is served before the first one has left");
        go.notify_one();
        assert_ne!(in_time(first.read(&mut [0; 1024])).await.unwrap(), 0);
        drop(first);
        go.notify_one();
        assert_eq!(in_time(second.read(&mut byte)).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_running_response_is_finished_when_the_server_stops() {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (here, there) = (Arc::clone(&begun), Arc::clone(&go));
        let slow = Router::new().route(
            "/",
            get(async move || {
                here.notify_one();
                there.notified().await;
                "done"
            }),
        );
        let server = Running::start(slow, limits()).await;
        let mut stream = server.connect(REQUEST).await;
        in_time(begun.notified()).await;
        server.stop.cancel();
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        go.notify_one();
        assert!(rest(&mut stream).await.ends_with("done"));
        in_time(server.served).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_response_that_never_ends_is_cut_when_the_server_stops() {
        let endless = Router::new()
            .route("/", get(async || Body::from_stream(stream::pending::<io::Result<Vec<u8>>>())));
        let server = Running::start(endless, ConnectionLimits { grace: SHORT, ..limits() }).await;
        let mut stream = server.connect(REQUEST).await;
        assert_ne!(in_time(stream.read(&mut [0; 1024])).await.unwrap(), 0);
        server.stop.cancel();
        rest(&mut stream).await;
        in_time(server.served).await.unwrap().unwrap();
    }
}
