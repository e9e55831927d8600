//! Creates containers, and removes those that are no longer needed.
//!
//! A future can be dropped while the engine creates a container for it, and a container can be dropped where
//! nothing can be awaited. So both happen on a thread with its own runtime, which outlives the caller's
//! runtime: dropping the engine waits for the thread, and a cancelled job leaves no container behind.

use std::{
    io,
    sync::{Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use bollard::{
    Docker as Api,
    errors::Error,
    models::{ContainerCreateBody, NetworkCreateRequest, VolumeCreateRequest},
    query_parameters::{CreateContainerOptions, RemoveContainerOptions},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

use super::{
    failure,
    group::{self, Created},
};

/// How long to wait for an engine that does not answer. A trial waits a little longer for the end of its
/// environment.
const PATIENCE: Duration = Duration::from_secs(30);

/// The interval of the attempts meanwhile.
const POLL: Duration = Duration::from_millis(500);

type Work = BoxFuture<'static, ()>;

/// Sends work to the thread.
#[derive(Debug, Clone)]
pub(super) struct ContainerReaper {
    api: Api,
    work: mpsc::UnboundedSender<Work>,
}

/// The thread. Dropping it waits until all work is done.
#[derive(Debug)]
pub(super) struct ReaperThread {
    /// `None` while it is being dropped.
    reaper: Option<ContainerReaper>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ReaperThread {
    pub(super) fn start(api: &Api) -> io::Result<Self> {
        let (sender, mut work) = mpsc::unbounded_channel::<Work>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = async move {
            let mut tasks = JoinSet::new();
            while let Some(next) = work.recv().await {
                tasks.spawn(next);
                while tasks.try_join_next().is_some() {}
            }
            while tasks.join_next().await.is_some() {}
        };
        let thread = std::thread::Builder::new()
            .name("docker-reaper".to_owned())
            .spawn(move || runtime.block_on(run))?;
        let reaper = ContainerReaper { api: api.clone(), work: sender };
        Ok(Self { reaper: Some(reaper), thread: Mutex::new(Some(thread)) })
    }

    /// Creates a container from everything but its name. If the future is dropped, the container is still
    /// created, and then removed.
    pub(super) async fn create(
        &self,
        name: &str,
        platform: &str,
        body: ContainerCreateBody,
    ) -> Result<Container, Error> {
        let Some(reaper) = self.reaper.clone() else { return Err(gone()) };
        let (reply, answer) = oneshot::channel();
        let options = CreateContainerOptions { name: Some(name.to_owned()), platform: platform.to_owned() };
        let (own, name) = (reaper.clone(), name.to_owned());
        let creation = async move {
            let created = own.api.create_container(Some(options), body).await;
            // An engine that stopped answering may have created it nevertheless.
            let armed = created.as_ref().map_or_else(failure::is_engine_away, |_| true);
            let container = Container { reaper: own, name, armed };
            // If the caller is gone, the reply is dropped, and the container with it.
            let _ = reply.send(created.map(|_| container));
        };
        reaper.work.send(creation.boxed()).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl ReaperThread {
    /// Creates networks and volumes. If the future is dropped, they are still created, and then removed.
    pub(super) async fn create_group(
        &self,
        networks: Vec<NetworkCreateRequest>,
        volumes: Vec<VolumeCreateRequest>,
    ) -> Result<Removal, Error> {
        let Some(reaper) = self.reaper.clone() else { return Err(gone()) };
        let (reply, answer) = oneshot::channel();
        let own = reaper.clone();
        let creation = async move {
            let mut removal = Removal { reaper: own, created: Created::default() };
            let made = group::create(&removal.reaper.api, networks, volumes, &mut removal.created).await;
            let _ = reply.send(made.map(|()| removal));
        };
        reaper.work.send(creation.boxed()).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// Networks and volumes that are removed when this is dropped.
#[derive(Debug)]
pub(super) struct Removal {
    reaper: ContainerReaper,
    created: Created,
}

impl Removal {
    /// Removes them now. After a failure, the thread retries in the background.
    pub(super) async fn run(mut self) -> Result<(), Error> {
        remove_group(&self.reaper.api.clone(), &mut self.created).await
    }

    /// Keeps them.
    pub(super) fn release(mut self) {
        self.created = Created::default();
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if self.created.is_empty() {
            return;
        }
        let (api, mut created) = (self.reaper.api.clone(), std::mem::take(&mut self.created));
        let removal = async move {
            if let Err(error) = remove_group(&api, &mut created).await {
                let error = failure::words(&error);
                tracing::warn!(
                    ?created,
                    error,
                    "networks or volumes were not removed; `rollout clean` removes them"
                );
            }
        };
        let _ = self.reaper.work.send(removal.boxed());
    }
}

/// Removes networks and volumes. Containers that use them may still be in removal.
async fn remove_group(api: &Api, created: &mut Created) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        match created.remove(api).await {
            Err(_) if Instant::now() < end => tokio::time::sleep(POLL).await,
            removed => return removed,
        }
    }
}

impl Drop for ReaperThread {
    fn drop(&mut self) {
        self.reaper = None;
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn gone() -> Error {
    Error::IOError { err: io::Error::other("the thread that creates containers has ended") }
}

/// A container that is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Container {
    reaper: ContainerReaper,
    name: String,
    armed: bool,
}

impl Container {
    /// Removes it now, or when the engine answers again. After a failure, the thread retries in the background.
    pub(super) async fn remove(mut self) -> Result<(), Error> {
        remove_patiently(&self.reaper.api, &self.name).await?;
        self.armed = false;
        Ok(())
    }

    /// Keeps the container.
    pub(super) fn release(mut self) {
        self.armed = false;
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (api, name) = (self.reaper.api.clone(), std::mem::take(&mut self.name));
        let removal = async move {
            if let Err(error) = remove_patiently(&api, &name).await {
                let error = failure::words(&error);
                tracing::warn!(
                    container = name,
                    error,
                    "a container was not removed; `rollout clean` removes it"
                );
            }
        };
        let _ = self.reaper.work.send(removal.boxed());
    }
}

/// Removes a container, and waits for an engine that is being restarted.
async fn remove_patiently(api: &Api, container: &str) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        match remove(api, container).await {
            Err(error) if failure::is_engine_away(&error) && Instant::now() < end => {
                tokio::time::sleep(POLL).await;
            }
            removed => return removed,
        }
    }
}

/// Removes a container with its anonymous volumes, even if it runs. A missing container is not an error.
pub(super) async fn remove(api: &Api, container: &str) -> Result<(), Error> {
    let options = RemoveContainerOptions { v: true, force: true, link: false };
    match api.remove_container(container, Some(options)).await {
        Err(error) if !failure::is_missing(&error) && !failure::is_in_removal(&error) => Err(error),
        _ => Ok(()),
    }
}
