//! Sessions: opened once, kept while they are used, and always closed.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, future::join_all};
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::{
    sync::{RwLock, watch},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::resource::{Call, ErrorCode, Params, Resource, Session, ToolError};

/// The timeout for closing a session. Its resource must clean up the rest.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of characters of a worker's name, and of a client's name, in the name of a session.
const NAME_CHARS: usize = 32;

/// The limits of sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionLimits {
    /// How long an idle session is kept.
    pub(super) ttl: Duration,
    /// The most sessions at a time.
    pub(super) all: usize,
    /// The most sessions of a worker at a time.
    pub(super) per_worker: usize,
    /// The timeout for opening a session.
    pub(super) open: Duration,
}

/// All sessions of a server.
pub(super) struct Sessions {
    limits: SessionLimits,
    state: Mutex<State>,
    /// Closes sessions, even if the client that used or closed them is gone.
    closing: TaskTracker,
    /// Ends the calls of all sessions, including temporary ones.
    ended: CancellationToken,
}

#[derive(Default)]
struct State {
    /// By worker, then by the type of their resource.
    kept: HashMap<String, IndexMap<String, Arc<Opened>>>,
    /// The number of sessions of each worker, including temporary ones and those that are being closed.
    slots: HashMap<String, usize>,
    taken: usize,
    /// The number of sessions so far, used in their names.
    numbers: HashMap<(String, String), u32>,
    stopping: bool,
}

/// One session.
pub(super) struct Opened {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) resource_type: String,
    pub(super) worker: String,
    created_at: Timestamp,
    phase: watch::Sender<Phase>,
    /// Ends the calls that run in it.
    ended: CancellationToken,
    session: RwLock<Option<Box<dyn Session>>>,
    activity: Mutex<Activity>,
    slot: Mutex<Option<SessionSlot>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Open,
    Gone,
}

struct Activity {
    last: Instant,
    last_at: Timestamp,
    /// The number of running calls. The session does not expire meanwhile.
    running: usize,
}

/// A slot for one session.
struct SessionSlot {
    sessions: Arc<Sessions>,
    worker: String,
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let mut state = self.sessions.state();
        state.taken -= 1;
        if let Some(taken) = state.slots.get_mut(&self.worker) {
            *taken -= 1;
            if *taken == 0 {
                state.slots.remove(&self.worker);
                state.numbers.retain(|(worker, _), _| *worker != self.worker);
            }
        }
    }
}

/// A session that is in use.
pub(super) struct Busy(Arc<Opened>);

impl Busy {
    fn new(opened: Arc<Opened>) -> Self {
        opened.activity().running += 1;
        Self(opened)
    }

    pub(super) fn opened(&self) -> &Opened {
        &self.0
    }

    /// Calls a tool by its name without the prefix.
    pub(super) async fn call(&self, tool: &str, params: Params, call: &Call) -> Result<Value, ToolError> {
        let session = self.0.session.read().await;
        let Some(session) = session.as_deref() else { return Err(self.0.gone()) };
        tokio::select! {
            biased;
            () = self.0.ended.cancelled() => Err(self.0.gone()),
            outcome = unpanicked(session.call(tool, params, call)) => outcome,
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut activity = self.0.activity();
        activity.running -= 1;
        activity.touch();
    }
}

/// A session for one call, which is closed afterwards whatever the call's outcome.
pub(super) struct Temporary {
    sessions: Arc<Sessions>,
    opened: Arc<Opened>,
}

impl Temporary {
    pub(super) fn busy(&self) -> Busy {
        Busy::new(Arc::clone(&self.opened))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        drop(self.sessions.end(Arc::clone(&self.opened)));
    }
}

/// A session that is being opened. The caller may be cancelled meanwhile.
struct Unfinished<'s> {
    sessions: &'s Sessions,
    opened: &'s Arc<Opened>,
    done: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.sessions.forget(self.opened);
            self.opened.phase.send_replace(Phase::Gone);
            drop(self.opened.slot().take());
        }
    }
}

