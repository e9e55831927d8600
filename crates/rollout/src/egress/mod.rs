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
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, lookup_host},
    task::JoinHandle,
    time::timeout,
};

use self::request::{ProxyRequest, RequestKind};
use rollout_core::hosts::HostList;

/// The most bytes of the head of a request.
const MAX_HEAD: usize = 16 << 10;

/// The time that a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that a connection to a host may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The most hosts that a note lists.
const MAX_REFUSED: usize = 20;

/// A proxy of one trial. It ends when it is dropped.
pub(crate) struct EgressProxy {
    address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
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
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((client, _)) => {
                            let state = Arc::clone(&shared);
                            connections.spawn(async move {
                                if let Err(error) = serve(client, &state).await {
                                    tracing::debug!(%error, "a connection through the proxy failed");
                                }
                            });
                        }
                        // The process has too many open files; others are closed meanwhile.
                        Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, state, accepting })
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

impl Drop for EgressProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(mut client: TcpStream, state: &State) -> io::Result<()> {
    let head = timeout(HEAD_TIMEOUT, read_head(&mut client)).await;
    let (head, rest) = match head {
        Ok(Ok(Some(head))) => head,
        Ok(Err(error)) => return Err(error),
        Ok(Ok(None)) | Err(_) => return Ok(()),
    };
    let Some(request) = ProxyRequest::parse(&head) else {
        return answer(&mut client, "400 Bad Request", "this is a proxy: send it whole URLs, or CONNECT")
            .await;
    };
    let mut server = match connect(&request, state).await {
        Ok(server) => server,
        Err(Refusal::Host) => {
            let text = format!("{} is not in allowed_hosts of the task", request.host);
            return answer(&mut client, "403 Forbidden", &text).await;
        }
        Err(Refusal::Unreachable(error)) => {
            let text = format!("cannot connect to {}:{}: {error}", request.host, request.port);
            return answer(&mut client, "502 Bad Gateway", &text).await;
        }
    };
    match &request.kind {
        RequestKind::Connect => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
        RequestKind::Forward(head) => server.write_all(head).await?,
    }
    server.write_all(&rest).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
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
}
