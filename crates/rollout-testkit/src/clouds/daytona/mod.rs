//! A fake of Daytona: its API, the toolbox in its sandboxes, its preview addresses and its storage, at one address.
//!
//! It answers with all fields that the official clients require. Snapshots are built by the native engine, from contexts
//! that lose their directories and links, as in the last public release of the builder. A preview address is a path
//! instead of a host name. Events are not offered, so clients poll.

mod api;
mod preview;
mod sandboxes;
mod snapshots;
mod state;
mod storage;
mod toolbox;

use std::{path::PathBuf, sync::Arc};

use hyper::{Request, body::Incoming};
use serde_json::{Map, Value, json};

use self::state::DaytonaState;
use super::{
    fake::{CloudFake, FakeSandbox},
    faults::CloudFaults,
    server::{Answer, CloudThread, CutHere, serve_http},
};

/// The only accepted key.
const KEY: &str = "dtn_the-key-of-the-fake";

/// The organization of the key.
const ORGANIZATION: &str = "5d1f8f0e-77a5-4c31-9a40-6f3f1f2b9c11";

/// A fake of Daytona at a free port, with its own threads. Its sandboxes end with it.
pub struct DaytonaServer {
    state: Arc<DaytonaState>,
    thread: CloudThread,
}

impl DaytonaServer {
    /// Starts an account without snapshots and sandboxes. `helper` is an executable that calls
    /// [`helper_main`](rollout_sandbox::helper_main), such as the command itself.
    ///
    /// # Panics
    ///
    /// If sandboxes cannot be used on this machine.
    pub fn start(helper: impl Into<PathBuf>) -> Self {
        let (thread, state) = CloudThread::start(helper.into(), DaytonaState::new, |listener, state| {
            serve_http(listener, move |request| answer(Arc::clone(&state), request))
        });
        Self { state, thread }
    }
}

impl CloudFake for DaytonaServer {
    fn kind(&self) -> &'static str {
        "daytona"
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![("DAYTONA_API_KEY", KEY.to_owned()), ("DAYTONA_API_URL", format!("{}/api", self.thread.url()))]
    }

    fn settings(&self) -> Map<String, Value> {
        // The suite expects trials that cost nothing.
        let settings = json!({"cpu_hour": 0, "gib_hour": 0, "disk_gib_hour": 0});
        settings.as_object().cloned().unwrap_or_default()
    }

    fn faults(&self) -> &CloudFaults {
        &self.state.faults
    }

    fn sandboxes(&self) -> Vec<FakeSandbox> {
        self.state.live()
    }

    fn end(&self, id: &str) {
        let Some(machine) = self.state.remove(id) else { return };
        // The caller may be inside another runtime, where nothing can be waited for in this one.
        let (sender, ended) = std::sync::mpsc::channel();
        self.thread.runtime().spawn(async move {
            machine.kill().await;
            sender.send(())
        });
        // An error means that the server has ended, with all sandboxes.
        let _ = ended.recv();
    }
}

/// Answers a request by the part of the service that its path names.
async fn answer(state: Arc<DaytonaState>, request: Request<Incoming>) -> Result<Answer, CutHere> {
    let path = request.uri().path().to_owned();
    if let Some(rest) = path.strip_prefix("/preview/") {
        return preview::answer(&state, rest, request).await;
    }
    if path.starts_with("/storage/") {
        return storage::answer(&state, request).await;
    }
    api::answer(&state, request).await
}
