//! Accepts WebSocket connections of the host and carries their bytes to the guest.
//!
//! Processes of the task can connect too, so everything is limited until a connection has sent the token: its bytes, its
//! time, and the number of such connections, with a limit of their own for those from this machine. One thread serves
//! all, and a connection that does not read or write holds up only itself.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    handover,
    websocket::{self, Control, FrameReader, MAX_HEAD, Opening},
};

/// How long a connection may take to send its request.
const OPENING_PATIENCE: Duration = Duration::from_secs(10);

/// The most connections without a token from this machine, and from others. One more replaces the oldest.
const MAX_OPENING: usize = 32;

/// The most connections with the token. The host uses one, and opens another when it is lost.
const MAX_LINKS: usize = 4;

/// The most connections that are accepted before the others are served.
const ACCEPTED_AT_A_TIME: usize = 16;

/// The pause after a failed accept, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often a client is asked for an answer.
const PING: Duration = Duration::from_secs(20);

/// A client that sends nothing for this long is lost, although it was not closed.
const SILENCE: Duration = Duration::from_secs(60);

/// The bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// The most bytes that wait for a client. They are more than one chunk only if it sends many pings.
const MAX_OUTPUT: usize = 4 * CHUNK;

/// A connection that has not sent its whole request.
struct Candidate {
    stream: TcpStream,
    input: Vec<u8>,
    since: Instant,
    is_local: bool,
}

/// Bytes to write, as far as they are not written.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn write(&mut self, mut to: impl Write) -> io::Result<()> {
        if let Some(count) = would_block(to.write(&self.bytes[self.written..]))? {
            self.written += count;
        }
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        }
        Ok(())
    }
}

/// A connection that has sent the token.
struct Link {
    client: TcpStream,
    guest: UnixStream,
    frames: FrameReader,
    to_client: Outgoing,
    to_guest: Outgoing,
    /// When the client last sent something, or was last not read.
    heard: Instant,
    pinged: Instant,
    /// Whether the end was sent, or is about to be.
    closes: bool,
}

impl Link {
    /// Whether the client is read.
    fn is_reading(&self) -> bool {
        self.to_guest.is_empty() && self.to_client.bytes.len() < MAX_OUTPUT
    }

    /// Whether the guest is read.
    fn is_reading_guest(&self) -> bool {
        self.to_client.is_empty()
    }

    fn next_event(&self) -> Instant {
        (self.pinged + PING).min(self.heard + SILENCE)
    }

    /// Does what is possible; an error ends the connection.
    fn work(&mut self, client: PollFlags, guest: PollFlags) -> io::Result<()> {
        let broken = PollFlags::HUP | PollFlags::ERR;
        let now = Instant::now();
        // A side that is closed and not read would be reported again at once. The session sends again what is lost.
        if client.intersects(broken) && !self.is_reading()
            || guest.intersects(broken) && !self.is_reading_guest()
        {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if !self.is_reading() {
            self.heard = now;
        } else if client.intersects(PollFlags::IN | broken) {
            let mut chunk = vec![0; CHUNK];
            match would_block(self.client.read(&mut chunk))? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => {
                    self.heard = now;
                    self.take(&chunk[..count])?;
                }
                None => {}
            }
        }
        if self.is_reading_guest() && guest.intersects(PollFlags::IN | broken) {
            let mut chunk = vec![0; CHUNK];
            match would_block(self.guest.read(&mut chunk)) {
                Ok(Some(0)) | Err(_) => self.close(),
                Ok(Some(count)) => websocket::binary(&chunk[..count], &mut self.to_client.bytes),
                Ok(None) => {}
            }
        }
        if now >= self.heard + SILENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if now >= self.pinged + PING {
            self.pinged = now;
            websocket::ping(&mut self.to_client.bytes);
        }
        if !self.to_guest.is_empty() {
            self.to_guest.write(&self.guest)?;
        }
        if !self.to_client.is_empty() {
            self.to_client.write(&self.client)?;
        }
        if self.closes { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Takes bytes of the client.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut controls = Vec::new();
        self.frames.decode(bytes, &mut self.to_guest.bytes, &mut controls).map_err(io::Error::other)?;
        for control in controls {
            match control {
                Control::Ping(data) => websocket::pong(&data, &mut self.to_client.bytes),
                Control::Pong => {}
                Control::Close => self.close(),
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        if !self.closes {
            self.closes = true;
            websocket::close(&mut self.to_client.bytes);
        }
    }
}

/// The listener with its connections.
pub(crate) struct Relay {
    listener: TcpListener,
    token: Vec<u8>,
    control: UnixStream,
    /// When to accept again after a failure.
    pause: Option<Instant>,
    candidates: Vec<Candidate>,
    links: Vec<Link>,
}

impl Relay {
    pub(crate) fn new(listener: TcpListener, token: Vec<u8>, control: UnixStream) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, token, control, pause: None, candidates: Vec::new(), links: Vec::new() })
    }

