//! Watches: the changes of a kind as a stream of events.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    query::Query, refusal::Refusal, resource::Resource, selector::Selector, serve::CutHere,
    state::ClusterState,
};

/// The time between two bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(5);

/// The time after which a watch ends if the client sets none.
const DURATION: u64 = 1800;

struct Watch {
    cluster: Arc<ClusterState>,
    resource: &'static Resource,
    namespace: Option<String>,
    selector: Selector,
    bookmarks: bool,
    /// The last version that the client has.
    version: u64,
    until: Instant,
    pending: VecDeque<Value>,
    changed: tokio::sync::watch::Receiver<u64>,
    breaks: tokio::sync::watch::Receiver<u64>,
    finished: bool,
}

/// The body of the answer to a watch.
pub(super) fn watch(
    cluster: &Arc<ClusterState>,
    resource: &'static Resource,
    namespace: Option<&str>,
    query: &Query,
) -> impl Stream<Item = Result<Frame<Bytes>, CutHere>> + use<> {
    let state = cluster.lock();
    let selector = Selector::new(query);
    let from = query.get("resourceVersion").unwrap_or_default();
    let initial_events = query.flag("sendInitialEvents");
    let mut pending = VecDeque::new();
    let mut version = from.parse().unwrap_or(0);
    // Without a version, a watch begins with the existing objects.
    if initial_events || from.is_empty() || from == "0" {
        version = state.store.version;
        let existing = state.store.list(resource.plural, namespace, &selector);
        pending.extend(existing.into_iter().map(|object| json!({"type": "ADDED", "object": *object})));
        if initial_events {
            let mut end = bookmark(resource, version);
            end["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
            pending.push_back(end);
        }
    }
    let seconds = query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(DURATION);
    let mut breaks = cluster.breaks.subscribe();
    breaks.mark_unchanged();
    let watch = Watch {
        cluster: Arc::clone(cluster),
        resource,
        namespace: namespace.map(str::to_owned),
        selector,
        bookmarks: query.flag("allowWatchBookmarks"),
        version,
        until: Instant::now() + Duration::from_secs(seconds),
        pending,
        changed: state.store.changed.subscribe(),
        breaks,
        finished: false,
    };
    drop(state);
    stream::unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        let mut line = event.map(|event| event.to_string());
        if let Ok(line) = &mut line {
            line.push('\n');
        }
        Some((line.map(|line| Frame::data(Bytes::from(line))), watch))
    })
}

impl Watch {
    /// The next event; `None` at the end, and an error where the connection is to be cut.
    async fn next(&mut self) -> Option<Result<Value, CutHere>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(Ok(event));
            }
            if self.finished {
                return None;
            }
            self.changed.mark_unchanged();
            if let Err(expired) = self.collect() {
                self.finished = true;
                return Some(Ok(json!({"type": "ERROR", "object": expired.body()})));
            }
            if !self.pending.is_empty() {
                continue;
            }
            tokio::select! {
                // The senders live as long as the cluster.
                _ = self.changed.changed() => {}
                _ = self.breaks.changed() => {
                    self.finished = true;
                    return Some(Err(CutHere));
                }
                () = sleep_until(self.until) => return None,
                () = sleep(BOOKMARKS), if self.bookmarks => {
                    return Some(Ok(bookmark(self.resource, self.version)));
                }
            }
        }
    }

    /// Collects the changes since the last version.
    fn collect(&mut self) -> Result<(), Refusal> {
        let state = self.cluster.lock();
        let changes = state.store.changes_after(self.version).map_err(|_| Refusal::gone())?;
        for change in changes {
            let here = change.key.plural == self.resource.plural
                && self.namespace.as_ref().is_none_or(|namespace| *namespace == change.key.namespace);
            if here && self.selector.selects(&change.object) {
                self.pending.push_back(json!({"type": change.event, "object": *change.object}));
            }
            self.version = change.version;
        }
        Ok(())
    }
}

fn bookmark(resource: &Resource, version: u64) -> Value {
    let metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    let object = json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata});
    json!({"type": "BOOKMARK", "object": object})
}
