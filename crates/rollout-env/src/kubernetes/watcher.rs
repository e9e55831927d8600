//! Follows the pods of a run, with one watch for all of them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{access::words, names, state::PodView};

/// How long the server keeps a watch open, in seconds.
const WATCH_SECONDS: u32 = 240;

/// A watch that is silent for longer is broken, although it was not closed.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 30);

/// The pause before the next watch. It doubles each time, also after watches that end without an error: a proxy may
/// close each one at once.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// A watch that lasted for this long was a good one: the pause after it is the first one again.
const LASTING: Duration = Duration::from_secs(10);

/// The longest pause.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// The states of the pods that are followed.
type Views = Mutex<HashMap<String, watch::Sender<PodView>>>;

/// What the watch reports.
#[derive(Default)]
struct Sight {
    views: Views,
    /// Set when a pod that is followed is deleted. The trials forget their pods before, so others have deleted it.
    removal: Arc<AtomicBool>,
}

/// Follows pods. The watch starts with the first of them.
pub(super) struct Watcher {
    pods: Api<Pod>,
    selector: String,
    sight: Arc<Sight>,
    started: OnceLock<()>,
}

impl Watcher {
    pub(super) fn new(client: &Client, namespace: &str, run: &str, removal: Arc<AtomicBool>) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            selector: format!("{}={run}", names::RUN),
            sight: Arc::new(Sight { views: Views::default(), removal }),
            started: OnceLock::new(),
        }
    }

    /// The state of a pod, from now on.
    pub(super) fn follow(&self, name: &str) -> watch::Receiver<PodView> {
        let (sender, view) = watch::channel(PodView::Unseen);
        lock(&self.sight.views).insert(name.to_owned(), sender);
        self.started.get_or_init(|| {
            let (pods, selector, sight) = (self.pods.clone(), self.selector.clone(), Arc::clone(&self.sight));
            drop(tokio::spawn(async move { run(&pods, &selector, &sight).await }));
        });
        view
    }

    /// Stops following a pod.
    pub(super) fn forget(&self, name: &str) {
        lock(&self.sight.views).remove(name);
    }
}

fn lock(views: &Views) -> MutexGuard<'_, HashMap<String, watch::Sender<PodView>>> {
    views.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches until the runtime ends.
async fn run(pods: &Api<Pod>, selector: &str, sight: &Sight) {
    let mut wait = FIRST_WAIT;
    let mut version = None;
    loop {
        let from = Instant::now();
        if let Err(error) = follow_from(pods, selector, sight, &mut version).await {
            tracing::debug!(error = words(&error), "the watch of the pods ended");
        }
        if from.elapsed() >= LASTING {
            wait = FIRST_WAIT;
        }
        sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Watches from a version, or from a new list of all pods if there is none, until the watch ends.
async fn follow_from(
    pods: &Api<Pod>,
    selector: &str,
    sight: &Sight,
    version: &mut Option<String>,
) -> Result<(), kube::Error> {
    let from = match version {
        Some(version) => version.clone(),
        None => {
            let list = pods.list(&ListParams::default().labels(selector)).await?;
            let from = list.metadata.resource_version.clone().unwrap_or_default();
            take_list(sight, list.items);
            *version = Some(from.clone());
            from
        }
    };
    let params = WatchParams::default().labels(selector).timeout(WATCH_SECONDS);
    let mut changes = pods.watch(&params, &from).await?.boxed();
    loop {
        let Ok(next) = timeout(SILENCE, changes.next()).await else { return Ok(()) };
        match next {
            None => return Ok(()),
            Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                version.clone_from(&pod.metadata.resource_version);
                take(sight, pod, PodView::Seen);
            }
            Some(Ok(WatchEvent::Deleted(pod))) => {
                version.clone_from(&pod.metadata.resource_version);
                take(sight, pod, |pod| PodView::Removed(Some(pod)));
            }
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                *version = Some(bookmark.metadata.resource_version);
            }
            Some(Ok(WatchEvent::Error(status))) => {
                // The version is too old: everything is listed again.
                *version = None;
                return Err(kube::Error::Api(status));
            }
            Some(Err(error)) => {
                if super::access::code(&error) == Some(410) {
                    *version = None;
                }
                return Err(error);
            }
        }
    }
}

fn take(sight: &Sight, pod: Pod, view: impl FnOnce(Box<Pod>) -> PodView) {
    let name = pod.metadata.name.clone().unwrap_or_default();
    if let Some(sender) = lock(&sight.views).get(&name) {
        let is_going = pod.metadata.deletion_timestamp.is_some();
        let view = view(Box::new(pod));
        if is_going || matches!(view, PodView::Removed(_)) {
            sight.removal.store(true, Ordering::Relaxed);
        }
        sender.send_replace(view);
    }
}

/// Takes a list of all pods: one that was seen before and is missing was removed.
fn take_list(sight: &Sight, pods: Vec<Pod>) {
    let mut pods: HashMap<String, Pod> =
        pods.into_iter().map(|pod| (pod.metadata.name.clone().unwrap_or_default(), pod)).collect();
    for (name, sender) in lock(&sight.views).iter() {
        sender.send_if_modified(|view| match pods.remove(name) {
            Some(pod) => {
                *view = PodView::Seen(Box::new(pod));
                true
            }
            None => match std::mem::take(view) {
                PodView::Seen(last) => {
                    sight.removal.store(true, Ordering::Relaxed);
                    *view = PodView::Removed(Some(last));
                    true
                }
                other => {
                    *view = other;
                    false
                }
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_missing_in_a_new_list_was_removed_if_it_was_seen() {
        let sight = Sight::default();
        let named = |name: &str| {
            let mut pod = Pod::default();
            pod.metadata.name = Some(name.to_owned());
            pod
        };
        let follow = |name: &str| {
            let (sender, view) = watch::channel(PodView::Unseen);
            lock(&sight.views).insert(name.to_owned(), sender);
            view
        };
        let (new, old) = (follow("new"), follow("old"));
        take_list(&sight, vec![named("old"), named("of another process")]);
        assert!(matches!(*old.borrow(), PodView::Seen(_)));
        assert!(matches!(*new.borrow(), PodView::Unseen));
        assert!(!sight.removal.load(Ordering::Relaxed));
        take_list(&sight, vec![named("new")]);
        assert!(sight.removal.load(Ordering::Relaxed));
        assert!(matches!(*old.borrow(), PodView::Removed(Some(_))));
        assert!(matches!(*new.borrow(), PodView::Seen(_)));
    }
}