impl Activity {
    fn touch(&mut self) {
        self.last = Instant::now();
        self.last_at = Timestamp::now();
    }
}

impl Opened {
    fn new(worker: &str, resource_type: &str, number: u32, custom: Option<&str>, slot: SessionSlot) -> Self {
        let mut name = format!("{resource_type}_{}_{number:03}", sanitised(worker));
        if let Some(custom) = custom.filter(|custom| !custom.is_empty()) {
            name = format!("{name}_{}", sanitised(custom));
        }
        let now = Timestamp::now();
        Self {
            id: format!("{name}_{:08x}", fastrand::u32(..)),
            name,
            resource_type: resource_type.to_owned(),
            worker: worker.to_owned(),
            created_at: now,
            phase: watch::Sender::new(Phase::Opening),
            ended: slot.sessions.ended.child_token(),
            session: RwLock::new(None),
            activity: Mutex::new(Activity { last: Instant::now(), last_at: now, running: 0 }),
            slot: Mutex::new(Some(slot)),
        }
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self) -> MutexGuard<'_, Option<SessionSlot>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is open or has failed to open.
    async fn settled(&self) -> Phase {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as the session.
        phase.wait_for(|phase| *phase != Phase::Opening).await.map_or(Phase::Gone, |phase| *phase)
    }

    /// Ends the calls in it, then closes the session.
    async fn close(&self) {
        self.ended.cancel();
        self.phase.send_replace(Phase::Gone);
        let session = self.session.write().await.take();
        if let Some(session) = session
            && tokio::time::timeout(CLOSE_TIMEOUT, AssertUnwindSafe(session.close()).catch_unwind())
                .await
                .is_err()
        {
            tracing::warn!("the session {} did not end in time", self.id);
        }
        drop(self.slot().take());
    }

    fn gone(&self) -> ToolError {
        let text = format!("the session {} was closed in the meantime", self.id);
        ToolError::new(ErrorCode::NotInitialized, text)
    }

    /// Its description in lists.
    pub(super) fn describe(&self, ttl: Duration) -> Value {
        let last_at = self.activity().last_at;
        json!({
            "resource_type": self.resource_type,
            "session_id": self.id,
            "session_name": self.name,
            "status": "active",
            "auto_created": false,
            "created_at": self.created_at.to_string(),
            "last_activity": last_at.to_string(),
            "expires_at": expiry(last_at, ttl),
        })
    }
}

fn expiry(last_at: Timestamp, ttl: Duration) -> String {
    let ttl = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::MAX);
    last_at.checked_add(ttl).unwrap_or(Timestamp::MAX).to_string()
}

/// A client's text, reduced to characters that are valid in a name.
fn sanitised(text: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    text.chars().take(NAME_CHARS).map(fit).collect()
}

/// A panic of a tool fails one call, not the server.
async fn unpanicked<T>(future: impl Future<Output = Result<T, ToolError>>) -> Result<T, ToolError> {
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|_| {
        Err(ToolError::new(ErrorCode::Unexpected, "the tool panicked; this is a bug in the server"))
    })
}

