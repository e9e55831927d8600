//! A hub for datasets on loopback that implements the upload and download protocols of the Hugging Face Hub.
//!
//! It has two addresses: that of the hub, and that of its storage for large files, which must not receive
//! tokens.

mod api;
mod fault;
mod serve;
mod store;

use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use bytes::Bytes;

pub use fault::{Fault, Trouble};
use store::Store;

/// A hub at free ports, in its own thread. It runs until it is dropped.
pub struct HubServer {
    url: String,
    shared: Arc<Mutex<Store>>,
    _running: tokio::sync::oneshot::Sender<()>,
}

impl HubServer {
    /// The token with write access.
    pub const TOKEN: &str = "hf_loopbackloopbackloopback";

    /// The user of the token.
    pub const USER: &str = "tester";

    /// An organisation that the user belongs to.
    pub const ORGANISATION: &str = "team";

    /// Starts a hub without datasets. Files of 1000 bytes and more are large.
    pub fn start() -> Self {
        let listen = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("listen on loopback");
            listener.set_nonblocking(true).expect("listen without blocking");
            let address = listener.local_addr().expect("a listener has an address");
            (listener, format!("http://{address}"))
        };
        let ((hub, url), (storage, storage_url)) = (listen(), listen());
        let shared = Arc::new(Mutex::new(Store::new(&url, &storage_url)));
        let (running, dropped) = tokio::sync::oneshot::channel();
        let serving = Arc::clone(&shared);
        thread::spawn(move || serve::run(hub, storage, &serving, dropped));
        Self { url, shared, _running: running }
    }

    /// Requires large files in parts of this many bytes.
    #[must_use]
    pub fn parts_of(self, bytes: usize) -> Self {
        self.store().part_size = Some(bytes);
        self
    }

    /// Adds a fault. Faults of the same requests happen one after the other.
    #[must_use]
    pub fn fault(self, fault: Fault) -> Self {
        self.store().faults.push(fault);
        self
    }

    /// Adds files to a dataset in a new commit, and returns the commit. The dataset is created if it does not exist.
    pub fn publish(&self, repo: &str, private: bool, files: &[(&str, &[u8])]) -> String {
        let mut store = self.store();
        let stored: Vec<_> = files
            .iter()
            .map(|(name, content)| ((*name).to_owned(), store.stored(Bytes::copy_from_slice(content))))
            .collect();
        let attributes = store.stored(Bytes::new());
        let repo = store.repos.entry(repo.to_owned());
        let repo = repo.or_insert_with(|| store::Repo::new(private, attributes));
        repo.files.extend(stored);
        repo.commit("publish");
        repo.head.clone()
    }

    /// The address, in the form of `HF_ENDPOINT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The files of a dataset.
    ///
    /// # Panics
    ///
    /// If the dataset does not exist.
    #[track_caller]
    pub fn files(&self, repo: &str) -> BTreeMap<String, Bytes> {
        let store = self.store();
        let repo = store.repos.get(repo).expect("there is such a dataset");
        let content = |(name, file): (&String, &store::Stored)| (name.clone(), store.content(file));
        repo.files.iter().map(content).collect()
    }

    /// The messages of the commits to a dataset, from the first.
    ///
    /// # Panics
    ///
    /// If the dataset does not exist.
    #[track_caller]
    pub fn commits(&self, repo: &str) -> Vec<String> {
        self.store().repos.get(repo).expect("there is such a dataset").commits.clone()
    }

    /// Whether a dataset is private; `None` if it does not exist.
    pub fn is_private(&self, repo: &str) -> Option<bool> {
        self.store().repos.get(repo).map(|repo| repo.private)
    }

    /// The requests so far, as `POST /path`. Those to the storage begin with `storage`, and those for the rest of a file
    /// end with ` from byte N`.
    pub fn requests(&self) -> Vec<String> {
        self.store().requests.clone()
    }

    /// The number of requests to the storage that had a token.
    pub fn leaks(&self) -> usize {
        self.store().leaks
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
