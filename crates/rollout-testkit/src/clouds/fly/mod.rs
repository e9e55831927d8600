//! A fake of Fly: its API of machines, its registry and its proxy at one address.
//!
//! Each request and answer of the API is checked against a [description](description) of its fields. Images are pushed
//! by a Docker engine; layers are shared with the other fakes of a test run, because all images have the same base.
//! Machines share the network of the host, so each listens at a free port instead of the one in its configuration.

mod api;
mod description;
mod machines;
mod proxy;
mod registry;
mod state;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::{Request, body::Incoming};
use serde_json::{Map, Value, json};

use self::state::FlyState;
use super::{
    fake::{CloudFake, FakeSandbox},
    faults::CloudFaults,
    server::{Answer, CloudThread, CutHere, serve_http},
};
use crate::variable::variable;

/// The app of the tests.
const APP: &str = "rollout-tests";

/// The only accepted token.
const TOKEN: &str = "fo1_the-token-of-the-fake";

/// A fake of Fly at a free port, with its own threads. Its machines end with it.
pub struct FlyServer {
    state: Arc<FlyState>,
    thread: CloudThread,
}

impl FlyServer {
    /// Starts an account without apps. `helper` is an executable that calls
    /// [`helper_main`](rollout_sandbox::helper_main), such as the command itself.
    ///
    /// # Panics
    ///
    /// If sandboxes cannot be used on this machine, or the services of the tests are missing.
    pub fn start(helper: impl Into<PathBuf>) -> Self {
        // Below the directory of the services, which ends with them.
        let log = PathBuf::from(variable("ROLLOUT_TEST_REGISTRY_LOG"));
        let shared = log.parent().and_then(Path::parent).expect("the services have a directory").join("fly");
        let (images, blobs) = (shared.join("images"), shared.join("blobs"));
        for dir in [&images, &blobs] {
            std::fs::create_dir_all(dir).expect("make a directory for images");
        }
        let (thread, state) = CloudThread::start_sharing(
            helper.into(),
            Some(images),
            move |host, address| FlyState::new(host, address, blobs),
            |listener, state| serve_http(listener, move |request| answer(Arc::clone(&state), request)),
        );
        Self { state, thread }
    }

    /// The address of the API.
    pub fn url(&self) -> String {
        self.thread.url()
    }

    /// The token that the API accepts.
    pub fn token(&self) -> &'static str {
        TOKEN
    }
}

impl CloudFake for FlyServer {
    fn kind(&self) -> &'static str {
        "fly"
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("FLY_API_TOKEN", TOKEN.to_owned()),
            ("FLY_FLAPS_BASE_URL", self.thread.url()),
            ("FLY_REGISTRY_HOST", self.state.address.to_string()),
        ]
    }

    fn settings(&self) -> Map<String, Value> {
        let settings = json!({
            "app": APP,
            "url": self.thread.url(),
            // The smallest sizes, because tests use up their memory.
            "cpu_kind": "shared",
            "build_network": "host",
            "creations_per_second": 1000,
            // The suite expects environments that cost nothing.
            "shared_cpu_hour": 0,
            "gib_hour": 0,
        });
        settings.as_object().cloned().unwrap_or_default()
    }

    fn needs_engine(&self) -> bool {
        true
    }

    fn faults(&self) -> &CloudFaults {
        &self.state.faults
    }

    fn sandboxes(&self) -> Vec<FakeSandbox> {
        self.state.live()
    }

    fn end(&self, id: &str) {
        if let Some(machine) = self.state.destroy(id, "flyd") {
            // The caller may be inside another runtime, where nothing can be waited for in this one.
            let (sender, killed) = std::sync::mpsc::channel();
            self.thread.runtime().spawn(async move {
                machine.kill().await;
                sender.send(())
            });
            // An error means that the server has ended, with all machines.
            let _ = killed.recv();
        }
    }
}

async fn answer(state: Arc<FlyState>, request: Request<Incoming>) -> Result<Answer, CutHere> {
    if request.headers().contains_key("upgrade") {
        return proxy::answer(&state, request).await;
    }
    let path = request.uri().path();
    if path == "/v2" || path.starts_with("/v2/") {
        return registry::answer(&state, request).await;
    }
    api::answer(&state, request).await
}