impl Sessions {
    pub(super) fn new(limits: SessionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::default(),
            closing: TaskTracker::new(),
            ended: CancellationToken::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ttl(&self) -> Duration {
        self.limits.ttl
    }

    /// The number of workers with sessions, and of sessions.
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.slots.len(), state.taken)
    }

    /// Opens the worker's session of a resource, or finds it open; the flag is whether it was created.
    pub(super) async fn open(
        self: &Arc<Self>,
        worker: &str,
        resource: &dyn Resource,
        config: &Params,
        custom: Option<&str>,
    ) -> Result<(Arc<Opened>, bool), ToolError> {
        loop {
            let opened = match self.enter(worker, resource.name(), custom)? {
                Entered::New(opened) => opened,
                Entered::Known(opened) => match opened.settled().await {
                    Phase::Open => {
                        opened.activity().touch();
                        return Ok((opened, true));
                    }
                    // Opening failed, so this caller tries.
                    Phase::Gone | Phase::Opening => continue,
                },
            };
            let mut unfinished = Unfinished { sessions: self, opened: &opened, done: false };
            self.begin(&opened, resource, config).await?;
            unfinished.done = true;
            drop(unfinished);
            return Ok((opened, false));
        }
    }

    /// Opens a session for one call.
    pub(super) async fn open_temporary(
        self: &Arc<Self>,
        worker: &str,
        resource: &dyn Resource,
    ) -> Result<Temporary, ToolError> {
        let slot = self.take_slot(&mut self.state(), worker)?;
        let opened = Arc::new(Opened::new(worker, resource.name(), 0, Some("temporary"), slot));
        let temporary = Temporary { sessions: Arc::clone(self), opened: Arc::clone(&opened) };
        self.begin(&opened, resource, &Params::new()).await?;
        Ok(temporary)
    }

    async fn begin(
        &self,
        opened: &Opened,
        resource: &dyn Resource,
        config: &Params,
    ) -> Result<(), ToolError> {
        let opening = tokio::time::timeout(self.limits.open, unpanicked(resource.open(config)));
        let session = tokio::select! {
            biased;
            () = opened.ended.cancelled() => return Err(opened.gone()),
            session = opening => session.unwrap_or_else(|_| {
                let text = format!("the session was not open after {} seconds", self.limits.open.as_secs());
                Err(ToolError::new(ErrorCode::Timeout, text))
            })?,
        };
        *opened.session.write().await = Some(session);
        opened.activity().touch();
        if opened.ended.is_cancelled() {
            // It was closed before it was open, so it is closed now.
            opened.close().await;
            return Err(opened.gone());
        }
        opened.phase.send_if_modified(|phase| {
            let opening = *phase == Phase::Opening;
            if opening {
                *phase = Phase::Open;
            }
            opening
        });
        Ok(())
    }

    fn enter(self: &Arc<Self>, worker: &str, kind: &str, custom: Option<&str>) -> Result<Entered, ToolError> {
        let mut state = self.state();
        if let Some(opened) = state.kept.get(worker).and_then(|sessions| sessions.get(kind)) {
            return Ok(Entered::Known(Arc::clone(opened)));
        }
        let slot = self.take_slot(&mut state, worker)?;
        let number = state.numbers.entry((worker.to_owned(), kind.to_owned())).or_default();
        *number += 1;
        let opened = Arc::new(Opened::new(worker, kind, *number, custom, slot));
        state.kept.entry(worker.to_owned()).or_default().insert(kind.to_owned(), Arc::clone(&opened));
        Ok(Entered::New(opened))
    }

    fn take_slot(self: &Arc<Self>, state: &mut State, worker: &str) -> Result<SessionSlot, ToolError> {
        if state.stopping {
            return Err(ToolError::new(ErrorCode::Overloaded, "the server is stopping"));
        }
        let SessionLimits { all, per_worker, .. } = self.limits;
        if state.taken >= all {
            let text = format!("all {all} sessions of the server are in use; close some, or try again later");
            return Err(ToolError::new(ErrorCode::Overloaded, text));
        }
        let own = state.slots.entry(worker.to_owned()).or_default();
        if *own >= per_worker {
            let text = format!("the worker has {per_worker} sessions already, and more are not allowed");
            return Err(ToolError::new(ErrorCode::Overloaded, text));
        }
        *own += 1;
        state.taken += 1;
        Ok(SessionSlot { sessions: Arc::clone(self), worker: worker.to_owned() })
    }

    /// The worker's session of a resource, for a call. Waits for one that is being opened.
    pub(super) async fn busy(&self, worker: &str, kind: &str) -> Option<Busy> {
        loop {
            let busy = {
                let state = self.state();
                // Taken under the lock, so that it cannot expire in between.
                Busy::new(Arc::clone(state.kept.get(worker)?.get(kind)?))
            };
            match busy.0.settled().await {
                Phase::Open => return Some(busy),
                Phase::Gone => self.forget(&busy.0),
                Phase::Opening => {}
            }
        }
    }

    /// The worker's sessions.
    pub(super) fn of(&self, worker: &str) -> Vec<Arc<Opened>> {
        let state = self.state();
        let sessions = state.kept.get(worker).into_iter().flat_map(IndexMap::values);
        sessions.filter(|opened| *opened.phase.borrow() == Phase::Open).cloned().collect()
    }

    /// Marks a session as used now, and returns until when it is kept.
    pub(super) fn refresh(&self, opened: &Opened) -> String {
        let mut activity = opened.activity();
        activity.touch();
        expiry(activity.last_at, self.limits.ttl)
    }

    /// Closes the worker's session of a resource, if there is one.
    pub(super) async fn close(&self, worker: &str, kind: &str) -> Option<Arc<Opened>> {
        let opened = {
            let state = self.state();
            Arc::clone(state.kept.get(worker)?.get(kind)?)
        };
        self.forget(&opened);
        self.end_all([Arc::clone(&opened)]).await;
        Some(opened)
    }

    /// Closes a session, even if the caller does not wait.
    fn end(&self, opened: Arc<Opened>) -> JoinHandle<()> {
        self.closing.spawn(async move { opened.close().await })
    }

    async fn end_all(&self, sessions: impl IntoIterator<Item = Arc<Opened>>) -> usize {
        join_all(sessions.into_iter().map(|opened| self.end(opened))).await.len()
    }

    /// Closes all sessions of a worker, and returns their number.
    pub(super) async fn disconnect(&self, worker: &str) -> usize {
        let sessions = self.state().kept.remove(worker).unwrap_or_default();
        self.end_all(sessions.into_values()).await
    }

    /// Ends every call, closes all sessions and rejects new ones; returns the number of closed sessions.
    pub(super) async fn stop(&self) -> usize {
        let sessions: Vec<_> = {
            let mut state = self.state();
            state.stopping = true;
            state.kept.drain().flat_map(|(_, sessions)| sessions.into_values()).collect()
        };
        self.ended.cancel();
        let closed = self.end_all(sessions).await;
        self.closing.close();
        self.closing.wait().await;
        closed
    }

    /// Closes idle sessions in an endless loop.
    pub(super) async fn expire(&self) {
        let pause = (self.limits.ttl / 10).clamp(Duration::from_millis(20), Duration::from_secs(5));
        loop {
            tokio::time::sleep(pause).await;
            for opened in self.expired() {
                tracing::info!("the session {} has expired", opened.id);
                drop(self.end(opened));
            }
        }
    }

    /// Removes and returns the sessions that have been idle for too long.
    fn expired(&self) -> Vec<Arc<Opened>> {
        let mut expired = Vec::new();
        let mut state = self.state();
        state.kept.retain(|_, sessions| {
            sessions.retain(|_, opened| {
                let activity = opened.activity();
                let idle = activity.running == 0 && activity.last.elapsed() >= self.limits.ttl;
                drop(activity);
                let over = idle && *opened.phase.borrow() == Phase::Open;
                if over {
                    expired.push(Arc::clone(opened));
                }
                !over
            });
            !sessions.is_empty()
        });
        expired
    }

    fn forget(&self, opened: &Arc<Opened>) {
        let mut state = self.state();
        if let Some(sessions) = state.kept.get_mut(&opened.worker) {
            sessions.retain(|_, other| !Arc::ptr_eq(other, opened));
            if sessions.is_empty() {
                state.kept.remove(&opened.worker);
            }
        }
    }
}

enum Entered {
    New(Arc<Opened>),
    Known(Arc<Opened>),
}

#[cfg(test)]
mod tests;
