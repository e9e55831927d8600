//! Carries connections from inside the container to services that the host offers.
//!
//! One thread, started at the beginning, owns all listeners and connections, so that neither many connections
//! nor a container without free processes stop it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    time::{Duration, Instant},
};

use rollout_guest::{CREDIT_STEP, GuestReply, MAX_CONNECTIONS, MAX_DATA, TunnelStep, WINDOW};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    net::sockopt::set_socket_linger,
};

use crate::out::Out;

/// The pause after a failed accept, for example when the container has no free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The orders of the host that are carried out before the sockets are looked at again, so that a host that sends
/// without a pause does not keep the inside from sending.
const BATCH: usize = 64;

/// What the host asks of the thread.
enum Order {
    Offer,
    Step(u32, TunnelStep),
    Cancel,
}

/// A handle to the thread.
pub(crate) struct Tunnels {
    orders: Sender<(u32, Order)>,
    wake: Arc<OwnedFd>,
}

impl Tunnels {
    pub(crate) fn start(out: Out) -> std::io::Result<Self> {
        let (orders, queue) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let carrier = Carrier { out, queue, wake: Arc::clone(&wake), offers: HashMap::new() };
        std::thread::Builder::new().name("tunnel".to_owned()).spawn(move || carrier.run())?;
        Ok(Self { orders, wake })
    }

    /// Listens, and answers the request with this number.
    pub(crate) fn offer(&self, id: u32) {
        self.order(id, Order::Offer);
    }

    /// Passes on a step of a connection. Never blocks.
    pub(crate) fn step(&self, id: u32, connection: u32, step: TunnelStep) {
        self.order(id, Order::Step(connection, step));
    }

    /// Ends an offer with all its connections.
    pub(crate) fn cancel(&self, id: u32) {
        self.order(id, Order::Cancel);
    }

    fn order(&self, id: u32, order: Order) {
        // The thread ends with the process or with this handle.
        let _ = self.orders.send((id, order));
        wake(&self.wake);
    }
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        // Disconnects the queue before the thread looks at it.
        self.orders = channel().0;
        wake(&self.wake);
    }
}

