//! The life of sessions, without a server.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::*;
use crate::resource::ToolSpec;

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
            return Err(ToolError::new(ErrorCode::InvalidInput, "no"));
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
async fn concurrent_callers_open_the_same_session_once() {
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
async fn a_caller_that_waits_for_a_failed_opening_opens_the_session_itself() {
    let (sessions, counted) = (Sessions::new(limits()), Counted::default());
    let fail: Params = json!({"fail": true}).as_object().unwrap().clone();
    let none = Params::new();
    let both =
        tokio::join!(sessions.open("w", &counted, &fail, None), sessions.open("w", &counted, &none, None),);
    assert_eq!(both.0.err().unwrap().code, ErrorCode::InvalidInput);
    assert!(!both.1.unwrap().1);
    // The same if the first caller is cancelled.
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
    assert_eq!(outcome.unwrap_err().code, ErrorCode::NotInitialized);
    assert!(closed.is_some());
    assert_eq!(counted.counts(), (1, 1));
    assert!(sessions.close("w", "counted").await.is_none());
}

#[tokio::test]
async fn a_panic_of_a_tool_fails_one_call() {
    let (sessions, counted) = (Sessions::new(limits()), Counted::default());
    sessions.open("w", &counted, &Params::new(), None).await.unwrap();
    let busy = sessions.busy("w", "counted").await.unwrap();
    assert_eq!(busy.call("panic", Params::new(), &call()).await.unwrap_err().code, ErrorCode::Unexpected);
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
            assert_eq!(refused.code, ErrorCode::Overloaded);
        }
    }
    let refused = sessions.open("d", &counted, &Params::new(), None).await.err().unwrap();
    assert_eq!(refused.message, "all 5 sessions of the server are in use; close some, or try again later");
    drop(held);
    sessions.stop().await;
    assert_eq!(sessions.counts(), (0, 0));
    let refused = sessions.open("d", &counted, &Params::new(), None).await.err().unwrap();
    assert_eq!(refused.message, "the server is stopping");
}

#[tokio::test]
async fn only_idle_sessions_expire() {
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
fn names_contain_only_safe_characters() {
    assert_eq!(sanitised("../a b\n\"é"), "..-a-b---");
    assert_eq!(sanitised(&"x".repeat(100)).len(), 32);
}
