//! Tracks the connections without a running request, so that the one that has been idle for longest can be
//! closed.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

/// The idle connections, ordered by when they became idle.
#[derive(Debug, Default)]
pub(crate) struct IdleConnections(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    connections: BTreeMap<u64, CancellationToken>,
}

impl IdleConnections {
    /// Adds a new connection, which is idle.
    pub(crate) fn enter(self: &Arc<Self>) -> Arc<Connection> {
        let end = CancellationToken::new();
        let turn = self.lock().wait(&end);
        let all = Arc::clone(self);
        Arc::new(Connection { all, end, begun: AtomicBool::new(false), turn: Mutex::new(Some(turn)) })
    }

    /// Closes the connection that has been idle for longest, if there is one.
    pub(crate) fn end_oldest(&self) {
        if let Some((_, connection)) = self.lock().connections.pop_first() {
            connection.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn wait(&mut self, end: &CancellationToken) -> u64 {
        let turn = self.next;
        self.next += 1;
        self.connections.insert(turn, end.clone());
        turn
    }
}

/// A connection, idle or not.
#[derive(Debug)]
pub(crate) struct Connection {
    all: Arc<IdleConnections>,
    end: CancellationToken,
    begun: AtomicBool,
    /// Its position among the idle ones.
    turn: Mutex<Option<u64>>,
}

impl Connection {
    /// Marks the connection as busy until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.begun.store(true, Ordering::Relaxed);
        self.leave();
        Busy(Arc::clone(self))
    }

    /// Whether it ever had a request.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Waits until it must be closed.
    pub(crate) async fn ended(&self) {
        self.end.cancelled().await;
    }

    fn leave(&self) {
        if let Some(turn) = self.turn.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.all.lock().connections.remove(&turn);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A running request.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Connection>);

impl Drop for Busy {
    fn drop(&mut self) {
        let turn = self.0.all.lock().wait(&self.0.end);
        *self.0.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
    }
}

/// A response body that keeps its connection busy.
pub(crate) struct GuardedBody {
    body: Body,
    _busy: Busy,
}

impl GuardedBody {
    pub(crate) fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
