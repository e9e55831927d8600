//! Serves the host over connections that may be lost: one thread joins them to the streams of the server.
//!
//! The first connection determines the token of the session, before any process of the task runs. When no connection
//! exists for the grace period, or the host ends the session, the streams are closed, and the guest ends as if its
//! standard streams had been closed.

use std::{
    io::{self, Read as _, Write as _},
    os::{
        fd::AsFd as _,
        unix::net::{UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

use rollout_guest::{
    KillScope,
    session::{SESSION_HELLO, SESSION_WAITER, SessionHello, SessionState, SessionWelcome},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    handover, link,
    serve::{self, Streams},
};

/// The host sends something at least every ten seconds. A connection that is silent for longer than this is lost,
/// although it was not closed.
const SILENCE: Duration = Duration::from_secs(60);

/// The most connections that have not said what they are, or that only wait.
const MAX_OTHERS: usize = 16;

/// How long a connection may take to say what it is.
const HELLO_PATIENCE: Duration = Duration::from_secs(30);

/// The bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// Serves the host at an address until it has been away for a number of seconds.
///
/// With `control`, connections also arrive as descriptors over that socket, and its end is that of the guest.
pub(crate) fn serve(
    scope: KillScope,
    name: &str,
    grace: &str,
    control: Option<UnixStream>,
) -> io::Result<()> {
    let grace = grace.parse().map(Duration::from_secs).map_err(io::Error::other)?;
    serve::serve(scope, || {
        let listener = UnixListener::bind_addr(&link::address(name)?)?;
        let (server, session) = UnixStream::pair()?;
        listener.set_nonblocking(true)?;
        session.set_nonblocking(true)?;
        if let Some(control) = &control {
            handover::report_ready(control)?;
        }
        let mut session = Session::new(listener, session, control, grace);
        std::thread::Builder::new().name("session".to_owned()).spawn(move || session.run())?;
        Ok(Streams { input: server.try_clone()?.into(), output: server.into(), in_pod: true })
    })
}

/// A connection of the host.
struct Connection {
    stream: UnixStream,
    /// Bytes to send.
    output: Vec<u8>,
    sent: usize,
    /// When it last sent something, or was last not read.
    heard: Instant,
}

/// A connection that has not said what it is.
struct Caller {
    stream: UnixStream,
    input: Vec<u8>,
    since: Instant,
}

struct Session {
    listener: UnixListener,
    /// Passes on connections that were accepted by another process.
    control: Option<UnixStream>,
    /// The server's streams.
    server: UnixStream,
    grace: Duration,
    state: SessionState,
    token: Option<[u8; 16]>,
    connection: Option<Connection>,
    /// Since when there is no connection.
    alone_since: Instant,
    callers: Vec<Caller>,
    /// Connections that are only kept open.
    waiters: Vec<UnixStream>,
    /// Bytes for the server. While there are some, the connection is not read.
    to_server: Vec<u8>,
    delivered: usize,
}

/// What can be done, by the result of a poll.
#[derive(Default)]
struct Ready {
    accept: bool,
    control: bool,
    from_server: bool,
    to_server: bool,
    read: bool,
    write: bool,
    callers: Vec<bool>,
    waiters: Vec<bool>,
}

impl Session {
    fn new(listener: UnixListener, server: UnixStream, control: Option<UnixStream>, grace: Duration) -> Self {
        Self {
            listener,
            control,
            server,
            grace,
            state: SessionState::default(),
            token: None,
            connection: None,
            alone_since: Instant::now(),
            callers: Vec::new(),
            waiters: Vec::new(),
            to_server: Vec::new(),
            delivered: 0,
        }
    }

    fn run(&mut self) {
        while !self.is_over() {
            let Ok(ready) = self.wait() else { break };
            if self.work(ready).is_err() {
                break;
            }
        }
        // Ends the guest, unless it was asked to stay. Then the waiters keep waiting.
        let _ = self.server.shutdown(std::net::Shutdown::Both);
        self.connection = None;
        self.callers.clear();
        loop {
            std::thread::park();
        }
    }

    fn is_over(&self) -> bool {
        let delivered = self.to_server.is_empty();
        let deserted = self.connection.is_none() && self.alone_since.elapsed() >= self.grace;
        deserted || (self.state.has_ended() && delivered)
    }

    /// Whether the connection is read.
    fn is_reading(&self) -> bool {
        self.to_server.is_empty()
    }

    /// The time until something happens without input.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let until = |at: Instant| at.saturating_duration_since(now);
        let first = match &self.connection {
            Some(connection) if self.is_reading() => until(connection.heard + SILENCE),
            Some(_) => SILENCE,
            None => until(self.alone_since + self.grace),
        };
        let callers = self.callers.iter().map(|caller| until(caller.since + HELLO_PATIENCE));
        callers.fold(first, Duration::min)
    }

    fn wait(&mut self) -> io::Result<Ready> {
        if let Some(connection) = &mut self.connection
            && connection.sent == connection.output.len()
        {
            connection.output.clear();
            connection.sent = 0;
            self.state.encode(&mut connection.output);
        }
        let in_if = |wanted: bool| if wanted { PollFlags::IN } else { PollFlags::empty() };
        let out_if = |wanted: bool| if wanted { PollFlags::OUT } else { PollFlags::empty() };
        let others = self.callers.len() + self.waiters.len();
        let server = in_if(self.state.room() > 0) | out_if(!self.to_server.is_empty());
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.listener.as_fd(), in_if(others < MAX_OTHERS)),
            PollFd::from_borrowed_fd(self.server.as_fd(), server),
        ];
        if let Some(control) = &self.control {
            fds.push(PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN));
        }
        let first_caller = fds.len();
        for stream in self.callers.iter().map(|caller| &caller.stream).chain(&self.waiters) {
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN));
        }
        if let Some(connection) = &self.connection {
            let flags = in_if(self.is_reading()) | out_if(connection.sent < connection.output.len());
            fds.push(PollFd::from_borrowed_fd(connection.stream.as_fd(), flags));
        }
        let patience = self.patience() + Duration::from_millis(1);
        let patience = Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: patience.subsec_nanos().into(),
        };
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&patience)))?;
        let seen = |fd: &PollFd<'_>, flags: PollFlags| {
            fd.revents().intersects(flags | PollFlags::HUP | PollFlags::ERR)
        };
        let (callers, rest) = fds[first_caller..].split_at(self.callers.len());
        let (waiters, connection) = rest.split_at(self.waiters.len());
        Ok(Ready {
            accept: seen(&fds[0], PollFlags::IN) && others < MAX_OTHERS,
            control: fds[2..first_caller].iter().any(|fd| seen(fd, PollFlags::IN)),
            from_server: seen(&fds[1], PollFlags::IN),
            to_server: seen(&fds[1], PollFlags::OUT),
            read: connection.first().is_some_and(|fd| seen(fd, PollFlags::IN)),
            write: connection.first().is_some_and(|fd| seen(fd, PollFlags::OUT)),
            callers: callers.iter().map(|fd| seen(fd, PollFlags::IN)).collect(),
            waiters: waiters.iter().map(|fd| seen(fd, PollFlags::IN)).collect(),
        })
    }

    /// Does what is possible. An error is one of the server or of the control socket, and ends the session.
    fn work(&mut self, ready: Ready) -> io::Result<()> {
        if ready.from_server && self.state.room() > 0 {
            let mut chunk = vec![0; CHUNK.min(self.state.room())];
            match would_block((&self.server).read(&mut chunk))? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => self.state.send(&chunk[..count]),
                None => {}
            }
        }
        let mut lost = false;
        if let Some(connection) = &mut self.connection {
            if ready.write && connection.sent < connection.output.len() {
                match would_block(connection.stream.write(&connection.output[connection.sent..])) {
                    Ok(count) => connection.sent += count.unwrap_or(0),
                    Err(_) => lost = true,
                }
            }
            if !self.to_server.is_empty() {
                connection.heard = Instant::now();
            } else if ready.read {
                let mut chunk = vec![0; CHUNK];
                match would_block(connection.stream.read(&mut chunk)) {
                    Ok(Some(0)) | Err(_) => lost = true,
                    Ok(Some(count)) => {
                        connection.heard = Instant::now();
                        lost |= self.state.decode(&chunk[..count], &mut self.to_server).is_err();
                    }
                    Ok(None) => {}
                }
            }
            lost |= connection.heard.elapsed() >= SILENCE;
        }
        if lost {
            self.connection = None;
            self.alone_since = Instant::now();
        }
        if !self.to_server.is_empty() && (ready.to_server || self.delivered == 0) {
            let count = would_block((&self.server).write(&self.to_server[self.delivered..]))?;
            self.delivered += count.unwrap_or(0);
            if self.delivered == self.to_server.len() {
                self.to_server.clear();
                self.delivered = 0;
            }
        }
        let mut gone = ready.waiters.iter();
        self.waiters.retain(|_| gone.next() != Some(&true));
        self.hear_callers(&ready.callers);
        if ready.accept
            && let Ok((stream, _)) = self.listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            self.callers.push(Caller { stream, input: Vec::new(), since: Instant::now() });
        }
        if ready.control
            && let Some(control) = &self.control
            && let Some(stream) = handover::receive(control)?
        {
            self.callers.push(Caller { stream, input: Vec::new(), since: Instant::now() });
        }
        Ok(())
    }

    fn hear_callers(&mut self, ready: &[bool]) {
        let callers = std::mem::take(&mut self.callers);
        for (index, mut caller) in callers.into_iter().enumerate() {
            if ready.get(index) == Some(&true) {
                let mut chunk = vec![0; SESSION_HELLO - caller.input.len()];
                match would_block(caller.stream.read(&mut chunk)) {
                    Ok(Some(0)) | Err(_) => continue,
                    Ok(count) => caller.input.extend(&chunk[..count.unwrap_or(0)]),
                }
            }
            if caller.input == SESSION_WAITER {
                self.waiters.push(caller.stream);
            } else if let Ok(hello) = caller.input.as_slice().try_into() {
                self.greet(caller.stream, hello);
            } else if caller.since.elapsed() < HELLO_PATIENCE {
                self.callers.push(caller);
            }
        }
    }

    /// Replaces the connection by a new one of the same session.
    fn greet(&mut self, stream: UnixStream, hello: &[u8; SESSION_HELLO]) {
        let Ok(hello) = SessionHello::decode(hello) else { return };
        if *self.token.get_or_insert(hello.token) != hello.token {
            return;
        }
        if self.state.resume(hello.received).is_err() {
            return;
        }
        let output = SessionWelcome { received: self.state.received() }.encode().to_vec();
        self.connection = Some(Connection { stream, output, sent: 0, heard: Instant::now() });
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
