//! The host's side of a tunnel: carries connections from inside a container to a service of the host.
//!
//! Steps of the guest are taken at once, so a slow service holds up nothing else: the bytes of a connection
//! wait here, at most [`WINDOW`] of them. A guest that sends more has violated the protocol.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::BufMut as _;
use rollout_guest::{CREDIT_STEP, GuestReply, GuestRequest, MAX_CONNECTIONS, MAX_DATA, TunnelStep, WINDOW};
use tokio::{
    io::AsyncWriteExt as _,
    net::tcp::{ReadHalf, WriteHalf},
    sync::{Notify, oneshot},
    task::{AbortHandle, JoinSet},
};

use super::connection::Frames;
use crate::service;

/// The guest sent a step that it must not send.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation;

/// An offered service, with its connections. Dropping it resets them.
pub(super) struct Tunnel {
    id: u32,
    service: SocketAddr,
    frames: Frames,
    /// Receives the port, or why there is none.
    answer: Option<oneshot::Sender<Result<u16, String>>>,
    /// The number of the last connection.
    last: u32,
    open: Open,
    tasks: JoinSet<()>,
}

/// The connections that have not ended here.
type Open = Arc<Mutex<HashMap<u32, (Arc<Flow>, AbortHandle)>>>;

impl Tunnel {
    pub(super) fn new(
        id: u32,
        service: SocketAddr,
        frames: Frames,
        answer: oneshot::Sender<Result<u16, String>>,
    ) -> Self {
        Self {
            id,
            service,
            frames,
            answer: Some(answer),
            last: 0,
            open: Open::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Takes a reply of the guest. Never waits.
    pub(super) fn take(&mut self, reply: GuestReply) -> Result<(), Violation> {
        match reply {
            GuestReply::Offered { port } => self.answer(Ok(port)),
            GuestReply::Failed(reason) => self.answer(Err(reason)),
            GuestReply::Tunnel { connection, step: TunnelStep::Open } => self.open(connection),
            GuestReply::Tunnel { connection, step } => self.step(connection, step),
            _ => Err(Violation),
        }
    }

    fn answer(&mut self, answer: Result<u16, String>) -> Result<(), Violation> {
        // The caller may have stopped waiting.
        let _ = self.answer.take().ok_or(Violation)?.send(answer);
        Ok(())
    }

    fn open(&mut self, number: u32) -> Result<(), Violation> {
        // What has ended is let go.
        while self.tasks.try_join_next().is_some() {}
        let mut open = lock(&self.open);
        if number == 0 || Some(number) != self.last.checked_add(1) || open.len() >= MAX_CONNECTIONS {
            return Err(Violation);
        }
        self.last = number;
        let flow = Arc::new(Flow::new());
        let carried = Carried {
            id: self.id,
            number,
            flow: Arc::clone(&flow),
            frames: self.frames.clone(),
            open: Arc::clone(&self.open),
        };
        let service = self.service;
        let task = self.tasks.spawn(async move {
            if let Err(error) = carried.carry(service).await {
                tracing::debug!(%service, %error, "a connection through the tunnel was reset");
            }
        });
        open.insert(number, (flow, task));
        Ok(())
    }

    fn step(&self, number: u32, step: TunnelStep) -> Result<(), Violation> {
        if number == 0 || number > self.last {
            return Err(Violation);
        }
        let open = lock(&self.open);
        // The guest may not have received the end of this connection yet.
        let Some((flow, task)) = open.get(&number) else { return Ok(()) };
        match step {
            TunnelStep::Data(bytes) => flow.arrived(bytes),
            TunnelStep::End => flow.ended(),
            TunnelStep::Credit(bytes) => flow.credited(bytes),
            TunnelStep::Close => {
                task.abort();
                Ok(())
            }
            TunnelStep::Open => Err(Violation),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of a connection that the stream's reader and the connection's task share.
struct Flow {
    state: Mutex<FlowState>,
    /// Bytes or their end have arrived.
    arrival: Notify,
    /// The guest has returned credit.
    credit: Notify,
}

struct FlowState {
    /// The bytes from inside that the service has not read yet.
    waiting: Vec<u8>,
    /// Whether the inside sends no more.
    ended: bool,
    /// The bytes that the guest may still send.
    allowed: usize,
    /// The bytes that may be sent to the guest.
    credit: usize,
}

impl Flow {
    fn new() -> Self {
        let state = FlowState { waiting: Vec::new(), ended: false, allowed: WINDOW, credit: WINDOW };
        Self { state: Mutex::new(state), arrival: Notify::new(), credit: Notify::new() }
    }

    fn arrived(&self, bytes: Vec<u8>) -> Result<(), Violation> {
        let mut state = lock(&self.state);
        if state.ended {
            return Err(Violation);
        }
        state.allowed = state.allowed.checked_sub(bytes.len()).ok_or(Violation)?;
        if state.waiting.is_empty() {
            state.waiting = bytes;
        } else {
            state.waiting.extend(bytes);
        }
        self.arrival.notify_one();
        Ok(())
    }

    fn ended(&self) -> Result<(), Violation> {
        let before = std::mem::replace(&mut lock(&self.state).ended, true);
        self.arrival.notify_one();
        if before { Err(Violation) } else { Ok(()) }
    }

    fn credited(&self, bytes: u32) -> Result<(), Violation> {
        let mut state = lock(&self.state);
        let bytes = usize::try_from(bytes).map_err(|_| Violation)?;
        // More than was sent cannot be passed on.
        state.credit = state.credit.checked_add(bytes).filter(|sum| *sum <= WINDOW).ok_or(Violation)?;
        self.credit.notify_one();
        Ok(())
    }

    /// The bytes that have arrived; `None` at their end.
    async fn next(&self) -> Option<Vec<u8>> {
        loop {
            {
                let mut state = lock(&self.state);
                if !state.waiting.is_empty() {
                    return Some(std::mem::take(&mut state.waiting));
                }
                if state.ended {
                    return None;
                }
            }
            self.arrival.notified().await;
        }
    }

    /// The number of bytes that may be sent now, at least one.
    async fn allowance(&self) -> usize {
        loop {
            let credit = lock(&self.state).credit;
            if credit > 0 {
                return credit;
            }
            self.credit.notified().await;
        }
    }
}

/// A connection that is carried. However it ends, the guest is notified once, as the last step.
struct Carried {
    id: u32,
    number: u32,
    flow: Arc<Flow>,
    frames: Frames,
    open: Open,
}

impl Drop for Carried {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.number);
        self.frames.send_now(self.id, &self.request(TunnelStep::Close));
    }
}

impl Carried {
    fn request(&self, step: TunnelStep) -> GuestRequest {
        GuestRequest::Tunnel { connection: self.number, step }
    }

    /// Carries both directions to their ends.
    async fn carry(self, service: SocketAddr) -> io::Result<()> {
        let mut stream = service::connect(service).await?;
        let (read, write) = stream.split();
        tokio::try_join!(self.to_service(write), self.to_inside(read))?;
        service::ends_well(&stream)
    }

    async fn to_service(&self, mut service: WriteHalf<'_>) -> io::Result<()> {
        let mut passed_on = 0;
        while let Some(bytes) = self.flow.next().await {
            service.write_all(&bytes).await?;
            passed_on += bytes.len();
            if passed_on >= CREDIT_STEP {
                lock(&self.flow.state).allowed += passed_on;
                let credit = u32::try_from(passed_on).map_err(io::Error::other)?;
                self.frames.send_now(self.id, &self.request(TunnelStep::Credit(credit)));
                passed_on = 0;
            }
        }
        service.shutdown().await
    }

    async fn to_inside(&self, service: ReadHalf<'_>) -> io::Result<()> {
        loop {
            let room = self.flow.allowance().await.min(MAX_DATA);
            service.readable().await?;
            // Made for each read, so that an idle connection holds no memory.
            let mut bytes = Vec::with_capacity(room);
            let step = match service.try_read_buf(&mut (&mut bytes).limit(room)) {
                Ok(0) => TunnelStep::End,
                Ok(count) => {
                    lock(&self.flow.state).credit -= count;
                    TunnelStep::Data(bytes)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let is_end = step == TunnelStep::End;
            if !self.frames.send(self.id, &self.request(step)).await {
                return Err(io::ErrorKind::NotConnected.into());
            }
            if is_end {
                return Ok(());
            }
        }
    }
}
