//! Creates containers, and removes those that nobody waits for any more.
//!
//! A future can be dropped while the engine creates a container for it, and a container can be let go where
//! nothing can be awaited. So both happen on a thread with a runtime of its own, which also outlasts the
//! caller's: whoever lets go of the engine waits for it, and nothing stays behind a cancelled job.

use std::{
    io,
    sync::{Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use bollard::{
    Docker as Api,
    errors::Error,
    models::ContainerCreateBody,
    query_parameters::{CreateContainerOptions, RemoveContainerOptions},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

use super::failure;

/// How long an engine that went away is waited for. A trial waits little longer for the end of its environment.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked for meanwhile.
const POLL: Duration = Duration::from_millis(500);

type Work = BoxFuture<'static, ()>;

/// A way to the thread.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    api: Api,
    work: mpsc::UnboundedSender<Work>,
}

/// The thread. Dropping it waits until everything is done.
#[derive(Debug)]
pub(super) struct KeeperThread {
    /// None while it is being dropped.
    keeper: Option<Keeper>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl KeeperThread {
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
            .name("docker-keeper".to_owned())
            .spawn(move || runtime.block_on(run))?;
        let keeper = Keeper { api: api.clone(), work: sender };
        Ok(Self { keeper: Some(keeper), thread: Mutex::new(Some(thread)) })
    }

    /// Creates a container with all that it needs but its name. It is made to the end also if the future is
    /// dropped, and then removed.
    pub(super) async fn create(
        &self,
        name: &str,
        platform: &str,
        body: ContainerCreateBody,
    ) -> Result<Container, Error> {
        let Some(keeper) = self.keeper.clone() else { return Err(gone()) };
        let (reply, answer) = oneshot::channel();
        let options = CreateContainerOptions { name: Some(name.to_owned()), platform: platform.to_owned() };
        let (own, name) = (keeper.clone(), name.to_owned());
        let creation = async move {
            let created = own.api.create_container(Some(options), body).await;
            // An engine that went away meanwhile may have made it all the same.
            let armed = created.as_ref().map_or_else(failure::is_engine_away, |_| true);
            let container = Container { keeper: own, name, armed };
            // An answer that nobody takes is dropped, and the container with it.
            let _ = reply.send(created.map(|_| container));
        };
        keeper.work.send(creation.boxed()).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for KeeperThread {
    fn drop(&mut self) {
        self.keeper = None;
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn gone() -> Error {
    Error::IOError { err: io::Error::other("the thread that creates containers is gone") }
}

/// A container, which is removed when it is let go.
#[derive(Debug)]
pub(super) struct Container {
    keeper: Keeper,
    name: String,
    armed: bool,
}

impl Container {
    /// Removes it now, or when the engine is back. If that is given up, it is tried again behind the scenes.
    pub(super) async fn remove(mut self) -> Result<(), Error> {
        remove_patiently(&self.keeper.api, &self.name).await?;
        self.armed = false;
        Ok(())
    }

    /// Leaves it.
    pub(super) fn release(mut self) {
        self.armed = false;
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (api, name) = (self.keeper.api.clone(), std::mem::take(&mut self.name));
        let removal = async move {
            if let Err(error) = remove_patiently(&api, &name).await {
                let error = failure::words(&error);
                tracing::warn!(container = name, error, "a container is left; `rollout clean` removes it");
            }
        };
        let _ = self.keeper.work.send(removal.boxed());
    }
}

/// Removes a container, and waits for an engine that is being started again.
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

/// Removes a container with its anonymous volumes, whatever it does. One that is gone already is no error.
pub(super) async fn remove(api: &Api, container: &str) -> Result<(), Error> {
    let options = RemoveContainerOptions { v: true, force: true, link: false };
    match api.remove_container(container, Some(options)).await {
        Err(error) if !failure::is_missing(&error) && !failure::is_in_removal(&error) => Err(error),
        _ => Ok(()),
    }
}
