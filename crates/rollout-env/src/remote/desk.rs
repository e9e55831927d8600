//! Creates and deletes sandboxes, with retries, on a thread that outlives the trials.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashSet},
    convert::Infallible,
    io,
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    sync::{Mutex, oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::backend::{Backend, CloudError, CloudSandbox, SandboxPlan};
use crate::{
    environment::{EnvironmentError, StartReport, with_reasons},
    work_thread::{WorkHandle, WorkThread},
};

/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);

/// How long to wait for a vendor that does not answer, before a sandbox is left to its lifetime.
const DELETE_PATIENCE: Duration = Duration::from_secs(90);

/// The pause before another attempt. It doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The longest pause.
const LAST_WAIT: Duration = Duration::from_secs(15);

/// The longest hint of a vendor that is followed.
const LONGEST_HINT: Duration = Duration::from_secs(300);

/// How often a list is checked for sandboxes that were deleted.
const CHECKS: u32 = 5;

/// The most sandboxes of one creation that are searched.
const MOST_DUPLICATES: usize = 10;

/// What the work on the thread uses.
pub(super) struct CloudWork {
    backend: Box<dyn Backend>,
    /// No creation starts before this time: the vendor asked for a pause.
    not_before: Mutex<Instant>,
    /// When the next creation may start, by the limit of the vendor.
    next: Mutex<Instant>,
    /// Sandboxes that could not be deleted, with the reasons.
    left: std::sync::Mutex<Vec<(String, String)>>,
    /// Sandboxes whose deletion the vendor has confirmed.
    deleted: std::sync::Mutex<HashSet<String>>,
}

/// The command that deletes sandboxes that are left.
pub(super) const CLEAN_COMMAND: &str = "rollout clean --all-providers";

/// The thread that creates and deletes sandboxes.
pub(super) struct Desk {
    thread: WorkThread<CloudWork>,
    open: OpenCalls,
}

/// The creations and deletions that have not ended, by numbers in the order in which they began.
#[derive(Clone)]
struct OpenCalls(Arc<watch::Sender<CallNumbers>>);

#[derive(Debug, Default)]
struct CallNumbers {
    next: u64,
    open: BTreeSet<u64>,
}

/// A creation or deletion. It has ended when this is dropped.
struct OpenCall {
    number: u64,
    calls: OpenCalls,
}

impl OpenCalls {
    fn begin(&self) -> OpenCall {
        let mut number = 0;
        self.0.send_modify(|numbers| {
            number = numbers.next;
            numbers.next += 1;
            numbers.open.insert(number);
        });
        OpenCall { number, calls: self.clone() }
    }

    /// Waits for the calls that began before now. Those of other jobs may begin all the time.
    async fn ended(&self) {
        let next = self.0.borrow().next;
        let mut numbers = self.0.subscribe();
        // The sender exists as long as this does.
        let _ = numbers.wait_for(|numbers| numbers.open.first().is_none_or(|first| *first >= next)).await;
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.calls.0.send_modify(|numbers| _ = numbers.open.remove(&self.number));
    }
}

impl Desk {
    /// Starts the thread. `backend` creates a client of its own for it.
    pub(super) fn start(backend: impl FnOnce() -> Box<dyn Backend>) -> io::Result<Self> {
        let work = move || {
            Ok(CloudWork {
                backend: backend(),
                not_before: Mutex::new(Instant::now()),
                next: Mutex::new(Instant::now()),
                left: std::sync::Mutex::default(),
                deleted: std::sync::Mutex::default(),
            })
        };
        WorkThread::start("cloud", work, |work| async move { work.finish().await }.boxed())
            .map(|thread| Self { thread, open: OpenCalls(Arc::new(watch::Sender::default())) })
    }

