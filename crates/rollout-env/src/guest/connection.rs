//! The stream to a guest: numbers requests, and delivers replies to their callers.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rollout_guest::{
    GuestReply, GuestRequest, KillScope, MAX_REPLY, MAX_REQUEST, OUTPUT_WINDOW, VERSION, decode_reply,
    encode_request, frame_length,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    task::JoinHandle,
    time::timeout,
};

use super::tunnel::Tunnel;
use crate::environment::EnvironmentError;

/// The number of replies that wait for their caller. When it is reached, no further replies are read for any
/// caller.
const WAITING_REPLIES: usize = 8;

/// The most replies to a command besides its output: its end.
const OTHER_REPLIES: usize = 1;

/// The number of frames that wait to be sent, of callers that wait for it.
const WAITING_FRAMES: usize = 16;

/// A guest sends its first message as soon as it runs.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// A frame to send, and its permit among those that may wait.
type Outgoing = (Vec<u8>, Option<OwnedSemaphorePermit>);

/// The frames to a guest.
#[derive(Clone)]
pub(super) struct Frames {
    queue: mpsc::UnboundedSender<Outgoing>,
    room: Arc<Semaphore>,
}

impl Frames {
    /// Queues a request without waiting. For small ones, whose number is limited otherwise.
    pub(super) fn send_now(&self, id: u32, request: &GuestRequest) {
        // A closed stream is noticed by the missing reply.
        let _ = self.queue.send((encode_request(id, request), None));
    }

    /// Queues a request once there is room for it; `false` if the stream is closed.
    pub(super) async fn send(&self, id: u32, request: &GuestRequest) -> bool {
        let room = Arc::clone(&self.room).acquire_owned().await.ok();
        self.queue.send((encode_request(id, request), room)).is_ok()
    }
}

/// A stream to a guest that answers.
pub(super) struct Connection {
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
    scope: KillScope,
}

struct Shared {
    calls: Mutex<Calls>,
    frames: Frames,
}

#[derive(Default)]
struct Calls {
    last_id: u32,
    waiting: HashMap<u32, Waiting>,
    /// Why the connection is broken.
    broken: Option<String>,
}

/// Returns room for output to the guest, as its log takes it.
pub(super) struct Taken {
    frames: Frames,
    id: u32,
    count: u32,
}

impl Taken {
    /// One more output was taken.
    pub(super) fn one(&mut self) {
        self.count += 1;
        if self.count >= OUTPUT_WINDOW / 2 {
            self.frames.send_now(self.id, &GuestRequest::Taken(std::mem::take(&mut self.count)));
        }
    }
}

/// The receiver of the replies to a request.
enum Waiting {
    /// Waits for each reply. While it is busy, no further replies are read for anyone.
    Caller(mpsc::Sender<GuestReply>),
    /// Has room for all replies that the guest may send.
    Command(mpsc::Sender<GuestReply>),
    /// Takes replies at once.
    Tunnel(Tunnel),
}

