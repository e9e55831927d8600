//! The host's side of a session: a stream to a guest that survives lost connections.
//!
//! The client of the guest sees one stream. A task carries it over connections, and opens a new one when a connection
//! is lost. What was on the way is sent again, and nothing arrives twice.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use rollout_guest::session::{SESSION_WELCOME, SessionHello, SessionState, SessionWelcome};
use tokio::{
    io::{
        AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf,
        duplex, split,
    },
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// How often the guest is asked for an answer.
const PING: Duration = Duration::from_secs(10);

/// A connection that carries nothing for this long is lost.
const SILENCE: Duration = Duration::from_secs(45);

/// How long a connection may take to open, with the first messages of both sides.
const DIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause before the first attempt to connect again. It doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The longest pause.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The bytes that wait for the client, or for a connection.
const BUFFER: usize = 256 << 10;

/// The bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// Opens connections to a guest.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// Opens a connection.
    async fn dial(&self) -> Result<GuestStream, DialError>;
}

/// A connection to a guest. Dropping it closes it. The writer does not need to be flushed.
pub struct GuestStream {
    /// What the guest sends.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// What is sent to it.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// A value that lives as long as the connection.
    pub guard: Box<dyn Send>,
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DialError {
    /// Another attempt may succeed.
    #[error("{0}")]
    Temporary(String),
    /// The guest has ended.
    #[error("{0}")]
    Gone(String),
}

/// A session with a guest. Dropping it ends the stream.
pub struct GuestSession {
    stop: CancellationToken,
    connections: Arc<AtomicU64>,
}

impl GuestSession {
    /// Starts a session. It is given up when no connection can be opened for `patience`.
    pub fn open(
        dial: impl Dial,
        patience: Duration,
    ) -> io::Result<(Self, ReadHalf<DuplexStream>, WriteHalf<DuplexStream>)> {
        let (client, inner) = duplex(BUFFER);
        let (reader, writer) = split(client);
        let session = Self { stop: CancellationToken::new(), connections: Arc::default() };
        let (from_client, to_client) = split(inner);
        let carrier = Carrier {
            state: SessionState::default(),
            token: random()?,
            from_client,
            to_client,
            is_open: true,
            to_deliver: Vec::new(),
            delivered: 0,
            stop: session.stop.clone(),
            connections: Arc::clone(&session.connections),
        };
        tokio::spawn(carrier.run(dial, patience));
        Ok((session, reader, writer))
    }

    /// Ends the stream without a message to the guest.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The number of connections that were opened.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for GuestSession {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Why a connection is not used any more.
enum Ended {
    /// The session is over.
    Session,
    /// The connection was lost.
    Connection,
}

/// The task that carries the stream.
struct Carrier {
    state: SessionState,
    token: [u8; 16],
    from_client: ReadHalf<DuplexStream>,
    to_client: WriteHalf<DuplexStream>,
    /// Whether the client may send more.
    is_open: bool,
    /// Bytes for the client. While there are some, the connection is not read.
    to_deliver: Vec<u8>,
    delivered: usize,
    stop: CancellationToken,
    connections: Arc<AtomicU64>,
}

impl Carrier {
    async fn run(mut self, dial: impl Dial, patience: Duration) {
        let stop = self.stop.clone();
        let mut alone_since = Instant::now();
        let mut wait = FIRST_WAIT;
        let mut progress = 0;
        loop {
            let opened = tokio::select! {
                opened = timeout(DIAL_TIMEOUT, self.connect(&dial)) => opened,
                () = stop.cancelled() => return,
            };
            match opened {
                Ok(Ok(stream)) => {
                    self.connections.fetch_add(1, Ordering::Relaxed);
                    let before = std::mem::replace(&mut progress, self.state.progress());
                    if let Ended::Session = self.carry(stream).await {
                        return;
                    }
                    // A connection that is always lost at once is no better than none.
                    if self.state.progress() > before {
                        (alone_since, wait) = (Instant::now(), FIRST_WAIT);
                    }
                    tracing::debug!("the connection to a guest was lost");
                }
                Ok(Err(DialError::Gone(reason))) => {
                    tracing::debug!(reason, "a guest has ended");
                    return;
                }
                Ok(Err(DialError::Temporary(reason))) => {
                    tracing::debug!(reason, "a guest cannot be reached");
                }
                Err(_) => tracing::debug!("a guest does not answer"),
            }
            if alone_since.elapsed() >= patience {
                return;
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = stop.cancelled() => return,
            }
            wait = (wait * 2).min(LAST_WAIT);
        }
    }

    /// Opens a connection, and agrees with the guest where the stream continues.
    async fn connect(&mut self, dial: &impl Dial) -> Result<GuestStream, DialError> {
        let mut stream = dial.dial().await?;
        let hello = SessionHello { token: self.token, received: self.state.received() };
        let failed = |error: io::Error| DialError::Temporary(format!("the connection was closed: {error}"));
        stream.writer.write_all(&hello.encode()).await.map_err(failed)?;
        let mut welcome = [0; SESSION_WELCOME];
        stream.reader.read_exact(&mut welcome).await.map_err(failed)?;
        let invalid = |_| DialError::Temporary("the guest sent an invalid message".to_owned());
        let welcome = SessionWelcome::decode(&welcome).map_err(invalid)?;
        self.state.resume(welcome.received).map_err(invalid)?;
        Ok(stream)
    }

    /// Carries the stream until the connection is lost or the session is over.
    async fn carry(&mut self, mut stream: GuestStream) -> Ended {
        let mut input = vec![0; CHUNK];
        let mut chunk = vec![0; CHUNK];
        let mut output = Vec::new();
        let mut sent = 0;
        let mut heard = Instant::now();
        let mut ping = interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if sent == output.len() {
                output.clear();
                sent = 0;
                self.state.encode(&mut output);
                if output.is_empty() && self.state.has_sent_end() {
                    return Ended::Session;
                }
            }
            let is_reading = self.to_deliver.is_empty();
            let room = self.state.room().min(CHUNK);
            tokio::select! {
                read = stream.reader.read(&mut input), if is_reading => match read {
                    Ok(0) | Err(_) => return Ended::Connection,
                    Ok(count) => {
                        heard = Instant::now();
                        if self.state.decode(&input[..count], &mut self.to_deliver).is_err() {
                            return Ended::Connection;
                        }
                    }
                },
                written = self.to_client.write(&self.to_deliver[self.delivered..]), if !is_reading => {
                    match written {
                        Ok(count) if count > 0 => self.delivered += count,
                        // The client has closed the stream.
                        _ => self.delivered = self.to_deliver.len(),
                    }
                    if self.delivered == self.to_deliver.len() {
                        self.to_deliver.clear();
                        self.delivered = 0;
                    }
                    heard = Instant::now();
                }
                read = self.from_client.read(&mut chunk[..room]), if room > 0 && self.is_open => match read {
                    Ok(count) if count > 0 => self.state.send(&chunk[..count]),
                    _ => {
                        self.is_open = false;
                        self.state.end();
                    }
                },
                written = stream.writer.write(&output[sent..]), if sent < output.len() => match written {
                    Ok(count) if count > 0 => sent += count,
                    _ => return Ended::Connection,
                },
                _ = ping.tick() => self.state.ping(),
                () = sleep_until(heard + SILENCE), if is_reading => return Ended::Connection,
                () = self.stop.cancelled() => return Ended::Session,
            }
        }
    }
}

/// A secret of a session.
fn random() -> io::Result<[u8; 16]> {
    use std::io::Read as _;
    let mut token = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut token)?;
    Ok(token)
}
