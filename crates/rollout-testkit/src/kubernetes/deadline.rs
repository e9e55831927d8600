//! The deadlines of Jobs without pods: when it has passed, the Job has failed, and if it may, it is deleted.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{state::ClusterState, store::Key};

/// The time between two looks at a deadline, which clients may move.
const LOOK: Duration = Duration::from_millis(100);

/// Follows a Job until its deadline has passed, or it is deleted.
pub(super) async fn follow(cluster: Arc<ClusterState>, key: Key, created: Arc<Value>) {
    let start = Instant::now();
    loop {
        sleep(LOOK).await;
        let mut state = cluster.lock();
        let Some(job) = state.store.get(&key) else { return };
        if job["metadata"]["uid"] != created["metadata"]["uid"] {
            return;
        }
        let deadline = job["spec"]["activeDeadlineSeconds"].as_u64();
        if deadline.is_none_or(|seconds| start.elapsed() < Duration::from_secs(seconds)) {
            continue;
        }
        let mut job = Value::clone(job);
        let is_temporary = job["spec"]["ttlSecondsAfterFinished"] == 0;
        job["status"]["conditions"] =
            json!([{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]);
        state.store.put(key.clone(), job);
        if is_temporary {
            state.remove(&key);
        }
        return;
    }
}