    /// Creates a sandbox. If the future is dropped, an attempt that has begun is completed, and its sandbox is deleted.
    pub(super) async fn create(
        &self,
        plan: Arc<SandboxPlan>,
        until: Instant,
        waits: Option<&dyn StartReport>,
    ) -> Result<OwnedSandbox, EnvironmentError> {
        let (handle, open, call) = (self.thread.handle()?, self.open.clone(), self.open.begin());
        let (sender, reasons) = watch::channel(String::new());
        // Tells the thread when this future is dropped.
        let (_caller, gone) = oneshot::channel();
        // If the caller is gone, the sandbox is dropped before the call: its deletion begins before the creation ends.
        let creation = self.thread.ask(move |work| {
            async move {
                let created = work.create(&plan, until, gone, &sender).await;
                let created = created.map(|Created { id, began, is_ambiguous }| {
                    let key = is_ambiguous.then(|| plan.key().to_owned());
                    OwnedSandbox { handle, open, id, began, key, armed: true }
                });
                (created, call)
            }
            .boxed()
        });
        let (created, _call) = with_reasons(creation, reasons, waits).await?;
        created
    }

    /// Waits until the sandboxes that were given up before now are deleted. Returns a message for each that is left.
    pub(super) async fn settle(&self) -> Vec<String> {
        // The first wait may end with a creation whose caller is gone, and whose sandbox is deleted only now.
        self.open.ended().await;
        self.open.ended().await;
        let left = self.thread.ask(|work| {
            async move {
                work.check_deleted().await;
                work.take_left()
            }
            .boxed()
        });
        let left = left.await.unwrap_or_default();
        left.into_iter().map(|(id, reason)| not_deleted(&id, &reason)).collect()
    }

    /// Deletes a sandbox that this process does not own.
    pub(super) async fn delete(&self, id: &str) -> Result<(), EnvironmentError> {
        let id = id.to_owned();
        let deleted =
            self.thread.ask(move |work| async move { work.delete(&id, None).await }.boxed()).await?;
        deleted.map_err(|error| EnvironmentError::Teardown(error.to_string()))
    }
}

/// A sandbox that is deleted when this is dropped.
pub(super) struct OwnedSandbox {
    handle: WorkHandle<CloudWork>,
    open: OpenCalls,
    id: String,
    /// When its creation was requested.
    began: Instant,
    /// The key of its creation, if an earlier attempt may have created another sandbox.
    key: Option<String>,
    armed: bool,
}

impl OwnedSandbox {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Deletes it now, or when the vendor answers again.
    pub(super) async fn delete(mut self) -> Result<(), EnvironmentError> {
        let (id, key) = (self.id.clone(), self.key.clone());
        self.armed = false;
        let call = self.open.begin();
        let work = move |work: Arc<CloudWork>| {
            async move {
                let deleted = work.delete(&id, key.as_deref()).await;
                drop(call);
                deleted
            }
            .boxed()
        };
        let deleted = self.handle.ask(work).await?;
        deleted.map_err(|error| {
            EnvironmentError::Teardown(format!("cannot delete the sandbox {}: {error}", self.id))
        })
    }

    /// Keeps the sandbox.
    pub(super) fn release(mut self) {
        self.armed = false;
    }
}

impl Drop for OwnedSandbox {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (id, key) = (std::mem::take(&mut self.id), self.key.take());
        let call = self.open.begin();
        self.handle.send(move |work| {
            async move {
                if let Err(error) = work.delete(&id, key.as_deref()).await {
                    tracing::warn!(sandbox = id, %error, "a sandbox was not deleted");
                }
                drop(call);
            }
            .boxed()
        });
    }
}

/// A sandbox that was created.
struct Created {
    id: String,
    began: Instant,
    /// Whether an attempt had no answer, so that another sandbox of the same key may exist.
    is_ambiguous: bool,
}

