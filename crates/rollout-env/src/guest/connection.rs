//! The stream to a guest: numbers requests, and delivers replies to their callers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rollout_guest::{
    GuestReply, GuestRequest, MAX_REPLY, MAX_REQUEST, VERSION, decode_reply, encode_request, frame_length,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};

use crate::environment::EnvironmentError;

/// The number of replies that wait for their caller. When it is reached, no further replies are read for any
/// caller.
const WAITING_REPLIES: usize = 8;

/// The number of frames that wait to be sent, of callers that wait for it.
const WAITING_FRAMES: usize = 16;

/// A guest sends its first message as soon as it runs.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// A frame to send, and its permit among those that may wait.
type Outgoing = (Vec<u8>, Option<OwnedSemaphorePermit>);

/// A stream to a guest that answers.
pub(super) struct Connection {
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

struct Shared {
    calls: Mutex<Calls>,
    frames: mpsc::UnboundedSender<Outgoing>,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Calls {
    last_id: u32,
    waiting: HashMap<u32, mpsc::Sender<GuestReply>>,
    /// Why the connection is broken.
    broken: Option<String>,
}

impl Connection {
    pub(super) async fn open(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, EnvironmentError> {
        let start = |reason: String| EnvironmentError::Start(format!("the guest does not answer: {reason}"));
        let hello = timeout(HELLO_TIMEOUT, read_reply(&mut reader)).await;
        match hello.unwrap_or_else(|_| Err("it sent nothing in time".to_owned())).map_err(start)? {
            (0, GuestReply::Hello { version: VERSION }) => {}
            (0, GuestReply::Hello { version }) => {
                return Err(start(format!("its version is {version}, expected {VERSION}")));
            }
            _ => return Err(start("its first message is invalid".to_owned())),
        }
        let (frames, mut outgoing) = mpsc::unbounded_channel::<Outgoing>();
        let room = Arc::new(Semaphore::new(WAITING_FRAMES));
        let shared = Arc::new(Shared { calls: Mutex::default(), frames, room });
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
        Ok(Self { shared, reader, writer })
    }

    /// Sends a request.
    pub(super) fn call(&self, request: &GuestRequest) -> Result<Call, EnvironmentError> {
        let (sender, replies) = mpsc::channel(WAITING_REPLIES);
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
        calls.waiting.insert(id, sender);
        drop(calls);
        // A closed stream is noticed by the missing reply.
        let _ = self.shared.frames.send((frame, None));
        let shared = Arc::clone(&self.shared);
        let ticket = Ticket { shared, id, open: true.into(), lasting: false };
        Ok(Call { ticket, replies })
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
                let calls = self.lock();
                if id == 0 || id > calls.last_id {
                    return "it sent an unexpected reply".to_owned();
                }
                calls.waiting.get(&id).cloned()
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
        calls.waiting.clear();
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
        let frame = encode_request(self.id, request);
        let room = Arc::clone(&self.shared.room).acquire_owned().await.ok();
        self.shared.frames.send((frame, room)).map_err(|_| self.lost())
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
            let _ = self.shared.frames.send((encode_request(self.id, &GuestRequest::Cancel), None));
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
