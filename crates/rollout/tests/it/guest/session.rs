//! Guests whose connections are cut: nothing is lost, nothing arrives twice, and no guest outlives its host for long.

use std::{
    io,
    os::linux::net::SocketAddrExt as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use rollout::environment::{
    CopyMode, Outcome,
    guest::{Dial, DialError, Guest, GuestSession, GuestStream},
};
use rollout_testkit::long_enough_async;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::{
    cuts::Cuts,
    support::{Container, copy_out, spawn, until},
};

/// The name of a session that no other test has.
fn name() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(super) async fn reach(name: &str) -> io::Result<UnixStream> {
    let address =
        std::os::unix::net::SocketAddr::from_abstract_name(format!("rollout-guest/{name}")).unwrap();
    let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Opens connections that are cut after some bytes.
struct Cutting {
    name: String,
    cuts: Cuts,
}

impl Cutting {
    fn new(name: &str, most: u64) -> Self {
        Self { name: name.to_owned(), cuts: Cuts::new(most) }
    }
}

#[async_trait]
impl Dial for Cutting {
    async fn dial(&self) -> Result<GuestStream, DialError> {
        let temporary = |error: io::Error| DialError::Temporary(error.to_string());
        if self.cuts.is_down.load(Ordering::Relaxed) {
            return Err(DialError::Temporary("it is down".to_owned()));
        }
        let (reader, writer) = reach(&self.name).await.map_err(temporary)?.into_split();
        Ok(GuestStream {
            reader: Box::new(self.cuts.limit(reader)),
            writer: Box::new(self.cuts.limit(writer)),
            guard: Box::new(()),
        })
    }
}

/// The longest time until a guest that does not answer counts as gone.
const OUTAGE: Duration = Duration::from_secs(600);

/// Starts a guest with sessions, and connects to it.
async fn start(dial: Cutting, grace: u64) -> (Container, GuestSession) {
    let (child, dir) = spawn(&[], &["session", &dial.name, &grace.to_string()]);
    until(async || reach(&dial.name).await.is_ok()).await;
    let (session, reader, writer) = GuestSession::open(dial, OUTAGE).unwrap();
    let guest = Guest::connect(reader, writer, None).await.unwrap().with_outage(OUTAGE);
    (Container { guest, child, dir }, session)
}

/// The same with a grace period that may be over before the connection is made; `None` if it was.
async fn start_in_time(dial: Cutting, grace: Duration) -> Option<(Container, GuestSession)> {
    let (mut child, dir) = spawn(&[], &["session", &dial.name, &grace.as_secs().to_string()]);
    let name = dial.name.clone();
    let connected = async {
        until(async || reach(&name).await.is_ok()).await;
        let (session, reader, writer) = GuestSession::open(dial, OUTAGE).unwrap();
        Some((Guest::connect(reader, writer, None).await.ok()?.with_outage(OUTAGE), session))
    };
    let (guest, session) = tokio::select! {
        connected = connected => connected?,
        _ = child.wait() => return None,
    };
    Some((Container { guest, child, dir }, session))
}

#[tokio::test]
async fn output_arrives_once_and_complete_over_connections_that_are_cut() {
    let (container, session) = start(Cutting::new(&name(), 100_000), 120).await;
    // Each line differs, so that a lost or repeated part shows.
    let ran = container.bash("for ((n = 0; n < 50000; n++)); do echo line $n; done").await;
    let expected: String = (0..50_000).map(|n| format!("line {n}\n")).collect();
    assert_eq!(ran.exit.outcome, Outcome::Code(0));
    assert!(ran.stdout == expected.as_bytes(), "the output differs");
    assert!(session.connections() > 3, "{} connections", session.connections());
    container.stop().await;
}

#[tokio::test]
async fn files_are_copied_byte_by_byte_in_both_directions_over_connections_that_are_cut() {
    let (container, session) = start(Cutting::new(&name(), 150_000), 120).await;
    let source = container.path("source");
    std::fs::create_dir(&source).unwrap();
    let content: Vec<u8> =
        (0..250_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(source.join("large"), &content).unwrap();
    std::fs::write(source.join("small"), b"small").unwrap();
    container.guest.copy_to(&source, &container.inside("inside"), CopyMode::Replace).await.unwrap();
    assert!(std::fs::read(container.path("inside/large")).unwrap() == content, "the copy inside differs");
    let target = container.path("target");
    std::fs::create_dir(&target).unwrap();
    let from = container.inside("inside");
    container.guest.copy_from(copy_out(&from, &target)).await.unwrap();
    assert!(std::fs::read(target.join("large")).unwrap() == content, "the copy outside differs");
    assert_eq!(std::fs::read(target.join("small")).unwrap(), b"small");
    assert!(session.connections() > 5, "{} connections", session.connections());
    container.stop().await;
}

#[tokio::test]
async fn a_command_goes_on_while_there_is_no_connection() {
    let dial = Cutting::new(&name(), 0);
    let is_down = Arc::clone(&dial.cuts.is_down);
    let (container, session) = start(dial, 120).await;
    let marker = container.path("marker");
    let script = format!(
        "touch {}; until [ -e {} ]; do sleep 0.01; done; echo done",
        container.inside("marker"),
        container.inside("go")
    );
    let (ran, ()) = tokio::join!(container.bash(&script), async {
        until(async || marker.exists()).await;
        is_down.store(true, Ordering::Relaxed);
        std::fs::write(container.path("go"), "").unwrap();
        until(async || session.connections() == 1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        is_down.store(false, Ordering::Relaxed);
    });
    assert_eq!(ran.text(), "done\n");
    container.stop().await;
}

#[tokio::test]
async fn a_guest_without_its_host_ends_with_everything_inside_after_the_grace_period() {
    long_enough_async(Duration::from_secs(1), async |grace| {
        let dial = Cutting::new(&name(), 0);
        let is_down = Arc::clone(&dial.cuts.is_down);
        let (container, session) = start_in_time(dial, grace).await?;
        let marker = container.inside("alive");
        let script = format!(
            "setsid bash -c 'while :; do date +%N > {marker}; sleep 0.05; done' > /dev/null 2>&1 & true"
        );
        container.bash(&script).await;
        until(async || container.path("alive").exists()).await;
        is_down.store(true, Ordering::Relaxed);
        let Container { guest, mut child, dir } = container;
        child.wait().await.unwrap();
        let read = || std::fs::read(dir.path().join("alive")).unwrap();
        let last = read();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(read(), last, "a process outlived the guest");
        drop((guest, session));
        Some(())
    })
    .await;
}

#[tokio::test]
async fn the_end_of_the_client_ends_the_guest_at_once() {
    let (container, session) = start(Cutting::new(&name(), 0), 3600).await;
    let Container { guest, mut child, .. } = container;
    drop(guest);
    child.wait().await.unwrap();
    drop(session);
}

#[tokio::test]
async fn a_guest_that_stays_is_not_ended_by_the_grace_period() {
    long_enough_async(Duration::from_secs(1), async |grace| {
        let (container, session) = start_in_time(Cutting::new(&name(), 0), grace).await?;
        container.guest.stay().await.unwrap();
        let Container { guest, mut child, dir: _dir } = container;
        guest.finish().await;
        drop(session);
        tokio::time::sleep(grace * 3 / 2).await;
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().await.unwrap();
        Some(())
    })
    .await;
}

#[tokio::test]
async fn only_the_host_of_the_first_connection_is_accepted() {
    let own = name();
    let (container, _session) = start(Cutting::new(&own, 0), 120).await;
    let mut stranger = reach(&own).await.unwrap();
    let mut hello = *b"RGSh\x01\0\0\0................\0\0\0\0\0\0\0\0";
    stranger.write_all(&hello).await.unwrap();
    assert_eq!(stranger.read(&mut [0; 16]).await.unwrap(), 0);
    // A waiter learns of the end, and of nothing else.
    let mut waiter = reach(&own).await.unwrap();
    waiter.write_all(b"RGSw").await.unwrap();
    assert_eq!(
        container.bash("echo ${KUBERNETES_SERVICE_HOST-none} $IMAGE_VARIABLE").await.text(),
        "none from the image\n"
    );
    hello[0] = b'?';
    let mut other = reach(&own).await.unwrap();
    other.write_all(&hello).await.unwrap();
    assert_eq!(other.read(&mut [0; 16]).await.unwrap(), 0);
    container.stop().await;
    assert_eq!(waiter.read(&mut [0; 16]).await.unwrap(), 0);
}
