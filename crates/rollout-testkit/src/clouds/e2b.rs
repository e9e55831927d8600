//! A fake of E2B on loopback: its API of templates and sandboxes, and its agent inside sandboxes.

mod api;
mod build;
mod envd;
mod process;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Map, Value, json};

use self::{build::Template, process::Process};
use super::{
    fake::{CloudFake, FakeSandbox},
    faults::CloudFaults,
    machine::{CloudHost, CloudMachine},
    server::{CloudThread, serve_http},
};

/// The key that the fake accepts.
const API_KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// A fake of E2B. It runs until it is dropped.
pub struct E2bServer {
    state: Arc<E2bState>,
    thread: CloudThread,
}

/// What all requests share.
struct E2bState {
    host: CloudHost,
    url: String,
    faults: CloudFaults,
    inner: Mutex<Inner>,
    ids: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// By id.
    templates: BTreeMap<String, Template>,
    /// Uploaded archives by hash.
    files: HashMap<String, bytes::Bytes>,
    /// By id.
    sandboxes: BTreeMap<String, Arc<Sandbox>>,
    /// The sandboxes of creations by their idempotency keys.
    created: HashMap<String, String>,
}

/// A sandbox.
struct Sandbox {
    id: String,
    template: String,
    token: String,
    metadata: BTreeMap<String, String>,
    cpus: u64,
    memory_mib: u64,
    started: jiff::Timestamp,
    end: Mutex<jiff::Timestamp>,
    machine: CloudMachine,
    /// The processes that E2B's agent started, by their numbers.
    processes: Mutex<BTreeMap<u32, Arc<Process>>>,
    pids: std::sync::atomic::AtomicU32,
}

impl E2bState {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An identifier that was not used.
    fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:08x}{:06x}", std::process::id(), self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn sandbox(&self, id: &str) -> Option<Arc<Sandbox>> {
        self.lock().sandboxes.get(id).cloned()
    }

    /// Ends a sandbox; returns whether there was one.
    async fn end(&self, id: &str) -> bool {
        let found = self.lock().sandboxes.remove(id);
        match found {
            Some(sandbox) => {
                sandbox.machine.kill().await;
                true
            }
            None => false,
        }
    }
}

impl E2bServer {
    /// Starts the server. `helper` is an executable that calls [`helper_main`](rollout_sandbox::helper_main), such as the
    /// command itself.
    ///
    /// # Panics
    ///
    /// If sandboxes cannot be used on this machine.
    pub fn start(helper: impl Into<PathBuf>) -> Self {
        let (thread, state) = CloudThread::start(
            helper.into(),
            |host, address| E2bState {
                host,
                url: format!("http://{address}"),
                faults: CloudFaults::default(),
                inner: Mutex::default(),
                ids: AtomicU64::default(),
            },
            |listener, state| serve_http(listener, move |request| api::answer(Arc::clone(&state), request)),
        );
        Self { state, thread }
    }

    /// The CPUs and the memory in MiB of the templates that are ready, in order.
    pub fn sizes(&self) -> Vec<(u64, u64)> {
        let inner = self.state.lock();
        let mut sizes: Vec<_> = inner.templates.values().filter_map(Template::size).collect();
        sizes.sort_unstable();
        sizes
    }
}

impl CloudFake for E2bServer {
    fn kind(&self) -> &'static str {
        "e2b"
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let url = self.thread.url();
        vec![("E2B_API_KEY", API_KEY.to_owned()), ("E2B_API_URL", url.clone()), ("E2B_SANDBOX_URL", url)]
    }

    /// Trials of tests cost nothing.
    fn settings(&self) -> Map<String, Value> {
        ["cpu_hour", "gib_hour"].map(|name| (name.to_owned(), json!(0))).into_iter().collect()
    }

    fn faults(&self) -> &CloudFaults {
        &self.state.faults
    }

    fn sandboxes(&self) -> Vec<FakeSandbox> {
        let inner = self.state.lock();
        let live = inner.sandboxes.values();
        live.map(|sandbox| FakeSandbox { id: sandbox.id.clone(), labels: sandbox.metadata.clone() }).collect()
    }

    fn end(&self, id: &str) {
        // The caller may be inside another runtime, where nothing can be waited for in this one.
        let (sender, ended) = std::sync::mpsc::channel();
        let (state, id) = (Arc::clone(&self.state), id.to_owned());
        self.thread.runtime().spawn(async move { sender.send(state.end(&id).await) });
        // An error means that the server has ended, with all sandboxes.
        let _ = ended.recv();
    }
}
