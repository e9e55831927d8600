//! A Kubernetes API server on loopback whose pods run in native sandboxes.
//!
//! It implements the part of the protocol that a pod per trial needs: objects with versions, lists, watches, deletion
//! with grace periods, garbage collection by owner, deadlines of Jobs, quotas, events, and attach and exec over WebSockets. At the same
//! address is an image registry. All images are the host's programs with the files that were pushed or added, and all
//! containers of a pod share one root file system and one process namespace. Pods are never restarted.

mod api;
mod attach;
mod calls;
mod container;
mod deadline;
mod delete;
mod faults;
mod kubelet;
mod pod_status;
pub(crate) mod query;
mod refusal;
mod registry;
mod resource;
mod selector;
mod serve;
mod state;
mod store;
mod watch;

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

pub use self::{calls::ApiCalls, faults::PodFault};
use self::{state::ClusterState, store::Key};
use crate::ApiFault;

/// An API server at a free port, with its own threads. It runs until it is dropped, and its pods end with it.
pub struct KubernetesServer {
    url: String,
    cluster: Arc<ClusterState>,
    dir: TempDir,
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KubernetesServer {
    /// Starts a cluster with the namespace `default` and no pods. `helper` is an executable that calls
    /// [`helper_main`](rollout_sandbox::helper_main), such as the command itself.
    ///
    /// # Panics
    ///
    /// If the sandboxes cannot be used on this machine.
    pub fn start(helper: impl Into<PathBuf>) -> Self {
        Self::start_at(helper, 0)
    }

    /// The same at a port.
    ///
    /// # Panics
    ///
    /// If the sandboxes cannot be used on this machine, or the port is in use.
    pub fn start_at(helper: impl Into<PathBuf>, port: u16) -> Self {
        let dir = TempDir::with_prefix("kubernetes-").expect("make a directory for the cluster");
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("listen on loopback");
        listener.set_nonblocking(true).expect("listen without blocking");
        let url = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let (running, dropped) = oneshot::channel();
        let (sender, started) = mpsc::channel();
        let (helper, state_dir) = (helper.into(), dir.path().join("state"));
        let thread = std::thread::spawn(move || serve::run(listener, helper, state_dir, &sender, dropped));
        let cluster = started.recv().expect("the server starts");
        let server = Self { url, cluster, dir, running: Some(running), thread: Some(thread) };
        fs::write(server.kubeconfig(), server.config().to_string()).expect("write the configuration");
        server
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Host and port of its image registry, which speaks plain HTTP.
    pub fn registry(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Adds an image of the host's programs to the registry, with the configuration of an image, such as `User`. Returns
    /// its reference.
    pub fn add_image(&self, repository: &str, tag: &str, config: &Value) -> String {
        self.cluster.registry.add(repository, tag, config);
        format!("{}/{repository}:{tag}", self.registry())
    }

    /// The images that clients asked the registry for, as `repository:tag`.
    pub fn asked_images(&self) -> Vec<String> {
        self.cluster.registry.asked()
    }

    /// The `environment` of a job whose pods run here.
    pub fn environment(&self) -> Value {
        json!({"type": "kubernetes", "provider_config": {
            "kubeconfig": self.kubeconfig(),
            "registry": self.registry(),
        }})
    }

    /// A configuration for clients.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    fn config(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "loopback", "cluster": {"server": self.url}}],
            "users": [{"name": "tester", "user": {"token": "loopback"}}],
            "contexts": [{"name": "loopback", "context": {"cluster": "loopback", "user": "tester"}}],
            "current-context": "loopback",
        })
    }

    /// Adds a file of the host to the images whose names contain a text, at an absolute path inside. Pods that are
    /// created later have it.
    ///
    /// # Panics
    ///
    /// If the file cannot be copied.
    #[track_caller]
    pub fn add_image_file(&self, image: &str, path: &str, source: &Path) {
        self.cluster.add_image_file(image, path, source).expect("copy a file into an image");
    }

    /// Adds a fault of requests. Faults of the same requests happen one after the other.
    pub fn fault(&self, fault: ApiFault) {
        self.cluster.lock().api_faults.push(fault);
    }

    /// Adds a fault of each pod whose name contains a text, from its creation on.
    pub fn pod_fault(&self, name: &str, fault: PodFault) {
        self.cluster.lock().pod_faults.push((name.to_owned(), fault));
    }

    /// Removes all faults.
    pub fn heal(&self) {
        let mut state = self.cluster.lock();
        state.api_faults.clear();
        state.pod_faults.clear();
    }

    /// The number of requests so far.
    pub fn calls(&self) -> ApiCalls {
        self.cluster.lock().calls.clone()
    }

    /// The current objects of a kind, such as `pods`, of all namespaces.
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        self.cluster.lock().store.all(plural).map(|object| Value::clone(object)).collect()
    }

    /// The largest number of pods that ran at the same time.
    pub fn most_running(&self) -> usize {
        self.cluster.lock().most_running
    }

    /// Allows this many pods in a namespace.
    pub fn limit_pods(&self, namespace: &str, pods: usize) {
        let quota = json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "pods", "namespace": namespace},
            "spec": {"hard": {"pods": pods.to_string()}},
        });
        self.cluster.lock().put_new(Key::new("resourcequotas", namespace, "pods"), quota);
    }

    /// Deletes an object as another client does. Returns whether there is such an object.
    pub fn delete(&self, plural: &'static str, namespace: &str, name: &str) -> bool {
        let options = delete::DeleteOptions::default();
        self.cluster.lock().delete(&Key::new(plural, namespace, name), &options).is_ok()
    }

    /// Moves the deadlines of all Jobs to their first second, as if they had passed.
    pub fn pass_deadlines(&self) {
        let mut state = self.cluster.lock();
        let jobs: Vec<_> =
            state.store.entries("jobs", None).map(|(key, job)| (key.clone(), Value::clone(job))).collect();
        for (key, mut job) in jobs {
            job["spec"]["activeDeadlineSeconds"] = 1.into();
            state.store.put(key, job);
        }
    }

    /// Evicts a pod, as a node without free disk space does. Returns whether there is such a pod.
    pub fn evict(&self, namespace: &str, pod: &str) -> bool {
        self.cluster.order(namespace, pod, kubelet::Order::Evict(kubelet::LOW_STORAGE.to_owned()))
    }

    /// Kills a pod's processes as the kernel does when their memory is used up. Returns whether there is such a pod.
    pub fn kill_out_of_memory(&self, namespace: &str, pod: &str) -> bool {
        self.cluster.order(namespace, pod, kubelet::Order::OutOfMemory)
    }

    /// Loses the node of a pod: its connections break, and it stays `Terminating` until it is deleted by force. Returns
    /// whether there is such a pod.
    pub fn lose_node(&self, namespace: &str, pod: &str) -> bool {
        self.cluster.order(namespace, pod, kubelet::Order::LoseNode)
    }

    /// Forgets the history of objects: clients that continue a watch from an earlier version get 410 Gone. Open watches
    /// end.
    pub fn compact(&self) {
        self.cluster.lock().store.compact();
        self.break_connections();
    }

    /// Cuts all open watches and streams, as a restart of the API server does.
    pub fn break_connections(&self) {
        self.cluster.breaks.send_modify(|count| *count += 1);
    }
}

impl Drop for KubernetesServer {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed; a second one would hide the test's own failure.
            let _ = thread.join();
        }
    }
}
