//! Sessions: opened once, kept while they are used, closed in all cases.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{RwLock, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Call, Code, Params, Resource, Session, ToolError};

/// How long a session may take to end. What is left then, its resource has to look after.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of the name of a worker, and of a name of the client's choice, goes into the name of a session.
const NAME_CHARS: usize = 32;

/// What sessions have to keep to.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionLimits {
    /// How long one is kept that nobody uses.
    pub(super) ttl: Duration,
    /// How many there are at a time.
    pub(super) all: usize,
    /// How many a worker has at a time.
    pub(super) per_worker: usize,
    /// How long one may take to open.
    pub(super) open: Duration,
}

/// All sessions of a server.
pub(super) struct Sessions {
    limits: SessionLimits,
    state: Mutex<State>,
    /// What closes sessions after whoever used them is gone.
    closing: TaskTracker,
}

#[derive(Default)]
struct State {
    /// By worker, then by the type of their resource.
    kept: HashMap<String, IndexMap<String, Arc<Opened>>>,
    /// How many sessions each worker has, temporary ones and those that are being closed included.
    places: HashMap<String, usize>,
    taken: usize,
    /// How many sessions there have been: it goes into their names.
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
    place: Mutex<Option<Place>>,
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
    /// Calls that run. A session is not expired under them.
    running: usize,
}

/// The right to one session.
struct Place {
    sessions: Arc<Sessions>,
    worker: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.sessions.state();
        state.taken -= 1;
        if let Some(taken) = state.places.get_mut(&self.worker) {
            *taken -= 1;
            if *taken == 0 {
                state.places.remove(&self.worker);
                state.numbers.retain(|(worker, _), _| *worker != self.worker);
            }
        }
    }
}

/// A session in which something is being done.
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

/// A session for one call, which is closed afterwards whatever becomes of the call.
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
        let opened = Arc::clone(&self.opened);
        self.sessions.closing.spawn(async move { opened.close().await });
    }
}

/// A session that is being opened. Whoever does it may go away.
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
            drop(self.opened.place().take());
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
    fn new(worker: &str, resource_type: &str, number: u32, custom: Option<&str>, place: Place) -> Self {
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
            ended: CancellationToken::new(),
            session: RwLock::new(None),
            activity: Mutex::new(Activity { last: Instant::now(), last_at: now, running: 0 }),
            place: Mutex::new(Some(place)),
        }
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> MutexGuard<'_, Option<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is open, or will never be.
    async fn settled(&self) -> Phase {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as the session.
        phase.wait_for(|phase| *phase != Phase::Opening).await.map_or(Phase::Gone, |phase| *phase)
    }

    /// Ends the calls in it, then the session itself.
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
        drop(self.place().take());
    }

    fn gone(&self) -> ToolError {
        let text = format!("the session {} was closed meanwhile", self.id);
        ToolError::new(Code::NotInitialized, text)
    }

    /// What is told of it in lists.
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

/// As much of a client's text as is fit for a name.
fn sanitised(text: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    text.chars().take(NAME_CHARS).map(fit).collect()
}

/// A panic of a tool is a failure of one call, not of the server.
async fn unpanicked<T>(future: impl Future<Output = Result<T, ToolError>>) -> Result<T, ToolError> {
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|_| {
        Err(ToolError::new(Code::Unexpected, "the tool failed in a way that is a bug of the server"))
    })
}