impl Connection {
    pub(super) async fn open(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, EnvironmentError> {
        let start = |reason: String| EnvironmentError::Start(format!("the guest does not answer: {reason}"));
        let hello = timeout(HELLO_TIMEOUT, read_reply(&mut reader)).await;
        let scope =
            match hello.unwrap_or_else(|_| Err("it sent nothing in time".to_owned())).map_err(start)? {
                (0, GuestReply::Hello { version: VERSION, scope }) => scope,
                (0, GuestReply::Hello { version, .. }) => {
                    return Err(start(format!("its version is {version}, expected {VERSION}")));
                }
                _ => return Err(start("its first message is invalid".to_owned())),
            };
        let (queue, mut outgoing) = mpsc::unbounded_channel::<Outgoing>();
        let frames = Frames { queue, room: Arc::new(Semaphore::new(WAITING_FRAMES)) };
        let shared = Arc::new(Shared { calls: Mutex::default(), frames });
        let for_reader = Arc::clone(&shared);
        let reader = tokio::spawn(async move {
            let reason = for_reader.deliver(&mut reader).await;
            for_reader.shut(reason);
        });
        let for_writer = Arc::clone(&shared);
        let writer = tokio::spawn(async move {
            while let Some((frame, _room)) = outgoing.recv().await {
                let written = async {
                    writer.write_all(&frame).await?;
                    writer.flush().await
                };
                if let Err(error) = written.await {
                    return for_writer.shut(format!("writing to it failed: {error}"));
                }
            }
        });
        Ok(Self { shared, reader, writer, scope })
    }

    /// The processes that the guest can kill.
    pub(super) fn scope(&self) -> KillScope {
        self.scope
    }

    /// Sends a request.
    pub(super) fn call(&self, request: &GuestRequest) -> Result<Call, EnvironmentError> {
        let (sender, replies) = mpsc::channel(WAITING_REPLIES);
        let ticket = self.start(request, |_| Waiting::Caller(sender))?;
        Ok(Call { ticket, replies })
    }

    /// Sends the request of a command.
    pub(super) fn command(&self, request: &GuestRequest) -> Result<(Call, Taken), EnvironmentError> {
        let (sender, replies) = mpsc::channel(OUTPUT_WINDOW as usize + OTHER_REPLIES);
        let ticket = self.start(request, |_| Waiting::Command(sender))?;
        let taken = Taken { frames: self.shared.frames.clone(), id: ticket.id, count: 0 };
        Ok((Call { ticket, replies }, taken))
    }

    /// Offers a service of the host; returns its port inside.
    pub(super) async fn offer(&self, service: SocketAddr) -> Result<u16, EnvironmentError> {
        let (answer, port) = oneshot::channel();
        let frames = self.shared.frames.clone();
        let mut ticket =
            self.start(&GuestRequest::Offer, |id| Waiting::Tunnel(Tunnel::new(id, service, frames, answer)))?;
        match port.await {
            Ok(Ok(port)) => {
                ticket.last();
                ticket.done();
                Ok(port)
            }
            Ok(Err(reason)) => {
                ticket.done();
                Err(EnvironmentError::Command(reason))
            }
            Err(_) => Err(ticket.lost()),
        }
    }

    fn start(
        &self,
        request: &GuestRequest,
        waiting: impl FnOnce(u32) -> Waiting,
    ) -> Result<Ticket, EnvironmentError> {
        let mut calls = self.shared.lock();
        if let Some(reason) = &calls.broken {
            return Err(lost(reason));
        }
        let id = calls.last_id.checked_add(1).ok_or_else(|| lost("the request is too large"))?;
        let frame = encode_request(id, request);
        if frame.len() > MAX_REQUEST {
            let reason = format!("a command and its variables may have {MAX_REQUEST} bytes at most");
            return Err(EnvironmentError::Command(reason));
        }
        calls.last_id = id;
        calls.waiting.insert(id, waiting(id));
        drop(calls);
        // A closed stream is noticed by the missing reply.
        let _ = self.shared.frames.queue.send((frame, None));
        Ok(Ticket { shared: Arc::clone(&self.shared), id, open: true.into(), lasting: false })
    }

    /// Waits for the end of the stream, with a timeout.
    pub(super) async fn ended(&mut self, patience: Duration) {
        let _ = timeout(patience, &mut self.reader).await;
    }

    /// Closes the stream.
    pub(super) fn close(&self) {
        self.reader.abort();
        self.writer.abort();
        self.shared.shut("the connection was closed".to_owned());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers replies to their callers until the stream ends; returns the reason.
    async fn deliver(&self, reader: &mut (impl AsyncRead + Unpin)) -> String {
        loop {
            let (id, reply) = match read_reply(reader).await {
                Ok(reply) => reply,
                Err(reason) => return reason,
            };
            let sender = {
                let mut calls = self.lock();
                if id == 0 || id > calls.last_id {
                    return "it sent an unexpected reply".to_owned();
                }
                match calls.waiting.get_mut(&id) {
                    Some(Waiting::Caller(sender)) => Some(sender.clone()),
                    Some(Waiting::Command(sender)) => {
                        match sender.try_send(reply) {
                            Ok(()) => {}
                            Err(TrySendError::Full(_)) => {
                                return "it sent more output than there is room for".to_owned();
                            }
                            Err(TrySendError::Closed(_)) => drop(calls.waiting.remove(&id)),
                        }
                        continue;
                    }
                    Some(Waiting::Tunnel(tunnel)) => {
                        if tunnel.take(reply).is_err() {
                            return "it violated the protocol of tunnels".to_owned();
                        }
                        continue;
                    }
                    None => None,
                }
            };
            if let Some(sender) = sender
                && sender.send(reply).await.is_err()
            {
                self.lock().waiting.remove(&id);
            }
        }
    }

    /// Ends all calls, with the first reason that was given.
    fn shut(&self, reason: String) {
        let mut calls = self.lock();
        calls.broken.get_or_insert(reason);
        let ended = std::mem::take(&mut calls.waiting);
        drop(calls);
        // Ends the connections of tunnels, too.
        drop(ended);
    }

    fn reason(&self) -> String {
        self.lock().broken.clone().unwrap_or_else(|| "it does not answer".to_owned())
    }
}

/// A request in progress. Dropping it before its end cancels it.
pub(super) struct Call {
    pub(super) ticket: Ticket,
    pub(super) replies: mpsc::Receiver<GuestReply>,
}

impl Call {
    /// The next reply.
    pub(super) async fn next(&mut self) -> Result<GuestReply, EnvironmentError> {
        match self.replies.recv().await {
            Some(GuestReply::Failed(reason)) => {
                self.ticket.done();
                Err(EnvironmentError::Command(reason))
            }
            Some(reply) => Ok(reply),
            None => Err(self.ticket.lost()),
        }
    }

    /// Waits for the end of a request that has no other reply.
    pub(super) async fn done(mut self) -> Result<(), EnvironmentError> {
        match self.next().await? {
            GuestReply::Done => {
                self.ticket.done();
                Ok(())
            }
            _ => Err(self.ticket.protocol_error()),
        }
    }
}

/// A handle for adding to a request, and for cancelling it.
pub(super) struct Ticket {
    shared: Arc<Shared>,
    id: u32,
    open: AtomicBool,
    /// Whether replies arrive even after the end.
    lasting: bool,
}

impl Ticket {
    /// Sends more of the request, once there is room for it.
    pub(super) async fn send(&self, request: &GuestRequest) -> Result<(), EnvironmentError> {
        if self.shared.frames.send(self.id, request).await { Ok(()) } else { Err(self.lost()) }
    }

    /// Keeps delivering replies as long as there is a receiver.
    pub(super) fn last(&mut self) {
        self.lasting = true;
    }

    /// Marks the request as ended, so that it is not cancelled.
    pub(super) fn done(&self) {
        self.open.store(false, Ordering::SeqCst);
    }

    pub(super) fn lost(&self) -> EnvironmentError {
        lost(&self.shared.reason())
    }

    /// The guest violated the protocol: the connection is closed, because its messages can no longer be
    /// trusted.
    pub(super) fn protocol_error(&self) -> EnvironmentError {
        self.shared.shut("it violated the protocol".to_owned());
        self.lost()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open.load(Ordering::SeqCst) {
            self.shared.frames.send_now(self.id, &GuestRequest::Cancel);
        }
        if !self.lasting {
            self.shared.lock().waiting.remove(&self.id);
        }
    }
}

async fn read_reply(reader: &mut (impl AsyncRead + Unpin)) -> Result<(u32, GuestReply), String> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "it ended".to_owned(),
        _ => format!("reading from it failed: {error}"),
    };
    let malformed = |error: rollout_guest::Malformed| format!("it sent {error}");
    let mut header = [0; 4];
    reader.read_exact(&mut header).await.map_err(failed)?;
    let mut frame = vec![0; frame_length(header, MAX_REPLY).map_err(malformed)?];
    reader.read_exact(&mut frame).await.map_err(failed)?;
    decode_reply(&frame).map_err(malformed)
}

fn lost(reason: &str) -> EnvironmentError {
    EnvironmentError::Lost(format!("the environment was lost: {reason}"))
}
