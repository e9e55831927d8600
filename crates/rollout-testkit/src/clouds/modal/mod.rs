//! A fake of Modal: its API and the router of its machines, over gRPC.
//!
//! A client must send what Modal's own client sends: the credentials on each call of the API, a token besides on each
//! call about sandboxes, and the token of a sandbox's machine on each call of the router.

mod build;
mod exec;
mod grpc;
mod messages;
mod output;
mod serve;
mod state;

use std::{path::PathBuf, sync::Arc};

use serde_json::{Map, Value, json};

use self::state::ModalState;
use super::{
    fake::{CloudFake, FakeSandbox},
    faults::CloudFaults,
    server::CloudThread,
};

/// A fake of Modal.
pub struct ModalServer {
    /// Dropped before the thread, which waits for the machines.
    state: Arc<ModalState>,
    thread: CloudThread,
}

impl ModalServer {
    /// Starts the server. `helper` is an executable that calls [`helper_main`](rollout_sandbox::helper_main).
    ///
    /// # Panics
    ///
    /// If sandboxes cannot be used on this machine.
    pub fn start(helper: impl Into<PathBuf>) -> Self {
        let (thread, state) = CloudThread::start(
            helper.into(),
            |host, address| ModalState::new(host, format!("http://{address}")),
            serve::serve,
        );
        Self { state, thread }
    }

    /// Adds a secret with variables of these names to the account.
    pub fn add_secret(&self, name: &str, keys: &[&str]) {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.state.known().secrets.insert(name.to_owned(), keys);
    }

    /// The environments and names of the apps.
    pub fn apps(&self) -> Vec<(String, String)> {
        self.state.known().apps.keys().cloned().collect()
    }

    /// The number of builds so far.
    pub fn builds(&self) -> usize {
        self.state.known().builds.len()
    }
}

impl CloudFake for ModalServer {
    fn kind(&self) -> &'static str {
        "modal"
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("MODAL_SERVER_URL", self.thread.url()),
            ("MODAL_TOKEN_ID", serve::TOKEN_ID.to_owned()),
            ("MODAL_TOKEN_SECRET", serve::TOKEN_SECRET.to_owned()),
        ]
    }

    fn settings(&self) -> Map<String, Value> {
        // Without a price, results are those of other providers.
        [("cpu_hour", json!(0)), ("gib_hour", json!(0))]
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .collect()
    }

    fn faults(&self) -> &CloudFaults {
        &self.state.faults
    }

    fn sandboxes(&self) -> Vec<FakeSandbox> {
        self.state.listed()
    }

    fn end(&self, id: &str) {
        // The caller may be inside another runtime, where nothing can be waited for in this one.
        let (sender, ended) = std::sync::mpsc::channel();
        let (state, id) = (Arc::clone(&self.state), id.to_owned());
        self.thread.runtime().spawn(async move {
            state.fail(&id).await;
            sender.send(())
        });
        // An error means that the server has ended, with all sandboxes.
        let _ = ended.recv();
    }
}