impl CloudWork {
    /// Creates a sandbox, and waits for a vendor that has no room or does not answer. Waits no longer when the sender of
    /// `gone` is dropped. `waits` receives what it waits for.
    async fn create(
        &self,
        plan: &SandboxPlan,
        until: Instant,
        mut gone: oneshot::Receiver<Infallible>,
        waits: &watch::Sender<String>,
    ) -> Result<Created, EnvironmentError> {
        let mut wait = FIRST_WAIT;
        let mut pause = Duration::ZERO;
        let mut is_ambiguous = false;
        let mut began = Instant::now();
        loop {
            tokio::select! {
                biased;
                _ = &mut gone => {
                    if is_ambiguous {
                        self.delete_by_key(plan.key()).await;
                    }
                    return Err(EnvironmentError::Start("its trial was cancelled".to_owned()));
                }
                () = self.may_ask(pause) => {}
            }
            if !is_ambiguous {
                began = Instant::now();
            }
            let error = match self.attempt(plan, is_ambiguous).await {
                Ok(id) => return Ok(Created { id, began, is_ambiguous }),
                Err(error) => error,
            };
            is_ambiguous |= matches!(error, CloudError::Unanswered(_));
            pause = match &error {
                CloudError::Busy { retry_after: Some(hint), .. } => (*hint).min(LONGEST_HINT),
                _ => wait,
            };
            if !is_temporary(&error) || Instant::now() + pause >= until {
                if is_ambiguous {
                    self.delete_by_key(plan.key()).await;
                }
                return Err(creation_failure(error));
            }
            // The trial may be cancelled.
            let _ = waits.send(format!("the creation of its sandbox: {error}"));
            if let CloudError::Busy { .. } = error {
                // The vendor asks all of this process to wait.
                let mut not_before = self.not_before.lock().await;
                *not_before = (*not_before).max(Instant::now() + pause);
                pause = Duration::ZERO;
            }
            wait = (wait * 2).min(LAST_WAIT);
        }
    }

    /// One attempt. If an earlier one had no answer, its sandbox is searched first.
    async fn attempt(&self, plan: &SandboxPlan, is_ambiguous: bool) -> Result<String, CloudError> {
        if is_ambiguous && let Some(id) = call(self.backend.find(plan.key())).await? {
            return Ok(id);
        }
        call(self.backend.create(plan)).await
    }

    /// Waits until another attempt may begin: after its own pause, the pause that the vendor asked for, and by the
    /// vendor's limit on requests.
    async fn may_ask(&self, pause: Duration) {
        sleep(pause).await;
        let not_before = *self.not_before.lock().await;
        sleep_until(not_before).await;
        let mut next = self.next.lock().await;
        let turn = (*next).max(Instant::now());
        *next = turn + self.backend.creation_interval();
        drop(next);
        sleep_until(turn).await;
    }

    /// Deletes a sandbox, and others of the same key. A missing one is not an error.
    async fn delete(&self, id: &str, key: Option<&str>) -> Result<(), CloudError> {
        let deleted = self.delete_one(id).await;
        if let Some(key) = key {
            self.delete_by_key(key).await;
        }
        if let Err(error) = &deleted {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            left.push((id.to_owned(), error.to_string()));
        }
        deleted
    }

