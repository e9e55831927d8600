//! The way out of an environment with an allow-list: a proxy on the host that checks every host.
//!
//! The environment itself has no network. Its programs find the proxy by the usual variables, at a port of their own
//! loopback, which the environment carries to the host. Names are resolved on the host, and addresses are checked after
//! that.

mod request;

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, lookup_host},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::request::{ProxyRequest, RequestKind};
use rollout_core::hosts::HostList;
use rollout_http::{ConnectionLimits, StreamConnection, serve_streams};

/// The most bytes of the head of a request.
const MAX_HEAD: usize = 16 << 10;

/// The time that a connection to a host may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection without any traffic is closed after this time. Clients of models wait for an answer for ten minutes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// How much of a connection is in memory, in each direction.
const BUFFER_BYTES: usize = 16 << 10;

/// The most hosts that a note lists.
const MAX_REFUSED: usize = 20;

/// A proxy of one trial. It ends when it is dropped.
pub(crate) struct EgressProxy {
    address: SocketAddr,
    state: Arc<State>,
    _stop: DropGuard,
}

#[derive(Default)]
struct State {
    /// The hosts that can be reached now; none outside of a phase with an allow-list.
    allowed: Mutex<HostList>,
    refused: Mutex<BTreeSet<String>>,
}

impl EgressProxy {
    /// Starts a proxy that refuses everything.
    pub(crate) async fn start() -> io::Result<Self> {
        Self::start_within(ConnectionLimits::default(), IDLE_TIMEOUT).await
    }

    async fn start_within(limits: ConnectionLimits, idle: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let stop = CancellationToken::new();
        let serving = serve_streams(listener, limits, stop.clone(), move |client| {
            let state = Arc::clone(&shared);
            async move {
                if let Err(error) = serve(client, &state, idle).await {
                    tracing::debug!(%error, "a connection through the proxy failed");
                }
            }
        });
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!(%error, "the proxy of a trial ended");
            }
        });
        Ok(Self { address, state, _stop: stop.drop_guard() })
    }

    /// Its address on the host.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the hosts that can be reached from now on. Open connections stay.
    pub(crate) fn allow(&self, hosts: HostList) {
        *self.state.allowed.lock().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    /// The hosts that were asked for and are not allowed.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.state.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

async fn serve(mut connection: StreamConnection, state: &State, idle: Duration) -> io::Result<()> {
    let Some((head, rest)) = read_head(&mut connection.stream).await? else { return Ok(()) };
    connection.begin();
    let client = &mut connection.stream;
    let Some(request) = ProxyRequest::parse(&head) else {
        return answer(
            client,
            "400 Bad Request",
            "this server is a proxy: request a complete URL, or use CONNECT",
        )
        .await;
    };
    let mut server = match connect(&request, state).await {
        Ok(server) => server,
        Err(Refusal::Host) => {
            let text = format!("{} is not in allowed_hosts of the task", request.host);
            return answer(client, "403 Forbidden", &text).await;
        }
        Err(Refusal::Unreachable(error)) => {
            let text = format!("cannot connect to {}:{}: {error}", request.host, request.port);
            return answer(client, "502 Bad Gateway", &text).await;
        }
    };
    match &request.kind {
        RequestKind::Connect => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
        RequestKind::Forward(head) => server.write_all(head).await?,
    }
    server.write_all(&rest).await?;
    relay(client, &mut server, idle).await
}

/// Copies in both directions until both have ended, or until nothing has moved for the idle time.
async fn relay(client: &mut TcpStream, server: &mut TcpStream, idle: Duration) -> io::Result<()> {
    let moved = AtomicU64::new(0);
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let both = async {
        tokio::try_join!(
            copy(&mut from_client, &mut to_server, &moved),
            copy(&mut from_server, &mut to_client, &moved)
        )
    };
    let silence = async {
        let mut before = moved.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(idle).await;
            let now = moved.load(Ordering::Relaxed);
            if now == before {
                return;
            }
            before = now;
        }
    };
    tokio::select! {
        ended = both => ended.map(drop),
        () = silence => Ok(()),
    }
}

/// Copies to the end, and counts the parts that were read and written.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        moved.fetch_add(1, Ordering::Relaxed);
        to.write_all(&buffer[..read]).await?;
        moved.fetch_add(1, Ordering::Relaxed);
    }
}

enum Refusal {
    Host,
    Unreachable(io::Error),
}

async fn connect(request: &ProxyRequest, state: &State) -> Result<TcpStream, Refusal> {
    let allowed = state.allowed.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let refuse = || {
        let mut refused = state.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < MAX_REFUSED {
            refused.insert(request.host.clone());
        }
        Refusal::Host
    };
    if !allowed.allows_name(&request.host) {
        return Err(refuse());
    }
    let connected = timeout(CONNECT_TIMEOUT, async {
        let found = lookup_host((request.host.as_str(), request.port)).await.map_err(Refusal::Unreachable)?;
        let addresses: Vec<SocketAddr> = found.filter(|found| allowed.allows_address(found.ip())).collect();
        if addresses.is_empty() {
            return Err(refuse());
        }
        TcpStream::connect(addresses.as_slice()).await.map_err(Refusal::Unreachable)
    });
    connected.await.unwrap_or_else(|_| Err(Refusal::Unreachable(io::ErrorKind::TimedOut.into())))
}