fn wake(event: &OwnedFd) {
    // A full counter is awake already.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

struct Carrier {
    out: Out,
    queue: Receiver<(u32, Order)>,
    wake: Arc<OwnedFd>,
    offers: HashMap<u32, Offer>,
}

/// A listener with its connections.
struct Offer {
    listener: TcpListener,
    /// When to accept again after a failure.
    pause: Option<Instant>,
    last: u32,
    connections: BTreeMap<u32, Connection>,
}

/// What a descriptor that is waited for belongs to.
#[derive(Clone, Copy)]
enum Source {
    Wake,
    Listener(u32),
    Connection(u32, u32),
}

impl Carrier {
    fn run(mut self) {
        let mut buffer = vec![0; MAX_DATA];
        loop {
            for (source, events) in self.wait() {
                match source {
                    Source::Wake => {
                        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                    }
                    Source::Listener(id) => self.accept(id),
                    Source::Connection(id, number) => {
                        let Some(offer) = self.offers.get_mut(&id) else { continue };
                        let Some(connection) = offer.connections.get_mut(&number) else { continue };
                        let mut send = |step| {
                            self.out.send(id, &GuestReply::Tunnel { connection: number, step });
                        };
                        connection.handle(events, &mut buffer, &mut send);
                        if connection.is_over() {
                            offer.connections.remove(&number);
                        }
                    }
                }
            }
            for carried_out in 0.. {
                if carried_out == BATCH {
                    wake(&self.wake);
                    break;
                }
                match self.queue.try_recv() {
                    Ok((id, order)) => self.carry_out(id, order),
                    Err(TryRecvError::Empty) => break,
                    // The host is gone: all listeners and connections end here.
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Waits until something can be done, and returns what.
    fn wait(&mut self) -> Vec<(Source, PollFlags)> {
        let now = Instant::now();
        let mut pause: Option<Duration> = None;
        let mut waiting: Vec<(Source, BorrowedFd<'_>, PollFlags)> =
            vec![(Source::Wake, self.wake.as_fd(), PollFlags::IN)];
        for (id, offer) in &self.offers {
            let rest = offer.pause.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
            if !rest.is_zero() {
                pause = Some(pause.map_or(rest, |pause| pause.min(rest)));
            } else if offer.connections.len() < MAX_CONNECTIONS {
                waiting.push((Source::Listener(*id), offer.listener.as_fd(), PollFlags::IN));
            }
            for (number, connection) in &offer.connections {
                if let Some((socket, interest)) = connection.interest() {
                    waiting.push((Source::Connection(*id, *number), socket, interest));
                }
            }
        }
        let mut fds: Vec<_> =
            waiting.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        // An interrupted wait finds nothing, and is repeated.
        let _ = poll(&mut fds, pause.as_ref());
        let ready = waiting.iter().zip(&fds).map(|((source, ..), fd)| (*source, fd.revents()));
        ready.filter(|(_, events)| !events.is_empty()).collect()
    }

    fn carry_out(&mut self, id: u32, order: Order) {
        match order {
            Order::Offer => match listen() {
                Ok((listener, port)) => {
                    let offer = Offer { listener, pause: None, last: 0, connections: BTreeMap::new() };
                    self.offers.insert(id, offer);
                    self.out.send(id, &GuestReply::Offered { port });
                }
                Err(error) => {
                    let reason = format!("cannot listen on the loopback of the environment: {error}");
                    self.out.answer(id, Err(reason));
                }
            },
            Order::Step(number, step) => {
                let Some(offer) = self.offers.get_mut(&id) else { return };
                let Some(connection) = offer.connections.get_mut(&number) else { return };
                let mut send = |step| self.out.send(id, &GuestReply::Tunnel { connection: number, step });
                connection.take(step, &mut send);
                if connection.is_over() {
                    offer.connections.remove(&number);
                }
            }
            Order::Cancel => drop(self.offers.remove(&id)),
        }
    }

    /// Accepts one connection.
    fn accept(&mut self, id: u32) {
        let Some(offer) = self.offers.get_mut(&id) else { return };
        let accepted = offer.listener.accept().and_then(|(socket, _)| {
            socket.set_nonblocking(true)?;
            // Each message is sent at once, as the other side has sent it.
            socket.set_nodelay(true)?;
            Ok(socket)
        });
        match accepted {
            Ok(socket) => {
                // After the last number, connections are refused.
                let Some(number) = offer.last.checked_add(1) else { return };
                offer.last = number;
                offer.connections.insert(number, Connection::new(socket));
                self.out.send(id, &GuestReply::Tunnel { connection: number, step: TunnelStep::Open });
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => offer.pause = Some(Instant::now() + ACCEPT_PAUSE),
        }
    }
}

fn listen() -> std::io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// A connection from inside.
struct Connection {
    /// `None` after the inside has ended; the number is free when the host has closed the connection.
    socket: Option<TcpStream>,
    /// The bytes that may be sent to the host.
    credit: usize,
    /// Whether the inside may send more.
    reads: bool,
    /// The bytes from the host that the inside has not read yet.
    waiting: VecDeque<u8>,
    /// The bytes that the inside has read, and for which no credit was returned yet.
    passed_on: usize,
    /// Whether the host may send more.
    host_sends: bool,
    /// Whether the inside was notified of the end of the host's bytes.
    writes: bool,
    closed: bool,
}

impl Connection {
    fn new(socket: TcpStream) -> Self {
        Self {
            socket: Some(socket),
            credit: WINDOW,
            reads: true,
            waiting: VecDeque::new(),
            passed_on: 0,
            host_sends: true,
            writes: true,
            closed: false,
        }
    }

    fn is_over(&self) -> bool {
        self.socket.is_none() && self.closed
    }

    /// What to wait for; `None` if nothing can happen before the host's next step.
    fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let socket = self.socket.as_ref()?;
        let mut flags = PollFlags::empty();
        if self.reads && self.credit > 0 {
            flags |= PollFlags::IN;
        }
        if !self.waiting.is_empty() {
            flags |= PollFlags::OUT;
        }
        // A reset is reported without being asked for. But so is the end of both directions, which must wait
        // for credit.
        (self.writes || !flags.is_empty()).then(|| (socket.as_fd(), flags))
    }

    fn handle(&mut self, events: PollFlags, buffer: &mut [u8], send: &mut impl FnMut(TunnelStep)) {
        let readable = self.reads && self.credit > 0;
        let hung_up = events.contains(PollFlags::HUP);
        if events.contains(PollFlags::ERR) || (hung_up && !readable) {
            return self.reset(send);
        }
        if events.contains(PollFlags::OUT) {
            self.write(send);
        }
        if readable && (events.contains(PollFlags::IN) || hung_up) {
            self.read(buffer, send);
        }
    }

    /// Takes a step of the host.
    fn take(&mut self, step: TunnelStep, send: &mut impl FnMut(TunnelStep)) {
        match step {
            TunnelStep::Data(bytes) => {
                if self.socket.is_some() {
                    self.waiting.extend(bytes);
                    self.write(send);
                }
            }
            TunnelStep::End => {
                self.host_sends = false;
                self.finish_writing();
            }
            TunnelStep::Credit(bytes) => {
                self.credit += usize::try_from(bytes).unwrap_or(0);
            }
            TunnelStep::Close => {
                self.closed = true;
                self.reads = false;
                if self.host_sends {
                    self.abort();
                } else {
                    self.finish();
                }
            }
            // Only the guest opens connections.
            TunnelStep::Open => {}
        }
    }

    /// Sends the next bytes from inside to the host.
    fn read(&mut self, buffer: &mut [u8], send: &mut impl FnMut(TunnelStep)) {
        let Some(socket) = &mut self.socket else { return };
        let room = self.credit.min(buffer.len());
        match socket.read(&mut buffer[..room]) {
            Ok(0) => {
                self.reads = false;
                send(TunnelStep::End);
                self.finish();
            }
            Ok(count) => {
                self.credit -= count;
                send(TunnelStep::Data(buffer[..count].to_vec()));
            }
            Err(error) if is_temporary(&error) => {}
            Err(_) => self.reset(send),
        }
    }

    /// Passes on bytes of the host, as many as the inside takes now.
    fn write(&mut self, send: &mut impl FnMut(TunnelStep)) {
        let Some(socket) = &mut self.socket else { return };
        while !self.waiting.is_empty() {
            match socket.write(self.waiting.as_slices().0) {
                Ok(count) => {
                    self.waiting.drain(..count);
                    self.passed_on += count;
                }
                Err(error) if is_temporary(&error) => break,
                Err(_) => return self.reset(send),
            }
        }
        if self.waiting.is_empty() {
            // An idle connection holds no memory.
            self.waiting = VecDeque::new();
        }
        if self.passed_on >= CREDIT_STEP && self.host_sends {
            send(TunnelStep::Credit(u32::try_from(self.passed_on).unwrap_or(u32::MAX)));
            self.passed_on = 0;
        }
        self.finish_writing();
    }

    /// Notifies the inside that the host sends no more.
    fn finish_writing(&mut self) {
        if !self.host_sends && self.waiting.is_empty() && self.writes {
            self.writes = false;
            if let Some(socket) = &self.socket {
                // An error means that the inside is gone.
                let _ = socket.shutdown(Shutdown::Write);
            }
            self.finish();
        }
    }

    /// Closes the socket if both directions have ended.
    fn finish(&mut self) {
        if !self.reads && !self.writes {
            self.socket = None;
        }
    }

    /// The inside has given up the connection.
    fn reset(&mut self, send: &mut impl FnMut(TunnelStep)) {
        self.abort();
        if !self.closed {
            send(TunnelStep::Close);
        }
    }

    /// Resets the inside's end.
    fn abort(&mut self) {
        if let Some(socket) = self.socket.take() {
            // Without this, the inside would see an orderly end.
            let _ = set_socket_linger(&socket, Some(Duration::ZERO));
        }
        self.waiting = VecDeque::new();
    }
}

impl Drop for Connection {
    /// A connection that has not ended by itself ends with its offer.
    fn drop(&mut self) {
        self.abort();
    }
}

fn is_temporary(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}