    /// Serves until the guest ends.
    pub(crate) fn run(mut self) {
        loop {
            let Ok(events) = self.wait() else { return };
            // The guest sends nothing over the socket, which ends with it.
            if !events[0].is_empty() {
                return;
            }
            let (candidates, links) = events[2..].split_at(self.candidates.len());
            let mut links = links.chunks(2);
            self.links.retain_mut(|link| match links.next() {
                Some([client, guest]) => link.work(*client, *guest).is_ok(),
                _ => true,
            });
            self.hear_candidates(candidates);
            if !events[1].is_empty() {
                self.accept();
            }
        }
    }

    /// Waits until something can be done. The events are those of the control socket, the listener, the candidates,
    /// and the two ends of each link.
    fn wait(&mut self) -> io::Result<Vec<PollFlags>> {
        let now = Instant::now();
        self.pause = self.pause.filter(|until| *until > now);
        let flags = |read: bool, write: bool| {
            let read = if read { PollFlags::IN } else { PollFlags::empty() };
            if write { read | PollFlags::OUT } else { read }
        };
        fn watch<'a>(fd: BorrowedFd<'a>, flags: PollFlags) -> PollFd<'a> {
            PollFd::from_borrowed_fd(fd, flags)
        }
        let mut fds = vec![
            watch(self.control.as_fd(), PollFlags::IN),
            watch(self.listener.as_fd(), flags(self.pause.is_none(), false)),
        ];
        fds.extend(self.candidates.iter().map(|candidate| watch(candidate.stream.as_fd(), PollFlags::IN)));
        for link in &self.links {
            fds.push(watch(link.client.as_fd(), flags(link.is_reading(), !link.to_client.is_empty())));
            fds.push(watch(link.guest.as_fd(), flags(link.is_reading_guest(), !link.to_guest.is_empty())));
        }
        let next = self.links.iter().map(Link::next_event);
        let next = next.chain(self.candidates.iter().map(|candidate| candidate.since + OPENING_PATIENCE));
        let patience = next.chain(self.pause).min().map(|next| {
            let patience = next.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec {
                tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: patience.subsec_nanos().into(),
            }
        });
        rustix::io::retry_on_intr(|| poll(&mut fds, patience.as_ref()))?;
        Ok(fds.iter().map(PollFd::revents).collect())
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_A_TIME {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    let own = stream.local_addr().map(|address| address.ip());
                    let is_local = peer.ip().is_loopback() || own.is_ok_and(|own| own == peer.ip());
                    if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                        self.add(Candidate { stream, input: Vec::new(), since: Instant::now(), is_local });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.pause = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn add(&mut self, candidate: Candidate) {
        let alike = |other: &Candidate| other.is_local == candidate.is_local;
        if self.candidates.iter().filter(|other| alike(other)).count() >= MAX_OPENING
            && let Some(oldest) = self.candidates.iter().position(alike)
        {
            self.candidates.remove(oldest);
        }
        self.candidates.push(candidate);
    }

    fn hear_candidates(&mut self, events: &[PollFlags]) {
        let candidates = std::mem::take(&mut self.candidates);
        for (index, mut candidate) in candidates.into_iter().enumerate() {
            if events.get(index).is_some_and(|events| !events.is_empty()) {
                let mut chunk = vec![0; MAX_HEAD - candidate.input.len()];
                match would_block(candidate.stream.read(&mut chunk)) {
                    Ok(Some(0)) | Err(_) => continue,
                    Ok(count) => candidate.input.extend(&chunk[..count.unwrap_or(0)]),
                }
                match websocket::open(&candidate.input, &self.token) {
                    Opening::Incomplete => {}
                    Opening::Refused(response) => {
                        // The client may be gone, and the response always fits into an unused connection.
                        let _ = candidate.stream.write(response);
                        continue;
                    }
                    Opening::Accepted { response, length } => {
                        let rest = candidate.input.split_off(length);
                        // Without it, the client tries again.
                        let _ = self.link(candidate.stream, response, &rest);
                        continue;
                    }
                }
            }
            if candidate.since.elapsed() < OPENING_PATIENCE {
                self.candidates.push(candidate);
            }
        }
    }

    /// Connects a client to the guest. `rest` is what it has sent after its request.
    fn link(&mut self, client: TcpStream, response: Vec<u8>, rest: &[u8]) -> io::Result<()> {
        let (guest, its) = UnixStream::pair()?;
        guest.set_nonblocking(true)?;
        handover::send(&self.control, &its)?;
        let now = Instant::now();
        let mut link = Link {
            client,
            guest,
            frames: FrameReader::default(),
            to_client: Outgoing { bytes: response, written: 0 },
            to_guest: Outgoing::default(),
            heard: now,
            pinged: now,
            closes: false,
        };
        link.take(rest)?;
        link.to_client.write(&link.client)?;
        if self.links.len() >= MAX_LINKS {
            self.links.remove(0);
        }
        self.links.push(link);
        Ok(())
    }
}

fn would_block(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