/// Reads up to the end of the head. Returns it, and the bytes after it; none if the client sends no request.
async fn read_head(client: &mut TcpStream) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = client.read(&mut chunk).await?;
        if read == 0 || head.len() + read > MAX_HEAD {
            return Ok(None);
        }
        head.extend_from_slice(&chunk[..read]);
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = head.split_off(end + 4);
            return Ok(Some((head, rest)));
        }
    }
}

async fn answer(client: &mut TcpStream, status: &str, text: &str) -> io::Result<()> {
    let body = format!("rollout: {text}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await?;
    client.write_all(body.as_bytes()).await?;
    client.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each connection with one text, and returns what it received.
    async fn server(listener: TcpListener) -> String {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut received = vec![0; 4096];
        let count = client.read(&mut received).await.unwrap();
        client
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            .await
            .unwrap();
        String::from_utf8_lossy(&received[..count]).into_owned()
    }

    async fn ask(proxy: &EgressProxy, request: &str) -> String {
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn hosts(patterns: &[&str]) -> HostList {
        HostList::new(patterns.iter().map(|pattern| pattern.parse().unwrap()))
    }

    #[tokio::test]
    async fn only_listed_hosts_are_reached_and_the_others_are_noted() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = EgressProxy::start().await.unwrap();
        let get = format!(
            "GET http://127.0.0.1:{port}/page?x HTTP/1.1\r\nHost: other\r\nProxy-Connection: keep-alive\r\n\r\n"
        );
        assert!(ask(&proxy, &get).await.starts_with("HTTP/1.1 403"));
        proxy.allow(hosts(&["127.0.0.1", "localhost"]));
        let (received, answer) = tokio::join!(server(listener), ask(&proxy, &get));
        assert!(answer.ends_with("ok"), "{answer}");
        assert_eq!(
            received,
            format!("GET /page?x HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n")
        );
        let other = ask(&proxy, "CONNECT elsewhere.test:443 HTTP/1.1\r\n\r\n").await;
        assert!(other.contains("elsewhere.test is not in allowed_hosts"), "{other}");
        assert_eq!(proxy.refused(), ["127.0.0.1", "elsewhere.test"]);
    }

    #[tokio::test]
    async fn a_listed_name_does_not_lead_to_an_address_of_this_machine() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = EgressProxy::start().await.unwrap();
        proxy.allow(hosts(&["localhost"]));
        let connect = format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n");
        assert!(ask(&proxy, &connect).await.starts_with("HTTP/1.1 403"));
    }

    #[tokio::test]
    async fn a_tunnel_carries_bytes_in_both_directions() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = EgressProxy::start().await.unwrap();
        proxy.allow(hosts(&["127.0.0.0/8"]));
        let connect = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nhello");
        let (received, answer) = tokio::join!(server(listener), ask(&proxy, &connect));
        assert_eq!(received, "hello");
        assert!(answer.starts_with("HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK"), "{answer}");
    }

    #[tokio::test]
    async fn what_is_not_a_request_for_a_proxy_is_answered_or_dropped() {
        let proxy = EgressProxy::start().await.unwrap();
        assert!(ask(&proxy, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        let long = format!("GET http://a/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(MAX_HEAD));
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        // The proxy may close before everything is sent.
        let _ = client.write_all(long.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        assert!(answer.is_empty());
    }

    /// A limit that a test waits for. A request on a busy machine arrives within it.
    const SHORT: Duration = Duration::from_secs(2);

    /// Everything that arrives until the proxy closes a connection, which it does long before a default limit.
    async fn rest(client: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        // A connection that is cut may end with an error.
        let _ = timeout(Duration::from_secs(60), client.read_to_end(&mut bytes)).await.expect("it is closed");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[tokio::test]
    async fn a_client_that_does_not_complete_its_request_is_disconnected() {
        let limits = ConnectionLimits { first_head_time: SHORT, ..ConnectionLimits::default() };
        let proxy = EgressProxy::start_within(limits, IDLE_TIMEOUT).await.unwrap();
        for sent in ["", "CONNECT a.test:443 HTTP/1.1\r\n"] {
            let mut client = TcpStream::connect(proxy.address()).await.unwrap();
            client.write_all(sent.as_bytes()).await.unwrap();
            assert_eq!(rest(&mut client).await, "", "{sent}");
        }
    }

    #[tokio::test]
    async fn unfinished_requests_beyond_the_limit_do_not_keep_others_waiting() {
        let patient = Duration::from_secs(600);
        let limits =
            ConnectionLimits { max_connections: 4, first_head_time: patient, ..ConnectionLimits::default() };
        let proxy = EgressProxy::start_within(limits, IDLE_TIMEOUT).await.unwrap();
        let mut unfinished = Vec::new();
        for _ in 0..8 {
            unfinished.push(TcpStream::connect(proxy.address()).await.unwrap());
        }
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"GET http://a.test/ HTTP/1.1\r\n\r\n").await.unwrap();
        assert!(rest(&mut client).await.starts_with("HTTP/1.1 403"));
        // The one that waited for longest has left.
        assert_eq!(rest(&mut unfinished[0]).await, "");
    }

    #[tokio::test]
    async fn a_tunnel_without_traffic_is_closed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = EgressProxy::start_within(ConnectionLimits::default(), SHORT).await.unwrap();
        proxy.allow(hosts(&["127.0.0.0/8"]));
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        // It never says anything, and stays open.
        let (_server, _) = listener.accept().await.unwrap();
        assert!(rest(&mut client).await.starts_with("HTTP/1.1 200"));
    }
}