    async fn delete_one(&self, id: &str) -> Result<(), CloudError> {
        match patiently(DELETE_PATIENCE, || self.backend.delete(id)).await {
            Ok(()) | Err(CloudError::Missing(_)) => {
                self.deleted.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the sandboxes of a creation of which an attempt had no answer.
    async fn delete_by_key(&self, key: &str) {
        for _ in 0..MOST_DUPLICATES {
            let found = call(self.backend.find(key)).await;
            let Ok(Some(id)) = found else {
                if let Err(error) = found {
                    tracing::warn!(key, %error, "cannot search for a sandbox whose creation had no answer");
                }
                return;
            };
            if let Err(error) = self.delete_one(&id).await {
                tracing::warn!(sandbox = id, %error, "a sandbox was not deleted");
                self.left.lock().unwrap_or_else(PoisonError::into_inner).push((id, error.to_string()));
                return;
            }
        }
    }

    /// Reports what is not deleted, at the end of the run.
    async fn finish(&self) {
        self.check_deleted().await;
        for (id, reason) in self.take_left() {
            tracing::warn!("{}", not_deleted(&id, &reason));
        }
    }

    /// Makes sure that what was deleted is gone.
    async fn check_deleted(&self) {
        let deleted = std::mem::take(&mut *self.deleted.lock().unwrap_or_else(PoisonError::into_inner));
        if !deleted.is_empty() {
            let mut wait = FIRST_WAIT;
            // What the last check has found, with the failure of its deletion.
            let mut still: Vec<(String, Option<String>)> = Vec::new();
            for check in 1..=CHECKS {
                // A vendor may confirm a deletion and lose it, or list a sandbox for a moment longer.
                let listed = match patiently(DELETE_PATIENCE, || self.backend.list()).await {
                    Ok(listed) => listed.into_iter().filter(|sandbox| deleted.contains(&sandbox.id)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot check that all sandboxes were deleted");
                        // The vendor has confirmed the deletion of the others.
                        still.retain(|(_, failure)| failure.is_some());
                        break;
                    }
                };
                still.clear();
                for CloudSandbox { id, .. } in listed {
                    let failure = self.delete_one(&id).await.err().map(|error| error.to_string());
                    still.push((id, failure));
                }
                if still.is_empty() || check == CHECKS {
                    break;
                }
                sleep(wait).await;
                wait *= 2;
            }
            let listed = || "the vendor confirmed the deletion, but still lists the sandbox".to_owned();
            let still = still.into_iter().map(|(id, failure)| (id, failure.unwrap_or_else(listed)));
            self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(still);
        }
    }

    /// The sandboxes that could not be deleted, each once, with the reasons.
    fn take_left(&self) -> Vec<(String, String)> {
        let mut left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        let mut seen = HashSet::new();
        left.retain(|(id, _)| seen.insert(id.clone()));
        left
    }
}

fn not_deleted(id: &str, reason: &str) -> String {
    format!(
        "the sandbox {id} was not deleted: {reason}. It ends after its lifetime; `{CLEAN_COMMAND}` deletes it now"
    )
}

/// Limits the time of a call.
async fn call<T>(call: impl Future<Output = Result<T, CloudError>>) -> Result<T, CloudError> {
    let answer = timeout(CALL_TIMEOUT, call).await;
    answer.unwrap_or_else(|_| Err(CloudError::Unanswered("the vendor does not answer".to_owned())))
}

/// Repeats a call until the vendor has time for it, or for as long as `patience`.
pub(super) async fn patiently<T, F: Future<Output = Result<T, CloudError>>>(
    patience: Duration,
    ask: impl Fn() -> F,
) -> Result<T, CloudError> {
    unhurried(patience, || call(ask())).await
}

/// The same for a call that may take long.
pub(super) async fn unhurried<T, F: Future<Output = Result<T, CloudError>>>(
    patience: Duration,
    ask: impl Fn() -> F,
) -> Result<T, CloudError> {
    let mut end = Instant::now() + patience;
    let mut wait = FIRST_WAIT;
    loop {
        let started = Instant::now();
        let error = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let pause = match &error {
            CloudError::Busy { retry_after: Some(hint), .. } => *hint,
            _ => wait,
        };
        // Only waiting counts, not the work of the vendor.
        end += started.elapsed();
        if !is_temporary(&error) || Instant::now() + pause > end {
            return Err(error);
        }
        tracing::debug!(reason = %error, "asking the vendor again");
        sleep(pause).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Whether another attempt may succeed.
pub(super) fn is_temporary(error: &CloudError) -> bool {
    matches!(error, CloudError::Busy { .. } | CloudError::Unanswered(_) | CloudError::Quota(_))
}

/// What a failed creation means for a trial.
fn creation_failure(error: CloudError) -> EnvironmentError {
    match error {
        CloudError::Busy { text, .. } | CloudError::Unanswered(text) => EnvironmentError::Start(text),
        CloudError::Quota(text) => EnvironmentError::Resources(format!(
            "the quota of the account does not allow another sandbox: {text}; raise it, or lower \
             `n_concurrent_trials` or the limits of the task"
        )),
        CloudError::NoImage(text) => EnvironmentError::NoImage(text),
        CloudError::Build(text) => EnvironmentError::of_build(text),
        CloudError::Unauthorized(text) | CloudError::Refused(text) | CloudError::Missing(text) => {
            EnvironmentError::Refused(text)
        }
    }
}
