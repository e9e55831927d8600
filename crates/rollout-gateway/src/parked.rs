//! Responses whose agents left before they got anything, for the next try of the same request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::{
    body::Body,
    http::{HeaderMap, Response, StatusCode},
};
use bytes::Bytes;
use tokio::{sync::watch, time::Instant};

use crate::answer::respond;

/// The response of a call, as far as later tries of the same request are concerned.
#[derive(Debug)]
pub(crate) struct Parked(watch::Sender<Outcome>);

#[derive(Debug, Clone)]
enum Outcome {
    /// The agent waits, or gets the response.
    Live,
    /// The agent left before it got anything, and the call goes on.
    Left,
    /// The same, and the response is complete.
    Ready(StatusCode, HeaderMap, Bytes),
    /// There is nothing for a later try.
    None,
}

impl Parked {
    /// The largest response that is kept.
    pub(crate) const MAX_BYTES: usize = 8 << 20;

    pub(crate) fn leave(&self) {
        self.0.send_replace(Outcome::Left);
    }

    pub(crate) fn fill(&self, status: StatusCode, headers: HeaderMap, body: Bytes) {
        self.0.send_replace(Outcome::Ready(status, headers, body));
    }

    pub(crate) fn give_up(&self) {
        self.0.send_replace(Outcome::None);
    }

    /// The response, when it is complete; `None` if there is none for another call.
    pub(crate) async fn response(&self) -> Option<Response<Body>> {
        let mut outcome = self.0.subscribe();
        let settled = |outcome: &Outcome| matches!(outcome, Outcome::Ready(..) | Outcome::None);
        let known = outcome.wait_for(settled).await.ok()?.clone();
        match known {
            Outcome::Ready(status, headers, body) => Some(respond(status, headers, Body::from(body))),
            Outcome::Live | Outcome::Left | Outcome::None => None,
        }
    }
}

/// The most recent calls of a session.
#[derive(Debug, Default)]
pub(crate) struct RecentCalls(Mutex<Vec<Recent>>);

#[derive(Debug)]
struct Recent {
    request: Fingerprint,
    parked: Arc<Parked>,
    begun: Instant,
}

/// Tells whether two requests are the same.
pub(crate) type Fingerprint = [u8; 32];

/// How long a response is kept: clients try again within seconds.
const SECONDS: u64 = 120;

impl RecentCalls {
    /// The earlier call with the same request whose response reached no agent. A call that the agent may still wait for
    /// counts only if its client says that this is another try.
    pub(crate) fn find(&self, request: &Fingerprint, is_retry: bool) -> Option<Arc<Parked>> {
        let calls = self.lock();
        let fits = |call: &&Recent| {
            call.request == *request
                && match *call.parked.0.borrow() {
                    Outcome::Left | Outcome::Ready(..) => true,
                    Outcome::Live => is_retry,
                    Outcome::None => false,
                }
        };
        calls.iter().rev().find(fits).map(|call| Arc::clone(&call.parked))
    }

    /// Notes a call.
    pub(crate) fn begin(&self, request: Fingerprint) -> Arc<Parked> {
        let parked = Arc::new(Parked(watch::Sender::new(Outcome::Live)));
        let mut calls = self.lock();
        calls.retain(|call| match *call.parked.0.borrow() {
            Outcome::Live | Outcome::Left => true,
            Outcome::Ready(..) => call.begun.elapsed().as_secs() < SECONDS,
            Outcome::None => false,
        });
        calls.push(Recent { request, parked: Arc::clone(&parked), begun: Instant::now() });
        parked
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Recent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
