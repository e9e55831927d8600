//! WebSocket connections to guests beside other processes.

use std::{
    net::{Ipv4Addr, TcpListener},
    time::Duration,
};

use async_trait::async_trait;
use rollout::environment::{
    CopyMode, Outcome,
    guest::{Dial, DialError, Guest, GuestSession, GuestStream, KillScope},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use super::{
    cuts::Cuts,
    host::{name, spawn_host},
    support::{Container, copy_out, until},
};

/// A wait that no correct program needs in full.
const PATIENCE: Duration = Duration::from_secs(600);

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

async fn reach(port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await
}

/// Opens WebSockets over connections that are cut.
struct WebSocketDial {
    port: u16,
    token: &'static str,
    cuts: Cuts,
}

#[async_trait]
impl Dial for WebSocketDial {
    async fn dial(&self) -> Result<GuestStream, DialError> {
        let temporary = |error: std::io::Error| DialError::Temporary(error.to_string());
        let connection = self.cuts.limit(reach(self.port).await.map_err(temporary)?);
        let mut request = format!("ws://127.0.0.1:{}/", self.port).into_client_request().unwrap();
        let token = format!("Bearer {}", self.token).parse().unwrap();
        request.headers_mut().insert("authorization", token);
        GuestStream::websocket(connection, request).await
    }
}

/// A guest with a port, and a connection to it that is cut after at most this many bytes, unless it is 0.
async fn start(most: u64) -> (Container, GuestSession, u16) {
    let port = free_port();
    let (child, dir) = spawn_host(KillScope::Namespace, &[&name(), "120", &port.to_string()]);
    until(async || reach(port).await.is_ok()).await;
    let dial = WebSocketDial { port, token: "the-token", cuts: Cuts::new(most) };
    let (session, reader, writer) = GuestSession::open(dial, PATIENCE).unwrap();
    let guest = Guest::connect(reader, writer, None).await.unwrap().with_outage(PATIENCE);
    assert_eq!(guest.kill_scope(), KillScope::Namespace);
    (Container { guest, child, dir }, session, port)
}

#[tokio::test]
async fn nothing_is_lost_or_repeated_over_connections_that_are_cut() {
    let (container, session, _) = start(300_000).await;
    let ran = container.bash("for ((n = 0; n < 50000; n++)); do echo line $n; done").await;
    let expected: String = (0..50_000).map(|n| format!("line {n}\n")).collect();
    assert_eq!(ran.exit.outcome, Outcome::Code(0));
    assert!(ran.stdout == expected.as_bytes(), "the output differs");
    let source = container.path("source");
    std::fs::create_dir(&source).unwrap();
    let content: Vec<u8> =
        (0..250_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(source.join("large"), &content).unwrap();
    container.guest.copy_to(&source, &container.inside("inside"), CopyMode::Replace).await.unwrap();
    assert!(std::fs::read(container.path("inside/large")).unwrap() == content, "the copy inside differs");
    let target = container.path("target");
    std::fs::create_dir(&target).unwrap();
    container.guest.copy_from(copy_out(&container.inside("inside"), &target)).await.unwrap();
    assert!(std::fs::read(target.join("large")).unwrap() == content, "the copy outside differs");
    assert!(session.connections() > 5, "{} connections", session.connections());
    container.stop().await;
}

#[tokio::test]
async fn the_port_closes_with_the_guest_at_once() {
    let (container, session, port) = start(0).await;
    container.stop().await;
    assert!(reach(port).await.is_err());
    drop(session);
}

/// What the guest answers to a request.
async fn answer(port: u16, request: &str) -> String {
    let mut stream = reach(port).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut text)).await.unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn connections_without_the_token_are_refused() {
    let (container, _session, port) = start(0).await;
    let dial = WebSocketDial { port, token: "the-tokem", cuts: Cuts::new(0) };
    let Err(refused) = dial.dial().await else { panic!("accepted") };
    assert_eq!(refused.to_string(), "the WebSocket was refused with status 401");
    let plain = answer(port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(plain.starts_with("HTTP/1.1 401 "), "{plain}");
    let garbage = answer(port, "nothing\r\n\r\n").await;
    assert!(garbage.starts_with("HTTP/1.1 400 "), "{garbage}");
    let endless = answer(port, &"x".repeat(8 << 10)).await;
    assert!(endless.starts_with("HTTP/1.1 400 "), "{endless}");
    // With the token, another session is still refused.
    let other = WebSocketDial { port, token: "the-token", cuts: Cuts::new(0) };
    let mut stream = other.dial().await.map_err(|error| error.to_string()).unwrap();
    stream.writer.write_all(b"RGSh\x01\0\0\0................\0\0\0\0\0\0\0\0").await.unwrap();
    assert_eq!(timeout(PATIENCE, stream.reader.read(&mut [0; 16])).await.unwrap().unwrap(), 0);
    assert_eq!(container.bash("echo alive").await.text(), "alive\n");
    container.stop().await;
}

#[tokio::test]
async fn many_hostile_connections_do_not_keep_the_host_out() {
    let (container, session, port) = start(100_000).await;
    // They stay open, some silent, some with the start of a request, and come from inside.
    let hostile = format!(
        "exec 2> /dev/null; ulimit -n 1024; for i in $(seq 300); do exec {{fd}}<> /dev/tcp/127.0.0.1/{port}; \
         [ $((i % 2)) = 0 ] && printf 'GET / HTTP/1.1\\r\\n' >&$fd; done; touch opened; sleep 4242"
    );
    let script = "setsid bash -c \"$HOSTILE\" > /dev/null 2>&1 &";
    container.try_exec(&["bash", "-c", script], &[("HOSTILE", &hostile)], None).await.unwrap();
    until(async || container.path("opened").exists()).await;
    let before = session.connections();
    let ran = container.bash("for ((n = 0; n < 30000; n++)); do echo line $n; done").await;
    let expected: String = (0..30_000).map(|n| format!("line {n}\n")).collect();
    assert!(ran.stdout == expected.as_bytes(), "the output differs");
    assert!(session.connections() > before, "no connection was opened");
    // What the guest gave up is closed, so that it holds few descriptors.
    let host = container.child.id().unwrap();
    let descriptors = || std::fs::read_dir(format!("/proc/{host}/fd")).unwrap().count();
    until(async || descriptors() < 80).await;
    container.stop().await;
}