impl Sessions {
    pub(super) fn new(limits: SessionLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default(), closing: TaskTracker::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ttl(&self) -> Duration {
        self.limits.ttl
    }

    /// How many workers have sessions, and how many sessions there are.
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.places.len(), state.taken)
    }

    /// Opens the worker's session of a resource, or finds it open; the flag tells which.
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
                    // It came to nothing; now it is our turn.
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
        let place = self.take_place(&mut self.state(), worker)?;
        let opened = Arc::new(Opened::new(worker, resource.name(), 0, Some("temporary"), place));
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
                Err(ToolError::new(Code::Timeout, text))
            })?,
        };
        *opened.session.write().await = Some(session);
        opened.activity().touch();
        if opened.ended.is_cancelled() {
            // Whoever closed it found nothing to close yet.
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
        let place = self.take_place(&mut state, worker)?;
        let number = state.numbers.entry((worker.to_owned(), kind.to_owned())).or_default();
        *number += 1;
        let opened = Arc::new(Opened::new(worker, kind, *number, custom, place));
        state.kept.entry(worker.to_owned()).or_default().insert(kind.to_owned(), Arc::clone(&opened));
        Ok(Entered::New(opened))
    }

    fn take_place(self: &Arc<Self>, state: &mut State, worker: &str) -> Result<Place, ToolError> {
        if state.stopping {
            return Err(ToolError::new(Code::Overloaded, "the server is stopping"));
        }
        let SessionLimits { all, per_worker, .. } = self.limits;
        if state.taken >= all {
            let text = format!("all {all} sessions of the server are in use; close some, or try again later");
            return Err(ToolError::new(Code::Overloaded, text));
        }
        let own = state.places.entry(worker.to_owned()).or_default();
        if *own >= per_worker {
            let text = format!("the worker has {per_worker} sessions already, and more are not allowed");
            return Err(ToolError::new(Code::Overloaded, text));
        }
        *own += 1;
        state.taken += 1;
        Ok(Place { sessions: Arc::clone(self), worker: worker.to_owned() })
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

    /// Counts a session as used now, and says until when it is kept.
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
        opened.close().await;
        Some(opened)
    }

    /// Closes all sessions of a worker, and says how many those were.
    pub(super) async fn disconnect(&self, worker: &str) -> usize {
        let sessions = self.state().kept.remove(worker).unwrap_or_default();
        futures_util::future::join_all(sessions.values().map(|opened| opened.close())).await.len()
    }

    /// Closes everything and lets nothing new in; says how many sessions were closed.
    pub(super) async fn stop(&self) -> usize {
        let sessions: Vec<_> = {
            let mut state = self.state();
            state.stopping = true;
            state.kept.drain().flat_map(|(_, sessions)| sessions.into_values()).collect()
        };
        futures_util::future::join_all(sessions.iter().map(|opened| opened.close())).await;
        self.closing.close();
        self.closing.wait().await;
        sessions.len()
    }

    /// Closes sessions that nobody uses, for ever.
    pub(super) async fn expire(&self) {
        let pause = (self.limits.ttl / 10).clamp(Duration::from_millis(20), Duration::from_secs(5));
        loop {
            tokio::time::sleep(pause).await;
            for opened in self.expired() {
                tracing::info!("the session {} has expired", opened.id);
                self.closing.spawn(async move { opened.close().await });
            }
        }
    }

    /// Takes those out that have been idle for too long.
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::ToolSpec;

    /// A resource that counts its sessions.
    #[derive(Clone, Default)]
    struct Counted(Arc<Counts>);

    struct Counts {
        opened: AtomicUsize,
        closed: AtomicUsize,
        /// Lets sessions open.
        gate: Semaphore,
    }

    impl Default for Counts {
        fn default() -> Self {
            Self { opened: AtomicUsize::new(0), closed: AtomicUsize::new(0), gate: Semaphore::new(1000) }
        }
    }

    impl Counted {
        fn counts(&self) -> (usize, usize) {
            (self.0.opened.load(Ordering::SeqCst), self.0.closed.load(Ordering::SeqCst))
        }
    }

    #[async_trait]
    impl Resource for Counted {
        fn name(&self) -> &str {
            "counted"
        }

        fn tools(&self) -> Vec<ToolSpec> {
            Vec::new()
        }

        async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
            let _open = self.0.gate.acquire().await.unwrap();
            if config.contains_key("fail") {
                return Err(ToolError::new(Code::InvalidInput, "no"));
            }
            self.0.opened.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(self.clone()))
        }
    }

    #[async_trait]
    impl Session for Counted {
        async fn call(&self, tool: &str, _: Params, _: &Call) -> Result<Value, ToolError> {
            match tool {
                "hang" => std::future::pending().await,
                "panic" => panic!("as asked"),
                _ => Ok(Value::Null),
            }
        }

        async fn close(self: Box<Self>) {
            self.0.closed.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn limits() -> SessionLimits {
        let (ttl, open) = (Duration::from_secs(300), Duration::from_secs(60));
        SessionLimits { ttl, all: 5, per_worker: 2, open }
    }

    fn call() -> Call {
        Call { worker_id: "w".into(), session_id: "s".into(), timeout: Duration::from_secs(60) }
    }

    #[tokio::test]
    async fn two_who_need_the_same_session_open_it_once() {
        let (sessions, counted) = (Sessions::new(limits()), Counted::default());
        let none = Params::new();
        let both = tokio::join!(
            sessions.open("w", &counted, &none, None),
            sessions.open("w", &counted, &none, Some("mine")),
        );
        let (first, second) = (both.0.unwrap(), both.1.unwrap());
        assert_eq!((first.1, second.1), (false, true));
        assert_eq!(first.0.id, second.0.id);
        assert_eq!(counted.counts(), (1, 0));
        assert_eq!(first.0.name, "counted_w_001");
        assert_eq!(sessions.disconnect("w").await, 1);
        assert_eq!(counted.counts(), (1, 1));
        assert_eq!(sessions.counts(), (0, 0));
    }

    #[tokio::test]
    async fn whoever_waits_for_an_opening_that_comes_to_nothing_opens_it_himself() {
        let (sessions, counted) = (Sessions::new(limits()), Counted::default());
        let fail: Params = json!({"fail": true}).as_object().unwrap().clone();
        let none = Params::new();
        let both = tokio::join!(
            sessions.open("w", &counted, &fail, None),
            sessions.open("w", &counted, &none, None),
        );
        assert_eq!(both.0.err().unwrap().code, Code::InvalidInput);
        assert!(!both.1.unwrap().1);
        // The same if the first one goes away.
        sessions.disconnect("w").await;
        counted.0.gate.forget_permits(1000);
        let opening = {
            let (sessions, counted) = (Arc::clone(&sessions), counted.clone());
            tokio::spawn(async move { sessions.open("w", &counted, &Params::new(), None).await.map(drop) })
        };
        while sessions.counts().1 == 0 {
            tokio::task::yield_now().await;
        }
        opening.abort();
        assert!(opening.await.unwrap_err().is_cancelled());
        assert_eq!(sessions.counts(), (0, 0));
    }

    #[tokio::test]
    async fn a_session_that_is_closed_ends_its_calls() {
        let (sessions, counted) = (Sessions::new(limits()), Counted::default());
        sessions.open("w", &counted, &Params::new(), None).await.unwrap();
        let busy = sessions.busy("w", "counted").await.unwrap();
        let call = call();
        let (outcome, closed) = tokio::join!(busy.call("hang", Params::new(), &call), async {
            tokio::task::yield_now().await;
            sessions.close("w", "counted").await
        });
        assert_eq!(outcome.unwrap_err().code, Code::NotInitialized);
        assert!(closed.is_some());
        assert_eq!(counted.counts(), (1, 1));
        assert!(sessions.close("w", "counted").await.is_none());
    }

    #[tokio::test]
    async fn a_panic_of_a_tool_is_the_failure_of_one_call() {
        let (sessions, counted) = (Sessions::new(limits()), Counted::default());
        sessions.open("w", &counted, &Params::new(), None).await.unwrap();
        let busy = sessions.busy("w", "counted").await.unwrap();
        assert_eq!(busy.call("panic", Params::new(), &call()).await.unwrap_err().code, Code::Unexpected);
        assert_eq!(busy.call("other", Params::new(), &call()).await, Ok(Value::Null));
    }

    #[tokio::test]
    async fn a_temporary_session_is_closed_when_its_call_is_dropped() {
        let (sessions, counted) = (Sessions::new(limits()), Counted::default());
        let temporary = sessions.open_temporary("w", &counted).await.unwrap();
        assert_eq!(sessions.counts(), (1, 1));
        {
            let (busy, call) = (temporary.busy(), call());
            let hanging = busy.call("hang", Params::new(), &call);
            assert!(hanging.now_or_never().is_none());
        }
        drop(temporary);
        assert_eq!(sessions.stop().await, 0);
        assert_eq!((counted.counts(), sessions.counts()), ((1, 1), (0, 0)));
    }

    #[tokio::test]
    async fn sessions_are_bounded_in_all_and_for_each_worker() {
        let (sessions, counted) = (Sessions::new(limits()), Counted::default());
        let mut held = Vec::new();
        for worker in ["a", "a", "b", "b", "c"] {
            held.push(sessions.open_temporary(worker, &counted).await.unwrap());
            if worker == "a" && held.len() == 2 {
                let refused = sessions.open("a", &counted, &Params::new(), None).await.err().unwrap();
                assert_eq!(refused.code, Code::Overloaded);
            }
        }
        let refused = sessions.open("d", &counted, &Params::new(), None).await.err().unwrap();
        assert_eq!(
            refused.message,
            "all 5 sessions of the server are in use; close some, or try again later"
        );
        drop(held);
        sessions.stop().await;
        assert_eq!(sessions.counts(), (0, 0));
        let refused = sessions.open("d", &counted, &Params::new(), None).await.err().unwrap();
        assert_eq!(refused.message, "the server is stopping");
    }

    #[tokio::test]
    async fn only_what_nobody_uses_expires() {
        let limits = SessionLimits { ttl: Duration::ZERO, ..limits() };
        let (sessions, counted) = (Sessions::new(limits), Counted::default());
        sessions.open("w", &counted, &Params::new(), None).await.unwrap();
        let busy = sessions.busy("w", "counted").await.unwrap();
        assert!(sessions.expired().is_empty());
        drop(busy);
        assert_eq!(sessions.expired().len(), 1);
        assert!(sessions.of("w").is_empty());
    }

    #[test]
    fn names_are_made_of_harmless_characters() {
        assert_eq!(sanitised("../a b\n\"é"), "..-a-b---");
        assert_eq!(sanitised(&"x".repeat(100)).len(), 32);
    }
}
