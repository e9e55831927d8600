//! Removes containers that nobody can wait for: those of futures that were dropped on the way.
//!
//! It has a thread and a runtime of its own, because the caller's may be about to end, and is waited for when
//! the engine is let go: nothing stays behind a cancelled job.

use std::{
    sync::{Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use bollard::{Docker as Api, query_parameters::RemoveContainerOptions};

use super::failure;

/// How long a container that was being created when it was given up may take to appear.
const APPEARANCE: Duration = Duration::from_secs(3);

const POLL: Duration = Duration::from_millis(100);

/// A container to remove.
#[derive(Debug)]
pub(super) struct Removal {
    /// Its name or identifier.
    pub(super) container: String,
    /// Whether it may not exist yet.
    pub(super) in_creation: bool,
}

/// The thread, once there is something to do.
#[derive(Debug)]
pub(super) struct Reaper {
    api: Api,
    worker: Mutex<Option<(mpsc::Sender<Removal>, JoinHandle<()>)>>,
}

impl Reaper {
    pub(super) fn new(api: Api) -> Self {
        Self { api, worker: Mutex::default() }
    }

    /// Removes a container some time soon.
    pub(super) fn take(&self, removal: Removal) {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, _) = worker.get_or_insert_with(|| {
            let (sender, removals) = mpsc::channel();
            let api = self.api.clone();
            (sender, std::thread::spawn(move || work(&api, &removals)))
        });
        if let Err(lost) = sender.send(removal) {
            tracing::warn!(container = lost.0.container, "a container could not be removed");
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((sender, thread)) = worker.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

fn work(api: &Api, removals: &mpsc::Receiver<Removal>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return };
    while let Ok(first) = removals.recv() {
        let batch = std::iter::once(first).chain(removals.try_iter());
        let batch = batch.map(|removal| remove_given_up(api, removal));
        runtime.block_on(futures_util::future::join_all(batch));
    }
}

async fn remove_given_up(api: &Api, removal: Removal) {
    let Removal { container, in_creation } = removal;
    let patience = tokio::time::Instant::now() + APPEARANCE;
    loop {
        match remove(api, &container).await {
            Ok(true) => return,
            Ok(false) if in_creation && tokio::time::Instant::now() < patience => {
                tokio::time::sleep(POLL).await;
            }
            Ok(false) => return,
            Err(error) => {
                let error = failure::words(&error);
                tracing::warn!(
                    container,
                    error,
                    "a container could not be removed; `rollout clean` does it later"
                );
                return;
            }
        }
    }
}

/// Removes a container with its anonymous volumes, whatever it does. Returns whether there was one.
pub(super) async fn remove(api: &Api, container: &str) -> Result<bool, bollard::errors::Error> {
    let options = RemoveContainerOptions { v: true, force: true, link: false };
    match api.remove_container(container, Some(options)).await {
        Ok(()) => Ok(true),
        Err(error) if failure::is_missing(&error) => Ok(false),
        Err(error) if failure::is_in_removal(&error) => Ok(true),
        Err(error) => Err(error),
    }
}
